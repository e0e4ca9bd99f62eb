"""The optimizer: the numbers of torch's own AdamW, without torch's compiler."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path

import pytest
import torch
from small_panels import options_of
from torch import nn
from warm import Process

from models.fitting.config import FitConfig
from models.fitting.optimizer import AdamW, parameter_groups
from models.registry import MODELS
from models.spec import Shape

TESTS = Path(__file__).parents[2]
TRAINS = """
import sys
from small_panels import fitted
loaded = "torch._dynamo" in sys.modules
fitted("temporal_peer")
print(loaded, "torch._dynamo" in sys.modules)
"""


def trained(
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    steps: int,
    schedule: torch.optim.lr_scheduler.LambdaLR | None = None,
) -> None:
    x = torch.linspace(-1.0, 1.0, 60).reshape(20, 3)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        module(x).square().sum().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.kind == "neural"])
def test_neither_norms_nor_biases_are_decayed(name: str) -> None:
    """Also where they are matrices: the norm of a whole window, and a bias for each characteristic."""
    module = MODELS[name].build(
        options_of(name), Shape(3, 5, 10, 4, ("log_market_equity", "a", "b", "c", "d"))
    )
    place = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = parameter_groups(module, FitConfig(weight_decay=0.5))
    decayed = {place[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed
    assert not [one for one in decayed if "bias" in one or "norm" in one]


def test_steps_schedule_and_state_are_those_of_torch_to_the_bit() -> None:
    config = FitConfig(weight_decay=0.3, lr=0.01, warmup=0.3)
    ours = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    theirs = copy.deepcopy(ours)
    optimizer = AdamW(parameter_groups(ours, config), config, 10)
    own = parameter_groups(theirs, config)
    library = torch.optim.AdamW([dict(group) for group in own], lr=config.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(library, optimizer.factor)
    trained(optimizer, ours, 3)
    trained(library, theirs, 3, schedule)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.rate(3) == schedule.get_last_lr()[0]
    trained(optimizer, ours, 5)
    trained(library, theirs, 5, schedule)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=0.0)
    state, other = optimizer.state_dict()["state"], library.state_dict()["state"]
    assert state.keys() == other.keys()
    for index, moments in state.items():
        assert moments.keys() == other[index].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(moments[name], other[index][name]) for name in moments)


def test_the_factor_rises_to_one_and_falls_to_zero_along_a_cosine() -> None:
    optimizer = AdamW(parameter_groups(nn.Linear(3, 1), FitConfig()), FitConfig(warmup=0.2), 10)
    factors = [optimizer.factor(step) for step in range(11)]
    cosine = [0.5 * (1.0 + math.cos(math.pi * share / 8)) for share in range(9)]
    assert factors == pytest.approx([0.5, 1.0, *cosine])


@pytest.mark.slow(5)
def test_training_does_not_load_the_compiler() -> None:
    with Process(TRAINS, env={**os.environ, "PYTHONPATH": str(TESTS)}) as process:
        out, err = process.communicate(timeout=300)
    assert out.split() == ["False", "False"], err
