"""The recovery of planted edges against direct counts and simulated rankings."""

from __future__ import annotations

import numpy as np
import pytest

from models.explain.network import edge_auc, mean_network, random_auc

NAN = float("nan")


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_auc_is_the_share_of_correctly_ordered_pairs_and_the_curve_counts_edges(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    planted = rng.random((30, 30)) < 0.1
    weight = np.abs(rng.normal(size=(30, 30)) + planted).astype(np.float64).round(decimals)
    valid = rng.random((30, 30)) < 0.7
    weight[~valid] = NAN
    result = edge_auc(weight, planted, valid)
    pairs = valid & ~np.eye(30, dtype=bool)
    edge_E, other_O = weight[pairs & planted], weight[pairs & ~planted]
    higher, tied = edge_E[:, None] > other_O, edge_E[:, None] == other_O
    assert result.auc == pytest.approx((higher + tied / 2).mean(), abs=1e-12)
    thresholds = np.concatenate([[np.inf], np.unique(weight[pairs])[::-1]])
    for rate_K, weight_M in (
        (result.true_positive_rate_K, edge_E),
        (result.false_positive_rate_K, other_O),
    ):
        expected = [(weight_M >= threshold).mean() for threshold in thresholds]
        np.testing.assert_allclose(rate_K, expected, atol=1e-12)
    assert (result.n_edges, result.n_pairs) == (len(edge_E), len(edge_E) + len(other_O))


def test_planted_leaders_are_recovered_and_wrong_attention_is_not() -> None:
    rng = np.random.default_rng(0)
    planted = np.zeros((20, 20), dtype=bool)
    planted[np.arange(2, 20), rng.integers(0, 2, 18)] = True  # [target, source]: firms 0 and 1 lead
    phi = [
        (np.arange(20), planted * rng.normal(size=20) + 1e-3 * rng.normal(size=(20, 20))) for _ in range(20)
    ]
    attention = [(np.arange(20), 1.0 * planted.T) for _ in range(2)]
    network, by_attention = mean_network(phi, 20), mean_network(attention, 20)
    found, wrong = (edge_auc(one.weight_NN, planted, one.observed) for one in (network, by_attention))
    assert found.auc > 0.999
    assert wrong.auc < 0.6
    assert random_auc(found.n_edges, found.n_pairs, seed=0) == pytest.approx(0.5, abs=0.02)


def test_an_auc_needs_edges() -> None:
    none, every = np.zeros((3, 3), dtype=bool), np.ones((3, 3), dtype=bool)
    with pytest.raises(ValueError, match="0 of 6 valid pairs"):
        edge_auc(np.ones((3, 3)), none, every)
