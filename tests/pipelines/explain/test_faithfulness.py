"""Which peers are measured if a part of the universe is drawn, on models that were not trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from attribution_data import random_weights

from models.attention.encoder import EncoderConfig
from models.batch import PanelTensors
from models.explain.faithful.study import Faithfulness, FaithfulPart, FittedPart, measure_part
from models.explain.peers import PeerAttribution, PeerGameConfig, drawn_firms, explain_peers
from models.forecaster import Forecaster
from models.forecasters.self_peer import SelfPeer, SelfPeerConfig
from models.forecasters.temporal_peer import TemporalPeer, TemporalPeerConfig
from pipelines.config.sections import ExplainConfig
from pipelines.explain.games import effort_of

FIRMS, DRAWN = 30, 4
TRAIN, TEST = np.arange(8, 14), np.arange(14, 24)
SETTINGS = ExplainConfig(max_peers=DRAWN, network_permutations=2)


def market(*, comes_and_goes: bool = False) -> PanelTensors:
    """Noise on 24 sessions of 30 firms; every third firm can be missing on every other session."""
    rng, shape = np.random.default_rng(0), (24, FIRMS)
    mask_TN = np.ones(shape, dtype=bool)
    if comes_and_goes:
        mask_TN[1::2, ::3] = False
    return PanelTensors.from_arrays(
        channels_TNC=rng.normal(size=(*shape, 2)),
        characteristics_TNF=rng.normal(size=(*shape, 3)),
        mask_TN=mask_TN,
        group_TN=np.tile(np.arange(FIRMS) % 3, (24, 1)),
        target_TN=rng.normal(size=shape),
        window=8,
    )


def one_layer(data: PanelTensors) -> Forecaster:
    """A model that measures drawn followers with all their leaders."""
    config = TemporalPeerConfig(encoder=EncoderConfig(width=8, heads=2), peer_heads=2)
    return random_weights(TemporalPeer(config, data.shape))


def two_layers(data: PanelTensors) -> Forecaster:
    """A model that measures all followers of drawn leaders."""
    return random_weights(SelfPeer(SelfPeerConfig(width=8, heads=2, layers=2), data.shape))


def measured(
    data: PanelTensors, module: Forecaster, fits: int, settings: ExplainConfig = SETTINGS
) -> list[FaithfulPart]:
    """Measure fits of one fold, each with two dates of the network."""
    parts = []
    config = PeerGameConfig(settings.network_permutations, settings.max_peers, settings.seed)
    drawn = drawn_firms(data.mask_TN[TEST].numpy(), config)
    for place in range(fits):
        network = explain_peers(module, data, TEST[[place, place + 4]], config, drawn=drawn)
        part = FittedPart(0, place, place, module, data, TRAIN, TEST, drawn)
        parts.append(measure_part(part, network, effort_of(settings)))
    return parts


def tables_of(
    parts: Sequence[FaithfulPart], network: Sequence[PeerAttribution], folds: Sequence[int], seed: int = 0
) -> dict[str, pl.DataFrame]:
    """Tables of all measures but the maps."""
    rows = Faithfulness(parts, network, folds, FIRMS, seed).rows()
    return {name: pl.DataFrame(own, infer_schema_length=None) for name, own in rows.items()}


@pytest.mark.parametrize("build", [one_layer, two_layers])
def test_peers_of_every_fit_are_ranked_in_a_universe_of_which_a_part_is_drawn(build: object) -> None:
    """Followers are drawn, then firms whose peers are ranked: these must be among the former."""
    data = market()
    parts = measured(data, build(data), fits=5)  # type: ignore[operator]
    assert [len(part.measured["peers"]) for part in parts] == [1] * 5
    firms = parts[0].firms
    assert firms is not None
    others = ~np.eye(len(firms.firms_n), dtype=bool)
    assert np.isfinite(firms.values["shap"][others]).all(), "a map of firms shows measured pairs"


def test_no_peers_are_ranked_if_followers_have_fewer_than_three_that_were_measured() -> None:
    data = market()
    (part,) = measured(data, two_layers(data), 1, SETTINGS.model_copy(update={"max_peers": 2}))
    assert part.measured["peers"] == []


@pytest.mark.parametrize("build", [one_layer, two_layers])
def test_drawn_firms_are_the_same_on_all_dates(build: object) -> None:
    data = market(comes_and_goes=True)
    config = PeerGameConfig(permutations=2, max_firms=12)
    network = explain_peers(build(data), data, TEST, config)  # type: ignore[operator]
    seen = []
    for date in network:
        known_NN = np.isfinite(date.phi_NN)
        of_date = known_NN.any(axis=1) if build is one_layer else known_NN.any(axis=0)
        seen.append(set(date.firms_N[of_date].tolist()))
    every = set.union(*seen)
    assert len(every) == 12
    for date, firms in zip(network, seen, strict=True):
        assert firms == every & set(date.firms_N.tolist()), "no other firm takes the place of one that left"
    assert any(firms != every for firms in seen), "the case was made"
    small = PeerGameConfig(max_firms=FIRMS)
    assert drawn_firms(data.mask_TN[TEST].numpy(), small) is None


def test_the_seed_of_the_section_reaches_every_draw() -> None:
    """The firms, the shuffled parameters, the orders, the backgrounds and the bootstraps."""
    data = market()
    module = one_layer(data)
    tables, firms = [], []
    for seed in (0, 1):
        part = measured(data, module, 1, SETTINGS.model_copy(update={"seed": seed}))[0]
        firms.append([one.firm for one in [*part.measured["days"], *part.measured["peers"]]])
        tables.append(tables_of([part], part.shared, (0, 0), seed))
    assert firms[0] != firms[1]
    for name in ("verdict", "faithfulness", "inference"):
        columns = [
            frame[name].select(cs.by_name("value", "low", "high", require_all=False)) for frame in tables
        ]
        if name == "inference":
            columns = [frame[name].select("moved", "moved_low").drop_nulls() for frame in tables]
        assert columns[0].height
        assert not columns[0].equals(columns[1]), name
    parts = measured(data, module, 3)
    verdicts = [tables_of(parts, parts[0].shared, (0, 0), seed)["inference"]["ic_low"] for seed in (0, 1)]
    assert verdicts[0].to_list() != verdicts[1].to_list(), "the bootstrap alone"


def test_stability_of_peers_is_measured() -> None:
    """Between seeds on one session, between neighbouring sessions, and between folds."""
    data = market()
    parts = measured(data, one_layer(data), fits=2)
    network = [date for part in parts for date in part.shared]
    assert [len(part.shared) for part in parts] == [2, 1], "the first seed explains two sessions in a row"
    tables = tables_of(parts, network, (0, 1, 1))
    rows = tables["agreement"].filter(pl.col("over") == "peers")
    for kind in ("model seeds", "neighbouring days", "folds"):
        found = rows.filter(pl.col("kind") == kind)
        assert found["method"].to_list() == ["shap", "attention"], kind
        assert found["value"].is_finite().all()
    same = rows.filter((pl.col("kind") == "model seeds") & (pl.col("method") == "attention"))
    assert same["value"][0] == pytest.approx(1.0), "both seeds are the same model here"
