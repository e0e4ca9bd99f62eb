"""``peerglass nightly --dry-run``: what a night would do. Nothing is written and nothing is locked."""

from __future__ import annotations

import datetime as dt

from pipelines.config.schema import Config
from pipelines.dataset.tables import input_versions
from pipelines.lake.lake import Lake
from pipelines.nightly.clock import Clock
from pipelines.nightly.plan import choose_nights, finished_nights, sessions_of
from pipelines.nightly.registry.aliases import alias_history, challenger, champion
from pipelines.nightly.sources import delivered_sessions
from pipelines.nightly.table import finished_before, read_nights
from pipelines.nightly.training.due import retraining_due


def describe_plan(config: Config, lake: Lake, day: dt.date | None, clock: Clock) -> str:
    """Describe the sessions that would be played, the training that is due, the models and the data.

    Source files and the simulated market are read to learn which sessions they have. A live source is not
    asked: its sessions are those that its exchange has finished.
    """
    nights = read_nights(lake, config.name)
    stored = sessions_of(lake)
    sessions = sorted({*stored, *delivered_sessions(config, lake, day, clock)})
    plan = choose_nights(sessions, finished_nights(nights), day)
    new = [session for session in plan.sessions if session not in set(stored)]
    lines = [f"{config.name}: dry run, nothing is written"]
    if not plan.sessions:
        lines.append(f"  nights      the night of {plan.newest} is already done")
    else:
        listed = ", ".join(map(str, plan.sessions[:5])) + (" ..." if len(plan.sessions) > 5 else "")
        lines.append(f"  nights      {len(plan.sessions)} to play: {listed}")
        lines.append(f"  new         {len(new)} of them not in the lake yet" if new else "  new         none")
        first = plan.sessions[0]
        due = retraining_due(
            config.nightly.retrain,
            [session for session in sessions if session <= first],
            alias_history(lake, config.name),
            finished_before(nights, first),
        )
        said = "not due" if due is None else f"due on {first}: {due.why}; the version becomes {due.alias}"
        lines.append(f"  training    {said}")
    named = {"champion": champion(lake, config.name), "challenger": challenger(lake, config.name)}
    lines += [f"  {alias:<12}{version or 'none'}" for alias, version in named.items()]
    versions = input_versions(lake) if stored else {}
    listed = ", ".join(f"{table} {version}" for table, version in sorted(versions.items())) or "none yet"
    lines.append(f"  data        {listed}")
    return "\n".join(lines)
