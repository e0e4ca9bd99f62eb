"""The memory of a training step: an estimate from shapes, and dates that go through in parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models.fitting.config import FitConfig
from models.fitting.memory import HELD, PEAK, date_bytes, in_parts, kept_bytes, what_fits
from models.forecaster import Forecaster
from models.panel_memory import in_parts as variants_in_parts
from models.panel_memory import is_out_of_memory, variants_at_once
from models.registry import MODELS
from models.spec import Shape

SHAPE = Shape(3, 5, 10, 4, ("log_market_equity", "a", "b", "c", "d"))
CPU = torch.device("cpu")


def built(name: str) -> Forecaster:
    entry = MODELS[name]
    module = entry.build(entry.config(), SHAPE)
    assert isinstance(module, Forecaster)
    return module


def test_what_is_kept_is_counted_by_hand() -> None:
    layer, x = nn.Linear(3, 5), torch.randn(7, 3)
    # the inputs, 7 x 3, for the gradient of the weight, and the outputs, 7 x 5, for that of the exponential
    assert kept_bytes(lambda: layer(x).exp().sum()) == 4 * (7 * 3 + 7 * 5)
    twice = x.clone().requires_grad_()
    assert kept_bytes((twice * twice).sum) == 0, "of a product that was made before"
    assert kept_bytes(lambda: torch.mul(twice, twice)) == 4 * 7 * 3, "one storage counts once"
    assert kept_bytes(lambda: torch.mul(twice, twice), held=[twice]) == 0


def test_fused_attention_keeps_no_weights_of_pairs() -> None:
    q, k, v = (torch.randn(2, 4, 100, 8, device="meta", requires_grad=True) for _ in range(3))

    def attend() -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)

    assert kept_bytes(attend) == 4 * 2 * 4 * 100 * (4 * 8 + 1)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.kind == "neural"])
def test_a_step_needs_memory_in_proportion_to_its_firms(name: str) -> None:
    module = built(name)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    small, large = (date_bytes(module, FitConfig(), SHAPE, places) for places in (400, 1200))
    if not module.stackable:
        assert small is large is None
        return
    assert small is not None
    assert large is not None
    assert large / small == pytest.approx(3, rel=0.05)
    least = 4 * 400 * (SHAPE.n_characteristics if name == "mlp" else 1)
    assert least < small < 2**20 * 400
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
    assert next(module.parameters()).device == CPU


def test_the_loss_of_every_member_counts() -> None:
    """Pairs of firms are kept once for each network of tabm."""
    places, entry = 300, MODELS["tabm"]
    for networks in (2, 6):
        module = entry.build(entry.config(networks=networks), SHAPE)
        squares, pairs = (
            date_bytes(module, FitConfig(loss=loss), SHAPE, places) for loss in ("mse", "pairwise")
        )
        assert pairs is not None
        assert squares is not None
        assert pairs - squares > networks * 4 * places**2


def test_seeds_take_turns_and_dates_are_divided_into_equal_parts_until_they_fit() -> None:
    module, config = built("temporal_peer"), FitConfig(batch_dates=8)
    each = date_bytes(module, config, SHAPE, 50)
    assert each is not None
    held = HELD * sum(4 * one.numel() for one in module.parameters())

    def fits(dates: float, seeds: int = 1) -> tuple[int, int]:
        free = seeds * held + dates * PEAK * each
        return what_fits(module, config, SHAPE, 50, seeds, CPU, free)

    assert [fits(n + 0.5)[1] for n in (0, 1, 2, 3, 4, 7, 8, 100)] == [1, 1, 2, 3, 4, 4, 8, 8]
    assert [fits(n + 0.5, seeds=3) for n in (1, 4, 8, 23, 24)] == [(1, 1), (1, 4), (1, 8), (1, 8), (3, 8)]
    assert what_fits(module, config, SHAPE, 50, 2, CPU) == (2, 8), "on a CPU nothing is estimated"
    assert what_fits(built("cross_peer"), config, SHAPE, 50, 1, CPU, free=1.0) == (1, 8)


def test_sentences_about_parts() -> None:
    assert "so 4 dates go through the model at a time" in in_parts(4)
    assert "so 1 date goes through the model at a time" in in_parts(1)


def test_errors_of_a_full_device_are_recognised() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory.")
    assert is_out_of_memory(full)
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="during capture") as caught:
        fail_to_record(full)
    assert is_out_of_memory(caught.value), "the recording of a graph ends with an error of its own"


def fail_to_record(error: Exception) -> None:
    try:
        raise error
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_a_gpu_is_filled_with_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.panel_memory.free_bytes", lambda _: 1000.0)
    assert variants_at_once("cuda", 3, 50.0) == 10
    assert variants_at_once("cuda", 3, 5e6) == 1
    monkeypatch.undo()
    assert variants_at_once("cpu", 3, 50.0) == 3
    assert variants_at_once("cpu", 0, 50.0) == 1


def test_variants_that_do_not_fit_go_through_in_smaller_parts() -> None:
    tried: list[tuple[int, int]] = []

    def compute(at: slice) -> None:
        tried.append((at.start, at.stop))
        if at.stop - at.start > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    assert variants_in_parts(8, 100, compute) == 2
    assert tried == [(0, 8), (0, 4), (0, 2), (2, 4), (4, 6), (6, 8)]
    with pytest.raises(torch.OutOfMemoryError):
        variants_in_parts(2, 1, lambda _: compute(slice(0, 9)))
    with pytest.raises(RuntimeError, match="capture"):
        variants_in_parts(8, 4, lambda _: fail_to_record(ValueError("another")))
