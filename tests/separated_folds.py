"""The rule that every fold obeys: no label of a segment touches a session of another segment."""

from __future__ import annotations

import numpy as np

from backtest.splits.folds import Fold


def assert_separated(fold: Fold, delay: int, horizon: int, embargo: int) -> None:
    """Enumerate every label span as a set of sessions and compare it with all other segments.

    A segment that another one follows ends more than ``delay + horizon + embargo`` sessions before it.
    """
    segments = {"train": fold.train, "valid": fold.valid, "test": fold.test}
    for name, segment in segments.items():
        assert len(segment)
        assert not segment.flags.writeable
        assert (np.diff(segment) > 0).all()
        spans = {s for t in segment.tolist() for s in range(t + delay + 1, t + delay + horizon + 1)}
        for other, sessions in segments.items():
            if other != name:
                assert spans.isdisjoint(sessions.tolist())
                assert set(segment.tolist()).isdisjoint(sessions.tolist())
                distance = sessions[None, :] - segment[:, None]
                later = distance[distance > 0]
                assert not len(later) or later.min() > delay + horizon + embargo


def assert_in_order(fold: Fold) -> None:
    """Training ends before validation starts, which ends before the test starts; all without holes."""
    assert fold.train[-1] < fold.valid[0]
    assert fold.valid[-1] < fold.test[0]
    for segment in (fold.train, fold.valid, fold.test):
        np.testing.assert_array_equal(segment, np.arange(segment[0], segment[-1] + 1))
