"""Which nights are to be played, against every order of sessions and finished nights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nights import store_nights

from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.result import ModelVersion
from pipelines.nightly.schedule import choose_nights, next_night

D = [dt.date(2024, 1, day) for day in (2, 3, 4, 5, 8)]


def test_a_new_config_begins_with_the_newest_session_alone() -> None:
    plan = choose_nights(D, [], None)
    assert (plan.sessions, plan.newest) == ((D[4],), D[4])


def test_missed_nights_are_caught_up_in_order() -> None:
    assert choose_nights(D, D[:2], None).sessions == (D[2], D[3], D[4])
    assert choose_nights(D, D[:2], D[3]).sessions == (D[2], D[3])


def test_a_night_that_was_skipped_is_not_played_after_a_later_one() -> None:
    assert choose_nights(D, [D[0], D[2]], None).sessions == (D[3], D[4])


def test_a_finished_night_is_not_played_again() -> None:
    assert choose_nights(D, D, None).sessions == ()
    assert choose_nights(D, D[:3], D[1]).sessions == ()


def test_data_that_end_before_the_last_night_are_refused() -> None:
    with pytest.raises(DataError, match=r"prices end on 2024-01-04, before the last night, 2024-01-08"):
        choose_nights(D[:3], D, None)


def test_a_first_night_that_was_interrupted_is_played_first() -> None:
    assert choose_nights(D, [], None, begun=D[2]).sessions == tuple(D[2:])
    assert choose_nights(D, [], D[1], begun=D[2]).sessions == (D[1],)


def test_a_session_before_the_last_night_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"before the last night, 2024-01-05, .* in order"):
        choose_nights(D, [D[3]], D[1])


def test_a_day_without_prices_names_its_neighbours() -> None:
    with pytest.raises(ConfigError, match=r"2024-01-06 is not a session.*2024-01-05 and 2024-01-08"):
        choose_nights(D, [], dt.date(2024, 1, 6))


def test_a_day_after_the_data_is_missing_data() -> None:
    with pytest.raises(DataError, match=r"prices end on 2024-01-08.*2024-01-09"):
        choose_nights(D, [], dt.date(2024, 1, 9))
    with pytest.raises(DataError, match="no prices"):
        choose_nights([], [], None)


@given(
    sessions=st.sets(st.integers(0, 40), min_size=1),
    played=st.sets(st.integers(0, 40)),
    wanted=st.none() | st.integers(0, 40),
)
def test_the_plan_is_every_session_between_the_last_night_and_the_wanted_one(
    sessions: set[int], played: set[int], wanted: int | None
) -> None:
    def day(number: int) -> dt.date:
        return dt.date(2024, 1, 1) + dt.timedelta(days=number)

    given_sessions, finished = sorted(map(day, sessions)), sorted(map(day, played & sessions))
    target = None if wanted is None else day(wanted)
    try:
        plan = choose_nights(given_sessions, finished, target)
    except (ConfigError, DataError):
        assert target is not None
        late = bool(finished) and target < finished[-1] and target not in finished
        assert late or target not in given_sessions
        return
    newest = target or given_sessions[-1]
    if newest in finished:
        assert plan.sessions == ()
    elif finished:
        assert list(plan.sessions) == [s for s in given_sessions if finished[-1] < s <= newest]
    else:
        assert plan.sessions == (newest,)


def growing(tiny: Mapping[str, Any], **source: object) -> Config:
    return check_config({**tiny, "source": {**tiny["source"], **source}}, origin="growing")


def test_a_market_that_grows_has_a_new_session_every_night(
    tiny_settings: Mapping[str, Any], tmp_path: Path
) -> None:
    config, lake = growing(tiny_settings, grows_from="2015-04-02"), Lake(tmp_path)
    assert next_night(config, lake, None) == dt.date(2015, 4, 2)
    assert next_night(config, lake, dt.date(2015, 3, 2)) == dt.date(2015, 3, 2), "as asked for"
    store_nights(lake, config, {dt.date(2015, 4, 2): ModelVersion("run", "model")})
    assert next_night(config, lake, None) == dt.date(2015, 4, 3), "every weekday is a session"
    store_nights(lake, config, {dt.date(2015, 4, 3): ModelVersion("run", "model")})
    assert next_night(config, lake, None) == dt.date(2015, 4, 6), "after a weekend"
    assert next_night(growing(tiny_settings), lake, None) is None, "the newest session"
