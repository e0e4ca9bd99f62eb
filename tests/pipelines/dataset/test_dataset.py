"""Folds from a config: no label of a segment extends into a later segment; targets and notes of a dataset."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backtest.splits.folds import Fold
from features.library.factors import statistical_factors
from features.panel.asof import Statements
from features.panel.panel import Panel
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.dataset.folds import describe_tested, fold_table, plan_folds
from pipelines.errors import DataError

START = np.datetime64("2001-01-01")


def sessions_only(n_sessions: int, first: int) -> Dataset:
    """A dataset of one firm that is in the universe from session ``first`` on; its values are not used."""
    ones_TN = np.ones((n_sessions, 1))
    universe_TN = np.arange(n_sessions)[:, None] >= first
    panel = Panel(
        dates_T=START + np.arange(n_sessions),
        tickers_N=("AAA",),
        close_TN=ones_TN,
        open_TN=None,
        high_TN=None,
        low_TN=None,
        raw_close_TN=ones_TN,
        volume_TN=None,
        total_return_index_TN=ones_TN,
        delisted_TN=ones_TN < 0,
        gap_TN=ones_TN < 0,
        unknown_TN=ones_TN < 0,
        group_TN=np.zeros((n_sessions, 1), dtype=np.int16),
        groups_S=("g",),
        statements=Statements({}, range(1), ones_TN),
        hazards=(),
    )
    return Dataset(
        panel=panel,
        universe_TN=universe_TN,
        channels_TNC=np.zeros((n_sessions, 1, 1), dtype=np.float32),
        characteristics_TNF=np.zeros((n_sessions, 1, 1), dtype=np.float32),
        labels={},
        target_TN=np.zeros((n_sessions, 1), dtype=np.float32),
        channel_names=("return",),
        characteristic_names=("return_1",),
        notes=(),
    )


def config(folds: dict[str, Any], label: dict[str, Any]) -> Config:
    raw = {
        "name": "folds",
        "source": {"kind": "sample"},
        "lake": "lake",
        "folds": folds,
        "label": label,
        "models": {"zero": {}},
    }
    return check_config(raw, origin="test")


def label_end(sessions: np.ndarray[Any, Any], label: dict[str, Any]) -> int:
    """Last session of any label of a segment, at any delay; computed here and not taken from Config."""
    delays = [label["delay"], *label["extra_delays"]]
    return max(int(t) + int(delay) + int(label["horizon"]) for t in sessions for delay in delays)


LABELS = st.fixed_dictionaries(
    {
        "horizon": st.integers(1, 12),
        "delay": st.integers(0, 5),
        "extra_delays": st.lists(st.integers(0, 15), max_size=3),
    }
)


def check_fold(fold: Fold, label: dict[str, Any], embargo: int) -> None:
    for earlier, later in ((fold.train, fold.valid), (fold.valid, fold.test), (fold.train, fold.test)):
        assert len(earlier)
        assert len(later)
        assert (np.diff(earlier) == 1).all()
        assert label_end(earlier, label) + embargo < later[0]


@settings(max_examples=200)
@given(
    label=LABELS,
    folds=st.fixed_dictionaries(
        {
            "scheme": st.sampled_from(["expanding", "rolling"]),
            "train": st.integers(1, 40),
            "valid": st.integers(1, 20),
            "test": st.integers(1, 20),
            "embargo": st.integers(0, 8),
            "anchor": st.sampled_from(["end", "start"]),
        }
    ),
    step=st.none() | st.integers(0, 10),
    sessions=st.integers(20, 300),
    first=st.integers(0, 30),
)
def test_no_label_of_a_segment_reaches_a_later_one(
    label: dict[str, Any], folds: dict[str, Any], step: int | None, sessions: int, first: int
) -> None:
    assume(first < sessions)
    plan = {**folds, "step": None if step is None else folds["test"] + step}
    dataset = sessions_only(sessions, first)
    gap = max([label["delay"], *label["extra_delays"]]) + label["horizon"] + folds["embargo"]
    needed = first + sum(folds[name] for name in ("train", "valid", "test")) + 3 * gap - folds["embargo"]
    if sessions < needed:
        with pytest.raises(
            DataError, match=rf"folds: One fold needs {needed} sessions .* there are {sessions}"
        ):
            plan_folds(dataset, config(plan, label))
        return
    made = plan_folds(dataset, config(plan, label))
    assert made, "there are enough sessions for a fold"
    tested = np.concatenate([fold.test for fold in made])
    assert len(np.unique(tested)) == len(tested), "a session is tested once"
    for fold in made:
        check_fold(fold, label, folds["embargo"])
        assert fold.train[0] >= first, "no training before there is a universe"
        assert label_end(fold.test, label) < sessions
        assert (len(fold.valid), len(fold.test)) == (folds["valid"], folds["test"])
        assert len(fold.train) >= folds["train"]
        if folds["scheme"] == "rolling":
            assert len(fold.train) == folds["train"]
    if folds["anchor"] == "end":
        assert label_end(made[-1].test, label) == sessions - 1, "the newest session with a label is tested"


@settings(max_examples=100)
@given(
    label=LABELS,
    embargo=st.integers(0, 8),
    days=st.lists(st.integers(0, 200), min_size=4, max_size=4, unique=True).map(sorted),
    first=st.integers(0, 30),
)
def test_no_label_of_a_dated_segment_reaches_a_later_one(
    label: dict[str, Any], embargo: int, days: list[int], first: int
) -> None:
    names = ("train_from", "valid_from", "test_from", "test_to")
    dates = [dt.date(2001, 1, 1) + dt.timedelta(days=day) for day in days]
    plan = {"scheme": "dated", "embargo": embargo, **dict(zip(names, dates, strict=True))}
    try:
        (fold,) = plan_folds(sessions_only(220, first), config(plan, label))
    except DataError as error:
        assert "folds: " in str(error)  # noqa: PT017 (either answer is right)
        gap = max([label["delay"], *label["extra_delays"]]) + label["horizon"] + embargo
        assert min(days[1] - max(days[0], first), days[2] - days[1]) <= gap, "there was room for a fold"
        return
    check_fold(fold, label, embargo)
    assert fold.train[0] == max(days[0], first)
    assert (fold.test[0], fold.test[-1]) == (days[2], days[3])


def test_the_purge_covers_the_extra_delays() -> None:
    plan = {"scheme": "rolling", "train": 10, "valid": 5, "test": 5, "embargo": 1, "anchor": "start"}
    (fold,) = plan_folds(
        sessions_only(40, 0),
        config({**plan, "max_folds": 1}, {"horizon": 1, "delay": 0, "extra_delays": [3]}),
    )
    assert fold.train.tolist() == list(range(10))
    assert fold.valid.tolist() == [15, 16, 17, 18, 19]  # 9 + delay 3 + horizon 1 + embargo 1 < 15
    assert fold.test.tolist() == [25, 26, 27, 28, 29]


def test_what_is_tested_and_what_is_not_is_said() -> None:
    def said(folds: dict[str, Any], first: int = 3) -> str:
        dataset, plan = sessions_only(60, first), config(folds, {"horizon": 2, "delay": 1})
        return describe_tested(dataset, plan, plan_folds(dataset, plan))

    # gap 4; labels are known to session 56 (2001-02-26); START is 2001-01-01
    walk = {"scheme": "expanding", "train": 10, "valid": 5, "test": 5, "embargo": 1}
    assert said({**walk, "step": 8}) == (
        "Tests cover 20 of 57 usable dates, 2001-01-29 to 2001-02-26. Not tested: 25 before the first "
        "test, for training and validation (2001-01-04 to 2001-01-28); 9 between tests (2001-02-03 to "
        "2001-02-21); 3 at the end, whose labels are not known yet (2001-02-27 to 2001-03-01)."
    )
    assert said({**walk, "anchor": "start", "max_folds": 1}) == (
        "Tests cover 5 of 57 usable dates, 2001-01-27 to 2001-01-31. Not tested: 23 before the first "
        "test, for training and validation (2001-01-04 to 2001-01-26); 26 after the last test, although "
        "their labels are known (2001-02-01 to 2001-02-26); 3 at the end, whose labels are not "
        "known yet (2001-02-27 to 2001-03-01)."
    )
    groups = {"scheme": "combinatorial", "groups": 4, "test_groups": 2, "embargo": 1}
    assert said(groups) == (
        "Tests cover 54 of 57 usable dates, 2001-01-04 to 2001-02-26. Not tested: 3 at the end, whose labels "
        "are not known yet (2001-02-27 to 2001-03-01)."
    )
    dated = {"scheme": "dated", "train_from": "2001-01-01", "valid_from": "2001-01-20", "embargo": 0}
    assert said({**dated, "test_from": "2001-02-01", "test_to": "2001-02-28"}) == (
        "Tests cover 28 of 57 usable dates, 2001-02-01 to 2001-02-28. Not tested: 28 before the first "
        "test, for training and validation (2001-01-04 to 2001-01-31); 1 at the end, whose "
        "labels are not known yet (2001-03-01)."
    )


def test_the_table_of_folds_shows_the_stretches_of_combinatorial_folds() -> None:
    label = {"horizon": 1, "delay": 0}
    plan = config({"scheme": "combinatorial", "groups": 4, "test_groups": 2, "embargo": 0}, label)
    dataset = sessions_only(41, 0)
    table = fold_table(dataset, plan_folds(dataset, plan))
    assert table["name"].to_list()[:2] == ["groups 1 and 2", "groups 1 and 3"]
    second = table.row(1, named=True)  # groups of 10 sessions: tested 0-9 and 20-29, validated 31-39
    day = dt.timedelta(days=1)
    start = dt.date(2001, 1, 1)
    assert second["test_spans"] == [[start, start + 9 * day], [start + 20 * day, start + 29 * day]]
    assert second["train_spans"] == [[start + 11 * day, start + 18 * day]]
    assert second["valid_spans"] == [[start + 31 * day, start + 39 * day]]
    assert (second["n_train"], second["n_valid"], second["n_test"]) == (8, 9, 20)
    walk = config({"scheme": "rolling", "train": 9, "valid": 5, "test": 5, "embargo": 0}, label)
    rows = fold_table(dataset, plan_folds(dataset, walk))
    assert rows["name"].null_count() == rows.height > 1
    for name in ("train", "valid", "test"):
        ends = zip(rows[f"{name}_from"], rows[f"{name}_to"], strict=True)
        assert rows[f"{name}_spans"].to_list() == [[list(pair)] for pair in ends]


def test_a_universe_limit_without_data_is_reported_as_not_applied(
    tiny_config: Config, tiny_tables: dict[str, pl.DataFrame]
) -> None:
    without_volume = tiny_tables["prices"].with_columns(pl.lit(None, dtype=pl.Float64).alias("volume"))
    rule = tiny_config.universe.model_copy(update={"min_dollar_volume": 1e12})
    config = tiny_config.model_copy(update={"universe": rule})
    notes = build_dataset({**tiny_tables, "prices": without_volume}, config).notes
    assert any("min_dollar_volume" in note and "not applied" in note for note in notes)


def test_a_formula_that_a_list_of_characteristics_leaves_out_is_named(
    tiny_config: Config, tiny_tables: dict[str, pl.DataFrame]
) -> None:
    update: dict[str, Any] = {
        "expressions": {"gap": "open / delay(close, 1)", "body": "close / open", "tail": "low / open"},
        "characteristics": ("return_1", "gap"),
        "channels": ("return", "body"),
    }
    features = tiny_config.features.model_copy(update=update)
    dataset = build_dataset(tiny_tables, tiny_config.model_copy(update={"features": features}))
    assert [note for note in dataset.notes if "no model reads: tail;" in note]
    every = features.model_copy(update={"characteristics": None})
    dataset = build_dataset(tiny_tables, tiny_config.model_copy(update={"features": every}))
    assert not [note for note in dataset.notes if "no model reads" in note]


def test_models_are_fitted_to_the_factor_residual_and_evaluated_on_the_label(
    tiny_config: Config, tiny_tables: dict[str, pl.DataFrame]
) -> None:
    label = tiny_config.label.model_copy(update={"transform": "demean"})
    plain = build_dataset(tiny_tables, tiny_config.model_copy(update={"label": label}))
    label = label.model_copy(update={"residualise_factors": 1})
    config = tiny_config.model_copy(update={"label": label})
    beyond = build_dataset(tiny_tables, config)
    assert any("on the residual of 1 statistical factor," in note for note in beyond.notes)
    for delay, label_TN in plain.labels.items():
        np.testing.assert_array_equal(beyond.labels[delay], label_TN)
    known_TN = np.isfinite(plain.target_TN)
    np.testing.assert_array_equal(np.isfinite(beyond.target_TN), known_TN)
    first = int(np.flatnonzero((np.nan_to_num(beyond.target_TN - plain.target_TN) != 0).any(axis=1))[0])
    assert first >= 126, "no factors are known before half a year"
    dates = np.flatnonzero(known_TN.any(axis=1))
    said = f" {(dates < first).sum()} of {len(dates)} dates keep the whole label: too few sessions"
    assert [note for note in beyond.notes if said in note]
    assert not [note for note in plain.notes if "whole label" in note]
    late_TN = known_TN.copy()
    late_TN[:first] = False
    assert beyond.target_TN[late_TN].var() < plain.target_TN[late_TN].var()
    # the target looks no further ahead than the label
    t = first + 40
    reach = 1 + config.label.delay + config.label.horizon
    cut = build_dataset(
        {**tiny_tables, "prices": tiny_tables["prices"].filter(pl.col("date") <= beyond.panel.dates_T[t])},
        config,
    )
    closed, listed = slice(0, t - reach + 1), np.isin(beyond.panel.tickers_N, cut.panel.tickers_N)
    np.testing.assert_array_equal(cut.target_TN[closed], beyond.target_TN[closed, listed])


def test_the_target_of_a_firm_without_loadings_is_its_return_minus_the_mean_of_the_date(
    tiny_config: Config, tiny_tables: dict[str, pl.DataFrame]
) -> None:
    label = tiny_config.label.model_copy(update={"transform": "raw", "residualise_factors": 1})
    made = build_dataset(tiny_tables, tiny_config.model_copy(update={"label": label}))
    label_TN = np.where(made.universe_TN, made.labels[label.delay], np.nan)
    estimates = statistical_factors(made.panel, 1)
    compared = 0
    for one, end in zip(estimates, [e.start for e in estimates[1:]] + [len(label_TN)], strict=True):
        others = np.setdiff1d(np.arange(label_TN.shape[1]), one.firms_L)
        for t in range(one.start, end):
            known = others[np.isfinite(label_TN[t, others])]
            if not len(known):
                continue
            expected = label_TN[t, known] - np.nanmean(label_TN[t])
            np.testing.assert_allclose(made.target_TN[t, known], expected, atol=1e-7)
            compared += len(known)
    assert compared > 20, "some firms must be too young for loadings"


def test_targets_of_every_horizon_are_residuals_of_a_regression_of_the_labels(
    tiny_config: Config, tiny_tables: dict[str, pl.DataFrame]
) -> None:
    update = {"transform": "raw", "residualise_factors": 1, "horizon": 21, "shorter_horizons": (1, 5)}
    label = tiny_config.label.model_copy(update=update)
    made = build_dataset(tiny_tables, tiny_config.model_copy(update={"label": label}))
    estimates, n_sessions = statistical_factors(made.panel, 1), made.panel.n_sessions
    assert made.path_TNK is not None
    of_horizons = {21: (made.labels[label.delay], made.target_TN)}
    for k, (horizon, label_TN) in enumerate(made.shorter_labels.items()):
        of_horizons[horizon] = label_TN, made.path_TNK[:, :, k]
    for horizon, (label_TN, target_TN) in of_horizons.items():
        gaps, size = [], []
        for one, end in zip(estimates, [e.start for e in estimates[1:]] + [n_sessions], strict=True):
            for t in range(one.start, end):
                here_L = made.universe_TN[t, one.firms_L] & np.isfinite(label_TN[t, one.firms_L])
                firms, deviation_n = one.firms_L[here_L], one.deviation_L[here_L]
                if len(firms) < 4:
                    continue
                design = np.column_stack((1.0 / deviation_n, one.loadings_LK[here_L]))
                found = np.linalg.lstsq(design, label_TN[t, firms] / deviation_n, rcond=None)[0]
                expected = label_TN[t, firms] - deviation_n * (design @ found)
                gaps.append(target_TN[t, firms] - expected)
                size.append(expected)
        assert len(size) > 100
        # not 0: outliers are clipped before the regression
        assert np.concatenate(gaps).std() < 0.1 * np.concatenate(size).std(), horizon
