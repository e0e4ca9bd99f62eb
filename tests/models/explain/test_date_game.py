"""The game of a date against one complete forward pass per coalition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from attribution_data import small_market, small_modules

from models.batch import Ablation, PanelTensors
from models.explain.groups import GroupAttribution, GroupGameConfig, explain_date, explain_groups
from models.explain.players import PlayerConfig, find_players, forecast, player_data
from models.explain.removal import donors, draw_donors, group_game
from models.explain.shapley import Draws, Precision
from models.forecaster import Forecaster

FAMILIES = {"momentum": (0, 2), "value": (1,), "size": (3,)}


@pytest.fixture
def market() -> PanelTensors:
    return small_market()


@pytest.fixture
def modules() -> dict[str, Forecaster]:
    return small_modules()


@pytest.mark.parametrize("name", ["temporal_peer", "market_tokens", "self_peer", "transformer"])
@pytest.mark.parametrize(
    "config",
    [
        PlayerConfig(day_starts=(1, 3), peers="firms"),
        PlayerConfig(day_starts=(1,), peers="sectors"),
        PlayerConfig(peers="firms", max_firms=3),
    ],
    ids=["firms", "sectors", "too many firms"],
)
def test_coalitions_equal_forward_passes_without_the_other_players(
    market: PanelTensors, modules: dict[str, Forecaster], name: str, config: PlayerConfig
) -> None:
    """Sharing windows between coalitions and forecasting two firms only does not change a forecast."""
    module, batch, sample = modules[name], market.batch(torch.tensor([15])), np.array([1, 5])
    players = find_players(module, batch, FAMILIES, config)
    rng = np.random.default_rng(0)
    keep_MP, draw_M = rng.random((30, len(players))) < 0.6, rng.integers(0, 4, 30)
    found = group_game(module, batch, players, sample, donors("date", batch, None, 4))(keep_MP, draw_M)
    for keep_P, draw, found_E in zip(keep_MP, draw_M, found, strict=True):
        donor_N = torch.as_tensor(draw_donors(7, np.random.default_rng((4, 1, int(draw)))))
        z = batch.z_BNF.clone()
        days, peers, tokens = (torch.ones(1, size, dtype=torch.bool) for size in (8, 7, 2))
        for player, kept in zip(players, keep_P, strict=True):
            members = list(player.members)
            if kept:
                continue
            if player.kind == "days":
                days[0, [8 - day for day in members]] = False
            elif player.kind == "family":
                z[0, :, members] = batch.z_BNF[0, donor_N][:, members]
            elif player.kind == "market":
                tokens[0, members] = False
            else:
                own = batch.firms_N if player.kind == "firm" else batch.s_BN[0]
                peers[0, own == members[0]] = False
        count = sum(player.kind == "market" for player in players)
        ablation = Ablation(days, peers if module.uses_peers else None, tokens[:, :count] if count else None)
        with torch.no_grad():
            expected = module(replace(batch, z_BNF=z), ablation)[0, sample]
        np.testing.assert_allclose(found_E, expected.numpy(), rtol=2e-4, atol=2e-5)
    assert found.std(axis=0).min() > 0.01


def test_players_of_each_kind(market: PanelTensors, modules: dict[str, Forecaster]) -> None:
    batch = market.batch(torch.tensor([15]))
    firms = find_players(modules["market_tokens"], batch, FAMILIES, PlayerConfig(peers="firms"))
    names = [player.name for player in firms]
    assert names[-9:] == [f"firm {n}" for n in (0, 1, 3, 4, 5, 6, 7)] + ["market token 1", "market token 2"]
    module = modules["temporal_peer"]
    sectors = find_players(module, batch, {}, PlayerConfig((1,), peers="sectors"))
    assert [player.name for player in sectors] == ["days 1-8", "sector 0", "sector 1", "sector 2"]
    np.testing.assert_allclose(player_data(sectors[1], batch), [2, 3, 2, 3, 3, 2, 3])  # firms 0, 3 and 6
    np.testing.assert_allclose(
        player_data(sectors[0], batch), batch.x_BNWC[0, :, :, 0].mean(dim=1), rtol=1e-5
    )
    assert np.isnan(player_data(firms[-1], batch)).all()
    named = find_players(module, batch, {}, PlayerConfig((1,), peers="firms", firms=tuple("ABCDEFGH")))
    assert [player.name for player in named] == ["days 1-8", *"ABDEFGH"]
    groups = ("Banks", "Mines", "Shops")
    named = find_players(module, batch, {}, PlayerConfig((1,), peers="sectors", groups=groups))
    assert [player.name for player in named][1:] == ["Banks", "Mines", "Shops"]
    with pytest.raises(ValueError, match="peers is 'nobody'"):
        PlayerConfig(peers="nobody")  # type: ignore[arg-type]  # wrong on purpose


def test_values_of_a_run_add_up_and_say_how_they_were_made(
    market: PanelTensors, modules: dict[str, Forecaster]
) -> None:
    config = GroupGameConfig(permutations=10, players=PlayerConfig(day_starts=(1, 4)))
    found = explain_groups(modules["temporal_peer"], market, np.array([12, 15]), FAMILIES, config)
    assert (found.engine, found.removal, found.reached) == ("permutation", "date", True)
    assert np.abs(found.values_EP).max() > 0.05
    assert found.additivity_error < 1e-5 * found.forecast_E.std()
    with pytest.raises(ValueError, match="engine is 'best'"):
        GroupGameConfig(engine="best")


def test_the_draws_of_a_date_are_continued(market: PanelTensors, modules: dict[str, Forecaster]) -> None:
    module, batch = modules["temporal_peer"], market.batch(torch.tensor([15]))
    players = find_players(module, batch, FAMILIES)

    forecast_N = forecast(module, batch, None)[0]

    def values(draws: int, drawn: Draws | None = None) -> GroupAttribution:
        config, two = GroupGameConfig(permutations=draws, seed=3), np.arange(2)
        return explain_date(
            module, batch, 15, players, two, config, cells=None, forecast_N=forecast_N, drawn=drawn
        )

    whole, resumed = values(9), values(9, values(4).drawn)
    np.testing.assert_allclose(resumed.values_EP, whole.values_EP, atol=1e-6)
    np.testing.assert_allclose(resumed.error_EP, whole.error_EP, atol=1e-6)
    assert resumed.drawn is not None
    assert resumed.drawn.count == 9


def test_a_precision_stops_the_draws(market: PanelTensors, modules: dict[str, Forecaster]) -> None:
    sessions = np.array([15])
    loose, strict = (
        explain_groups(
            modules["temporal_peer"],
            market,
            sessions,
            FAMILIES,
            GroupGameConfig(precision=Precision(standard_error=error, max_draws=60)),
        )
        for error in (0.2, 1e-7)
    )
    assert loose.reached
    assert loose.error_EP.max() <= 0.2
    assert not strict.reached
    assert strict.drawn is not None
    assert strict.drawn.count == 60
