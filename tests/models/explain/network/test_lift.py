"""Recovery by kind of edge, and its lift over the start, against scikit-learn and a hand-computed case."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from models.explain.network import Matrices, edge_recovery

N = 12
FIRMS = np.arange(N)


def edges(seed: int, share: float = 0.1) -> np.ndarray:
    found: np.ndarray = (np.random.default_rng(seed).random((N, N)) < share) & ~np.eye(N, dtype=bool)
    return found


def noisy(seed: int, edge_NN: np.ndarray, strength: float, dates: int = 15) -> Matrices:
    rng = np.random.default_rng(seed)
    return [(FIRMS, strength * edge_NN * rng.random((N, N)) + rng.normal(size=(N, N))) for _ in range(dates)]


def test_auc_of_each_kind_is_that_of_scikit_learn_against_pairs_without_any_edge() -> None:
    one, two = edges(0), edges(1) & ~edges(0)
    methods = {"shap": noisy(2, one | two, 2.0), "start": noisy(3, one, 1.0)}
    found = edge_recovery(methods, {"one": one, "two": two}, start="start")
    assert [(part.method, part.kind) for part in found] == [
        (method, kind) for kind in ("all", "one", "two") for method in ("shap", "start")
    ]
    other = ~(one | two | np.eye(N, dtype=bool))
    for part in found:
        weight = np.mean([value for _, value in methods[part.method]], axis=0)
        edge = {"all": one | two, "one": one, "two": two}[part.kind]
        assert part.auc == pytest.approx(roc_auc_score(edge[edge | other], weight[edge | other]))
        without = [
            roc_auc_score(
                edge[edge | other],
                np.mean([v for d, (_, v) in enumerate(methods[part.method]) if d != left], axis=0)[
                    edge | other
                ],
            )
            for left in range(15)
        ]
        assert part.error == pytest.approx(np.sqrt(14 / 15 * np.sum((without - np.mean(without)) ** 2)))
        assert (part.n_edges, part.n_pairs) == (edge.sum(), other.sum())
        assert (part.lift is None) == (part.method == "start")
    by = {(part.method, part.kind): part for part in found}
    lift = by["shap", "two"].lift
    assert lift == pytest.approx(by["shap", "two"].auc - by["start", "two"].auc)


def test_the_error_of_a_lift_is_that_of_a_difference_on_the_same_dates() -> None:
    """A method that doubles every weight of the start has the same AUC on every sample of dates."""
    one = edges(0)
    start = noisy(3, one, 1.0)
    doubled = [(firms, 2.0 * value) for firms, value in start]
    found = edge_recovery({"shap": doubled, "start": start}, {"one": one}, start="start")
    shap = found[0]
    assert (shap.lift, shap.lift_error) == (0.0, 0.0)
    assert shap.error > 0.01


def test_pairs_that_a_method_never_measured_are_not_compared() -> None:
    one = edges(0)
    start = noisy(3, one, 1.0)
    missing = []
    for firms, value in start:
        hidden = value.copy()
        hidden[:, 0] = np.nan
        missing.append((firms, hidden))
    found = edge_recovery({"shap": missing, "start": start}, {"one": one}, start="start")
    assert {part.n_edges for part in found} == {int(one[:, 1:].sum())}
    assert {part.n_pairs for part in found} == {N * N - N - (N - 1) - int(one[:, 1:].sum())}


def test_no_edge_gives_no_row_and_other_dates_are_refused() -> None:
    nothing = np.zeros((N, N), dtype=bool)
    start = noisy(3, nothing, 1.0)
    assert edge_recovery({"shap": start, "start": start}, {"one": nothing}, start="start") == []
    (alone, _) = edge_recovery({"shap": start[:1], "start": start[:1]}, {"one": edges(0)}, start="start")[:2]
    assert np.isnan(alone.error)
    with pytest.raises(ValueError, match="'shap' and 'start' have other dates or firms"):
        edge_recovery({"shap": start[:-1], "start": start}, {"one": edges(0)}, start="start")
