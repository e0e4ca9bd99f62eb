"""Model versions that MLflow can load: ``mlflow.pyfunc.load_model("models:/NAME@champion")``.

Beside the checkpoints of a model there are then an ``MLmodel`` file, the names of the model's inputs, and a
zip file with the code of Peerglass. A process that loads the version needs Peerglass' dependencies and not
Peerglass itself. Nothing is pickled. What is loaded, and its input, is `pipelines.nightly.registry.loaded`.
"""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pipelines
from pipelines.files import write_bytes
from pipelines.run.provenance import TrainingStarted, read_provenance
from pipelines.run.record import Run

INPUTS: Final = "inputs.json"
"""Names of a version's inputs, beside its checkpoints."""
KEYS: Final = ("date", "ticker", "group", "in_universe")
"""Columns of the input that are not features."""
CHANNEL: Final = "channel."
"""Prefix of the channels among the columns of the input; a characteristic may have the same name."""
CHARACTERISTIC: Final = "characteristic."
"""Prefix of the characteristics."""
_LOADER: Final = "pipelines.nightly.registry.loaded"
_CODE: Final = "code/peerglass.zip"
_PACKAGES: Final = ("features", "models", "backtest", "pipelines")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip file: the same code gives the same bytes


def make_loadable(run: Run, model: str) -> None:
    """Write what MLflow needs to load a model of a run into the folder of its checkpoints, once.

    The newest fold is loaded: a live run has one, and a walk-forward run is loaded as of its end. The code is
    that of this process, so it is written when the training has just ended.

    Parameters
    ----------
    run
        A recorded run.
    model
        Entry of the config's ``models`` whose tasks are all done.
    """
    folder = run.folder / "checkpoints" / model
    folds = run.read_table("folds")
    if (folder / "MLmodel").is_file() or folds is None or run.identity is None:
        return
    from mlflow.models import Model  # its module pyfunc, which would write the flavor, warns when imported

    features = run.identity.settings["features"]
    inputs = {
        "model": model,
        "run_id": run.run_id,
        "fold": int(folds["fold"].to_list()[-1]),
        "seeds": list(run.config.seeds),
        "window": run.config.features.window,
        "channels": [f"{CHANNEL}{name}" for name in features["channels"]],
        "characteristics": [f"{CHARACTERISTIC}{name}" for name in features["characteristics"]],
    }
    write_bytes(folder / INPUTS, json.dumps(inputs, indent=1).encode())
    write_bytes(folder / _CODE, _zipped_code())
    write_bytes(folder / "requirements.txt", _requirements(run).encode())
    described = Model(signature=_signature(inputs))
    python = platform.python_version()
    described.add_flavor("python_function", loader_module=_LOADER, python_version=python, code=_CODE)
    write_bytes(folder / "MLmodel", described.to_yaml().encode())  # last: its presence says that all is there


def _signature(inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401 (MLflow has no types)
    """Signature of a version: one row per session and firm, see `pipelines.nightly.registry.loaded`."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    kinds = {"date": "datetime", "ticker": "string", "group": "string", "in_universe": "boolean"}
    columns: list[ColSpec | TensorSpec]
    columns = [ColSpec(kinds[name], name, required=name != "group") for name in KEYS]
    columns += [ColSpec("double", name) for name in (*inputs["channels"], *inputs["characteristics"])]
    answer: list[ColSpec | TensorSpec]
    answer = [ColSpec("datetime", "date"), ColSpec("string", "ticker"), ColSpec("double", "signal")]
    return ModelSignature(Schema(columns), Schema(answer))


@cache
def _zipped_code() -> bytes:
    """The code of this process, which is the same for all models of a run."""
    root = Path(pipelines.__file__).parents[1]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for name in _PACKAGES for path in (root / name).rglob("*.py")):
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), date_time=_EPOCH)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _requirements(run: Run) -> str:
    """Libraries that trained the run, with their versions."""
    started = [event for event in read_provenance(run) if isinstance(event, TrainingStarted)]
    libraries = started[-1].environment.libraries if started else {}
    return "".join(f"{name}=={version}\n" for name, version in sorted(libraries.items()))
