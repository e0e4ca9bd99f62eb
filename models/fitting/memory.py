"""Memory of a training step on a GPU: an estimate from its shapes, and the dates that go through at once.

A step that does not fit is computed in parts of its dates. The loss is a mean over dates, so the gradient is
the same up to rounding.

Legend: K seeds, B dates of a step, P places for firms, W window length, C channels, F characteristics.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from models.batch import Batch
from models.fitting.config import NET_UTILITY, FitConfig
from models.fitting.losses import horizons_loss
from models.fitting.optimizer import AdamW
from models.forecaster import Forecaster
from models.panel_memory import free_bytes, is_out_of_memory
from models.spec import Shape

PEAK = 1.3
"""Peak of a backward pass, relative to what the forward pass keeps for it."""

ROOM = 0.9
"""Share of a GPU's free memory that a step may take. The rest is for fragments and workspaces."""

FORECAST_CELLS = 2**16
"""Firms and dates that go through a model at once on a GPU. Date by date, a small market leaves it idle."""

HELD = 4
"""Numbers held per parameter: its value, its gradient and two moments."""


Note = Callable[[str], None]
"""Called with a sentence for the user."""


def no_note(sentence: str) -> None:
    """Stand in for a missing `Note`."""


class SplitEpoch(Protocol):
    """An engine whose steps may let the dates through the model in parts."""

    dates_at_once: int
    """Number of dates that go through the model at once."""
    seeds_at_once: int
    """Number of seeds that are computed at once."""
    generators: list[torch.Generator]
    config: FitConfig

    def epoch(self, dates_KD: Tensor, optimizer: AdamW) -> Tensor:
        """Make the steps of an epoch."""
        ...


def date_bytes(module: Forecaster, config: FitConfig, shape: Shape, places: int) -> int | None:
    """Estimate the memory that one date of one seed takes in a step, in bytes, with P = ``places`` for firms.

    The forward pass is computed on tensors without values. What it keeps for the backward pass is added up in
    float32; in bf16 it is less. None for a model whose shapes depend on values. The model is not changed.
    """
    if not module.stackable:
        return None
    there = torch.device("meta")
    copied = copy.deepcopy(module).to(there).train()
    whole = torch.zeros((1, places), dtype=torch.int64, device=there)
    known = torch.ones((1, places), dtype=torch.bool, device=there)
    batch = Batch(
        x_BNWC=torch.empty((1, places, shape.window, shape.n_channels), device=there),
        z_BNF=torch.empty((1, places, shape.n_characteristics), device=there),
        m_BN=known,
        s_BN=whole,
        y_BN=torch.empty((1, places), device=there),
        firms_N=whole,
        key_BN=whole,
        dense=True,
    )
    parameters = list(copied.parameters())

    def loss() -> Tensor:  # of each member, where a network has several; without shorter horizons
        return horizons_loss(copied, config, copied.horizons(batch)[..., -1:], batch, known)

    return kept_bytes(loss, parameters)


def kept_bytes(compute: Callable[[], Tensor], held: Iterable[Tensor] = ()) -> int:
    """Bytes of the tensors that a computation keeps for its backward pass; every storage counts once.

    Those that are ``held`` in any case do not count. Fused attention counts as its kernels keep it on a GPU:
    without the weights of all pairs.
    """
    kept: dict[int, Any] = {}  # storages, which stay alive here, so that their numbers are not used again

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _FusedKeepsFew():
        compute()
    for tensor in held:
        kept.pop(tensor.untyped_storage()._cdata, None)
    return sum(int(storage.nbytes()) for storage in kept.values())


class _FusedKeepsFew(TorchFunctionMode):
    """Context in which fused attention keeps what its kernels keep, on devices that have none."""

    def __torch_function__(  # torch declares it without the function
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Replace fused attention by its shapes."""
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _FusedShapes.apply(*args[:3])  # type: ignore[no-untyped-call]  # as torch ships it
        return func(*args, **(kwargs or {}))


class _FusedShapes(torch.autograd.Function):
    """Fused attention without values: it keeps queries, keys, values, outputs and a number per query."""

    @staticmethod
    def forward(ctx: Any, q_BHQd: Tensor, k_BHKd: Tensor, v_BHKd: Tensor) -> Tensor:  # noqa: ANN401
        """Return the output's shape."""
        out_BHQd = q_BHQd.new_empty((*q_BHQd.shape[:-1], v_BHKd.shape[-1]))
        ctx.save_for_backward(q_BHQd, k_BHKd, v_BHKd, out_BHQd, q_BHQd.new_empty(q_BHQd.shape[:-1]))
        return out_BHQd

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 (torch's signature)
        """Nothing is differentiated here."""
        raise AssertionError("only the shapes of a forward pass are computed")


def what_fits(  # noqa: PLR0917  (a step, and where it is computed)
    module: Forecaster,
    config: FitConfig,
    shape: Shape,
    places: int,
    seeds: int,
    device: torch.device,
    free: float | None = None,
) -> tuple[int, int]:
    """Number of seeds that are computed at once, and of dates that go through a model at once.

    All K seeds and all dates, if the estimate of `date_bytes` allows it. If not, one seed after the other,
    with as many dates as fit, in parts of equal size. At least 1: whether that fits, the first step finds
    out. The consecutive sessions of ``net_utility`` are never divided. ``free`` are the bytes that a step may
    take; None for those that the device has.
    """
    of_device = free_bytes(device)
    if free is None and of_device is not None:
        free = ROOM * of_device
    if free is None or (each := date_bytes(module, config, shape, places)) is None:
        return seeds, config.batch_dates
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    left = free - seeds * HELD * parameters
    if seeds * config.batch_dates * PEAK * each <= left:
        return seeds, config.batch_dates
    if config.loss == NET_UTILITY:
        return 1, config.batch_dates
    most = max(1, int(left // (PEAK * each)))
    parts = -(-config.batch_dates // min(most, config.batch_dates))
    return 1, -(-config.batch_dates // parts)


def epoch_that_fits(engine: SplitEpoch, dates_KD: Tensor, optimizer: AdamW, note: Note = no_note) -> Tensor:
    """Make an epoch of the dates; if a GPU's memory runs out, make it again with less at once.

    The engine goes on with what fitted: first one seed at a time, then half as many dates. Everything that
    the steps of the optimizer change, and the random generators, are restored before. ``note`` is called with
    a sentence if the dates go through in parts. Returns what the engine returns; RuntimeError if a single
    date, or a block of consecutive ones, does not fit (`models.panel_memory.is_out_of_memory`).
    """
    device = optimizer.taken.device
    if device.type == "cpu":
        return engine.epoch(dates_KD, optimizer)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    moments = [one for state in optimizer.state.values() for one in state.values()]
    changed = [*parameters, *moments, *optimizer.mean.means, optimizer.taken]
    before = [one.detach().clone() for one in changed]
    drawn, random = [generator.get_state() for generator in engine.generators], _random_state(device)
    while True:
        try:
            return engine.epoch(dates_KD, optimizer)
        except RuntimeError as error:
            fewest = engine.dates_at_once if engine.config.loss == NET_UTILITY else 1
            if (engine.dates_at_once, engine.seeds_at_once) == (fewest, 1) or not is_out_of_memory(error):
                raise
        # past the handler, whose traceback holds the tensors of the step
        optimizer.zero_grad(set_to_none=True)
        if not moments:
            optimizer.state.clear()
        with torch.no_grad():
            for one, value in zip(changed, before, strict=True):
                one.copy_(value)
        for generator, state in zip(engine.generators, drawn, strict=True):
            generator.set_state(state)
        _restore_random_state(device, random)
        if engine.seeds_at_once > 1:
            engine.seeds_at_once = 1
        else:
            engine.dates_at_once = -(-engine.dates_at_once // 2)
            note(in_parts(engine.dates_at_once))


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _restore_random_state(device: torch.device, state: Tensor) -> None:
    if device.type != "cuda":
        torch.set_rng_state(state)
        return
    torch.cuda.set_rng_state(state, device)
    torch.cuda.empty_cache()


def in_parts(at_once: int) -> str:
    """Sentence about steps that are computed in parts."""
    dates = "date goes" if at_once == 1 else "dates go"
    return (
        "A step does not fit the memory of the GPU at once, so "
        f"{at_once} {dates} through the model at a time; the gradient is the same."
    )
