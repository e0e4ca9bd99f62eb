"""Model versions: compared by their signals of the nights that all of them forecast, promoted and demoted."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.market import Market, build_market
from pipelines.dataset.tables import input_versions, open_lake, read_market_tables
from pipelines.errors import ConfigError, DataError, PromotionRefused, TrackingError
from pipelines.lake.lake import Lake
from pipelines.nightly import versions
from pipelines.nightly.guard import judge_promotion, night_signals
from pipelines.nightly.result import Promotion
from pipelines.nightly.spool import mirror_aliases
from pipelines.progress import Progress
from pipelines.results.evaluate import evaluate
from pipelines.results.evaluate_run import evaluation_record
from pipelines.results.evaluate_signals import with_tradable_delay
from pipelines.results.run_comparison import ComparedModel, choose_delay_and_book, daily_series, tried_by_now
from pipelines.run.completeness import forecast_by_all
from pipelines.run.record import git_commit


def is_version(name: str) -> bool:
    """Whether a name of ``peerglass compare`` is that of a model version: ``RUN/MODEL`` or an alias."""
    return name in ("champion", "challenger") or ("/" in name and not Path(name).is_dir())


def open_versions(
    names: Sequence[str], config: Config | None, output: Path, delay: int | None, book: str | None
) -> list[ComparedModel]:
    """Open versions, measured on the nights that all forecast; nothing is stored, no trial is counted."""
    found = [versions.find_version(name, config, output) for name in names]
    settings, _ = with_tradable_delay(found[0][1].config if config is None else config)
    settings = settings.model_copy(update={"models": {}})
    progress = Progress()
    lake = open_lake(settings, progress.note)
    market = _newest_market(settings, lake, progress)
    signals = night_signals(lake, settings, market, dict(found))
    common_T = forecast_by_all(signals.values())
    if not common_T.any():
        raise DataError(
            f"No session was forecast at night by all of {', '.join(map(str, signals))}; compare them after "
            "some nights with a challenger."
        )
    sessions = np.flatnonzero(common_T)
    forecasts = {
        str(version): {0: np.where(common_T[:, None], one_TN, np.nan)} for version, one_TN in signals.items()
    }
    delay, book = choose_delay_and_book(
        f"The config {settings.name}", delay, settings.label.delays, book, list(settings.backtest.books)
    )
    with progress.stage("backtest"):
        every = np.arange(sessions[0], sessions[-1] + 1)
        measured = evaluate(forecasts, market, settings, sessions=every, against=False)
    record = evaluation_record(settings, market.panel, sessions, 0, git_commit())
    tried = tried_by_now(record, settings, delay, Path(settings.output))
    return [
        ComparedModel(
            name=str(version),
            run=run,
            record=record,
            model=version.model,
            book=book,
            delay=delay,
            tried=tried,
            daily=daily_series(
                measured["ic_series"], measured["equity"], model=str(version), delay=delay, book=book
            ),
        )
        for version, run in found
    ]


def _newest_market(config: Config, lake: Lake, progress: Progress) -> Market:
    with progress.stage("prices"):
        return build_market(read_market_tables(lake, input_versions(lake)), config)


def promote(
    name: str,
    config: Config | None,
    output: Path,
    echo: Callable[[str], None],
    *,
    force: bool = False,
    why: str | None = None,
) -> None:
    """Make a version the champion, if the guard allows it or with ``force``; MLflow may follow later."""
    if force and not (why or "").strip():
        raise ConfigError("--force overrides the guard and is recorded with a reason; add --why TEXT.")
    version, run = versions.find_version(name, config, output)
    settings = run.config if config is None else config
    versions.require_complete(version, run)
    progress = Progress()
    lake = open_lake(settings, progress.note)
    current = versions.champion(lake, settings.name)
    if current == version:
        echo(f"{version} is the champion of {settings.name} already.")
    else:
        judgement = judge_promotion(settings, lake, _newest_market(settings, lake, progress), version)
        if not judgement.passed and not force:
            raise PromotionRefused(
                f"{version} is not promoted. {' '.join(judgement.reasons)} To promote it all the same, add "
                "--force --why TEXT."
            )
        why = why or "the guard passed"
        evidence = {**judgement.evidence, "refused": list(judgement.reasons)}
        reason = versions.Reason(why, versions.this_user(), forced=not judgement.passed, evidence=evidence)
        versions.set_alias(lake, settings.name, "champion", version, reason, decided_on={"champion": current})
        echo(f"{version} is the champion of {settings.name} from the next night on. {_said(judgement)}")
    _mirror(settings, lake, progress)


def demote(config: Config, why: str, echo: Callable[[str], None]) -> None:
    """Make the champion before the current one champion again; MLflow's aliases follow if they can be set."""
    if not why.strip():
        raise ConfigError("A demotion is recorded with a reason; give it with --why TEXT.")
    progress = Progress()
    lake = open_lake(config, progress.note)
    current, earlier = versions.champion(lake, config.name), versions.previous_champion(lake, config.name)
    if current is None or earlier is None:
        beside = "" if current is None else f" from {current}"
        raise ConfigError(
            f"{config.name} has no earlier champion to go back to{beside}; promote another version instead."
        )
    versions.require_complete(earlier, versions.open_version(earlier, Path(config.output)))
    reason = versions.demotion(current, why, versions.this_user())
    versions.set_alias(lake, config.name, "champion", earlier, reason, decided_on={"champion": current})
    echo(f"{earlier} is the champion of {config.name} again, in place of {current}.")
    _mirror(config, lake, progress)


def _mirror(config: Config, lake: Lake, progress: Progress) -> None:
    """Copy the aliases to MLflow. The lake has them already, so an unreachable store is not the end."""
    try:
        mirror_aliases(config, lake, progress)
    except TrackingError as error:
        raise TrackingError(
            f"{error} The champion is changed; MLflow's aliases follow with the next night, or with "
            "'peerglass track sync CONFIG'."
        ) from None


def config_of_option(path: Path | None, overrides: list[str]) -> Config | None:
    """Load the config that the option ``--config`` names; None without one."""
    if path is None and overrides:
        raise ConfigError("--set changes settings of a config; add --config CONFIG.")
    return None if path is None else load_config(path, overrides)


def _said(judgement: Promotion) -> str:
    """What the guard found, in a sentence."""
    if not judgement.passed:
        return f"The guard was overridden: {' '.join(judgement.reasons)}"
    found = judgement.evidence
    if found.get("difference") is None:
        return "The guard passed; there was no champion to compare it with."
    interval = f"{100 - 200 * found['level']:g}% interval {found['lower']:+.4f} to {found['upper']:+.4f}"
    return (
        f"The guard passed: over {found['sessions']} shadow sessions its mean rank IC is "
        f"{found['rank_ic']:.4f}, and that of the champion {found['rank_ic_champion']:.4f} "
        f"(difference {found['difference']:+.4f}, {interval})."
    )
