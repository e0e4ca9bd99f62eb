"""``peerglass train``: train the models of a config walk-forward."""

from __future__ import annotations

from pathlib import Path

from pipelines.cli import RUNS_FOLDER, AsOfOption, OutputOption, SetOption, TargetArgument, WaitOption
from pipelines.errors import ConfigError


def train(
    target: TargetArgument,
    overrides: SetOption = None,
    as_of: AsOfOption = None,
    output: OutputOption = RUNS_FOLDER,
    wait: WaitOption = False,
) -> None:
    """Train the models of a config walk-forward, store their test forecasts, and print the run id.

    Each combination of model, fold and seed is trained once, and its forecasts go to the lake. After an
    interruption, the same command trains only the missing ones. For a RUN, such as a model version of the
    nights, the missing ones are trained on exactly the data that the run recorded.

    Some settings change how models are trained:

    - `fit.pretrain`: pretrain the day encoder to reconstruct masked days or to predict the next day.
    - `init_from`: start from the day encoder of an earlier run.
    - `fit.layer_decay`: in fine-tuning, lower the learning rate layer by layer.
    - `fit.label_share`: use only a share of the labels.
    - `fit.refit`: refit the selected model to training and validation sessions before it forecasts the test.
    """
    from pipelines.config.load import load_config
    from pipelines.stages import train_config, train_run

    if Path(target).is_file() or Path(target).suffix.lower() in (".yaml", ".yml"):
        print(train_config(load_config(Path(target), overrides or []), as_of, wait=wait))
        return
    if overrides or as_of is not None:
        raise ConfigError("--set and --as-of need a CONFIG: a RUN has fixed settings and data versions.")
    print(train_run(target, output, wait=wait))
