"""How a fit is computed is decided from sizes alone, also for devices that this machine does not have."""

from __future__ import annotations

from typing import Literal

import pytest

from models.fitting.config import FitConfig
from models.fitting.plan import COMPILE_SECONDS, SAVED_SECONDS, FitPlan, plan_of, why_eager
from models.registry import MODELS
from models.spec import IncompatibleConfig


def plan(
    name: str,
    device: str = "cuda",
    steps: int = 1000,
    seeds: int = 1,
    compile: Literal["auto"] | bool = "auto",  # noqa: A002  (the setting's own name)
) -> FitPlan:
    config = FitConfig(batch_dates=8, compile=compile)
    return plan_of(name, config, device, 3000, steps, seeds)


def test_shapes_are_fixed_on_gpus_and_in_stacks() -> None:
    assert plan("temporal_peer").fixed_shapes
    assert plan("temporal_peer", "cuda:1").fixed_shapes
    assert not plan("temporal_peer", "cpu").fixed_shapes
    assert plan("temporal_peer", "cpu", seeds=3).fixed_shapes
    assert not plan("cross_peer").fixed_shapes


def test_steps_are_compiled_where_that_saves_more_than_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.fitting.plan.can_compile", lambda: True)
    for name, saved in SAVED_SECONDS.items():
        enough = round(COMPILE_SECONDS / (saved * 8 * 3000))
        assert plan(name, steps=enough + 1).compiled
        assert not plan(name, steps=enough - 1).compiled
        assert plan(name, steps=enough // 3 + 1, seeds=3).compiled
        assert not plan(name, "cpu", steps=10 * enough).compiled
        assert not plan(name, steps=10 * enough, compile=False).compiled
        assert plan(name, steps=1, compile=True).compiled
    assert not plan("mlp", steps=10**9).compiled, "nothing was measured for it"
    assert not plan("cross_peer", "cpu", compile=True).compiled
    with pytest.raises(IncompatibleConfig, match=r"remove fit\.compile"):
        plan("cross_peer", compile=True)


def test_a_machine_without_a_compiler_compiles_only_where_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert not plan("temporal_transformer", steps=10**6).compiled
    assert plan("temporal_transformer", compile=True).compiled


def test_only_a_model_whose_shapes_depend_on_values_is_computed_as_it_is_written() -> None:
    assert {name for name in MODELS if why_eager(name, "cuda:0")} == {"cross_peer"}
    assert not any(why_eager(name, "cpu") for name in MODELS)
