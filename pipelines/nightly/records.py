"""Whether the tables of the nights agree: nights, signals, books, accounts, holdings and promotions.

If one of them was deleted or rolled back, a night would begin again from nothing and buy a second book. So
every call compares them first. An interrupted night has rows in some of them and is not in ``nights`` yet;
there is at most one, after all nights that are done.
"""

import datetime as dt
from collections.abc import Collection, Iterator, Sequence

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.delivery import Request
from pipelines.nightly.play.journal import FILE, read_journal
from pipelines.nightly.result import FINISHED, count_signals, nights_folder, read_nights, sessions_of
from pipelines.nightly.schedule import SYSTEM, next_night, plan_nights
from pipelines.nightly.versions import alias_history


def require_agreement(config: Config, lake: Lake) -> None:
    """Require that the tables of a config's nights agree; DataError says which lacks what, and the cure."""
    problems = list(_problems(config, lake))
    if problems:
        raise DataError(
            f"The tables of the nights of {config.name} in the lake {lake.root} disagree: "
            f"{'; '.join(problems)}. What is held cannot be known from them, so nothing was decided. Restore "
            "the table from a backup or at its last complete version (docs/nightly.md, 'Tables that "
            "disagree'), or start again with an empty book by giving the config another name."
        )


def _problems(config: Config, lake: Lake) -> Iterator[str]:
    nights = read_nights(lake, config.name)
    done = nights.filter(pl.col("state").is_in(FINISHED)).sort("session")
    signals = count_signals(lake, config.name)
    booked = lake.rows("books", ["session", "trade"], pl.col("config") == config.name)
    books = booked.group_by("session").agg(orders=(pl.col("trade") != 0).sum())
    promotions = alias_history(lake, config.name)

    found = done.join(signals, on=["session", "version"], how="left", maintain_order="left")
    found = found.join(books, on="session", how="left", maintain_order="left")
    for table, what, stored, recorded in (
        ("signals", "rows", "signals", "rows"),
        ("books", "orders", "orders", "trades"),
    ):
        lacking = found.filter(pl.col(stored).fill_null(0) < pl.col(recorded))["session"]
        if len(lacking):
            yield f"{table} lacks {what} of {_sessions(lacking)}"
    used = pl.concat([done["version"], done["challenger"]]).drop_nulls().unique().sort()
    unknown = used.filter(~used.is_in(promotions["version"].drop_nulls().implode())).to_list()
    if unknown:
        yield f"promotions lacks {', '.join(unknown)}, which nights have used"
    if done.height:
        last = done["session"][-1]
        of_last = (pl.col("config") == config.name) & (pl.col("session") == last)
        account, holdings = (lake.rows(table, filters=of_last) for table in ("accounts", "holdings"))
        if account.is_empty():
            yield f"accounts lacks the night of {last}"
        elif holdings.height < account["positions"][0]:
            yield f"holdings lacks positions of the night of {last}"
    traces = {*books["session"], *promotions["session"].drop_nulls()}
    unrecorded = sorted(_unrecorded(config, lake, nights, signals, traces))
    if unrecorded:
        yield f"nights lacks {_sessions(unrecorded)}, of which other tables have rows"


def _unrecorded(
    config: Config, lake: Lake, nights: pl.DataFrame, signals: pl.DataFrame, traces: Collection[dt.date]
) -> set[dt.date]:
    """Return the sessions that were played but are not in ``nights``; none for one interrupted night."""
    known = set(nights["session"])
    last = max(nights.filter(pl.col("state").is_in(FINISHED))["session"], default=None)
    scored = set(signals.select("session", "version").iter_rows())
    absent = set(traces) - known
    priced = set(sessions_of(lake)) if absent else set()
    recorded = set()
    for path in nights_folder(config).glob(f"*/{FILE}"):
        try:
            session = dt.date.fromisoformat(path.parent.name)
            journal = None if session in known else read_journal(path.parent)
        except (ValueError, DataError):
            continue  # not the folder of a night, or damaged, which the night itself reports
        if journal is not None and journal.recorded:
            if session in absent or (session, journal.champion) in scored:
                recorded.add(session)
        elif journal is not None and priced and session not in priced:
            absent.discard(session)
    found = absent | recorded
    interrupted = last is not None or not recorded
    if len(found) == 1 and interrupted and (last is None or min(found) > last):
        return set()
    return found


def _sessions(sessions: Sequence[dt.date] | pl.Series) -> str:
    if len(sessions) == 1:
        return f"the night of {sessions[0]}"
    return f"{len(sessions)} nights ({sessions[0]} to {sessions[-1]})"


def already_done(config: Config, day: dt.date | None) -> str | None:
    """Return the sentence that there is nothing to do; None if there is, or if it is not certain."""
    lake = open_lake(config)
    day = next_night(config, lake, day)
    try:
        if not Request(config, lake, day, SYSTEM).unchanged():
            return None
        require_agreement(config, lake)
        plan = plan_nights(lake, config.name, day)
    except (ConfigError, DataError):
        return None  # the long way reports it
    return None if plan.sessions else done_sentence(config.name, plan.newest)


def done_sentence(config_name: str, session: dt.date) -> str:
    """Say that a night is done."""
    return f"{config_name}: the night of {session} is already done."
