"""Characteristics of a dataset, made in two passes so that no array of all cells is held in memory.

The first computes raw values by tiles of firms, because features read a firm's past; the second transforms
them by blocks of sessions, because transforms compare the firms of a date. The scratch array between them is
ordered by blocks and within them by tiles, so both read and write contiguous memory.

Shape suffixes: T sessions, R sessions of a block, N firms, n firms of a tile, F raw characteristics, G
characteristics with their indicators of missing values.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arithmetic.rolling import carry
from features.arrays import BoolArray, Float32Array, FloatArray
from features.library.sets import characteristics_of
from features.library.standardise import transform_characteristics
from features.panel.panel import Panel, to_panel
from pipelines.config.schema import Config
from pipelines.errors import DataError

INPUT_PREFIX = "input_"  # prefix of a user's own inputs among the names of characteristics

BLOCK = 2**24  # values of the result in a block of sessions, at most; 64 MiB as float32

Allocate = Callable[[tuple[int, ...]], Float32Array]  # returns an array of a shape, whose values are not set


def raw_characteristics(
    panel: Panel, names: Sequence[str], tables: Mapping[str, pl.DataFrame], config: Config
) -> Float32Array:
    """Compute characteristics and inputs as float32 [T, N, F], before any transform; NaN: unknown."""
    computed, own = _split(panel, names, tables, config)
    raw_TNF = characteristics_of(config.features.expressions).compute(panel, computed)
    return np.concatenate([raw_TNF, np.stack(own, axis=2)], axis=2) if own else raw_TNF


def make_characteristics(
    panel: Panel,
    names: Sequence[str],
    universe_TN: BoolArray,
    tables: Mapping[str, pl.DataFrame],
    *,
    config: Config,
    allocate: Allocate,
) -> Float32Array:
    """Compute `raw_characteristics` and transform them (`transform_characteristics`), to the bit."""
    computed, own = _split(panel, names, tables, config)
    rule, (T, N), F = config.features.transform, universe_TN.shape, len(names)
    blocks = blocks_of(T, N * len(rule.names(names)))
    tiles: list[slice] = []
    scratch = allocate((F * T * N,))

    def chunk(block: slice, firms: slice) -> Float32Array:
        start = F * (block.start * N + (block.stop - block.start) * firms.start)
        shape = (F, block.stop - block.start, firms.stop - firms.start)
        return scratch[start : start + shape[0] * shape[1] * shape[2]].reshape(shape)

    def spill(firms: slice, raw_KTn: Float32Array) -> None:
        tiles.append(firms)
        for block in blocks:
            out_FRn = chunk(block, firms)
            out_FRn[: len(computed)] = raw_KTn[:, block]
            for k, value_TN in enumerate(own, start=len(computed)):
                out_FRn[k] = value_TN[block, firms]

    characteristics_of(config.features.expressions).for_each_tile(panel, computed, spill)
    drop_pages(scratch)
    out_TNG = allocate((T, N, len(rule.names(names))))
    for block in blocks:
        raw_FRN = np.empty((F, block.stop - block.start, N), dtype=np.float32)
        for firms in tiles:
            raw_FRN[:, :, firms] = chunk(block, firms)
        raw_RNF = np.moveaxis(raw_FRN, 0, 2)
        out_TNG[block] = transform_characteristics(raw_RNF, universe_TN[block], panel.group_TN[block], rule)
        drop_pages(scratch)
        drop_pages(out_TNG)
    return out_TNG


def blocks_of(n_sessions: int, row: int) -> list[slice]:
    """Split sessions into blocks of at most `BLOCK` values, at least one session each; a row has ``row``."""
    size = max(1, BLOCK // max(row, 1))
    return [slice(start, min(start + size, n_sessions)) for start in range(0, n_sessions, size)]


def drop_pages(array: npt.NDArray[np.float32]) -> None:
    """Unmap what was read or written of a mapped file; it stays in the file. Nothing else is changed."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def user_inputs(tables: Mapping[str, pl.DataFrame], config: Config) -> dict[str, pl.DataFrame]:
    """Return the user's own inputs by name: those that the config lists, or all in the lake."""
    table = tables.get("inputs")
    parts = (
        {}
        if table is None
        else {str(name): part for (name,), part in sorted(table.partition_by("name", as_dict=True).items())}
    )
    names = parts if config.features.inputs is None else config.features.inputs
    missing = [name for name in names if name not in parts]
    if missing:
        raise DataError(
            f"features.inputs names {missing[0]!r}, but the lake's inputs are {', '.join(parts) or 'none'}; "
            "ingest it, or remove the name."
        )
    return {name: parts[name] for name in names}


def own_values(frame: pl.DataFrame, panel: Panel, hold: int) -> FloatArray:
    """Values [T, N] of one of the user's inputs; NaN = not known."""
    if not hold:
        return to_panel(frame, "value", panel)
    dates_T = panel.dates_T
    inside = frame.filter(pl.col("date").is_between(dates_T[0].item(), dates_T[-1].item())).sort("date")
    sessions = dates_T[np.searchsorted(dates_T, inside["date"].to_numpy().astype("datetime64[D]"))]
    known = inside.with_columns(pl.Series("date", sessions)).unique(["date", "ticker"], keep="last")
    return carry(to_panel(known, "value", panel), hold)


def input_notes(
    inputs: Mapping[str, pl.DataFrame], panel: Panel, universe_TN: BoolArray, hold: int
) -> tuple[str, ...]:
    """Say which of the user's inputs are known on less than half of the forecast dates."""
    decides_T = universe_TN.any(axis=1)
    dates = int(decides_T.sum())
    notes = []
    for name, frame in inputs.items():
        known = int((np.isfinite(own_values(frame, panel, hold)) & universe_TN).any(axis=1).sum())
        if 2 * known < dates:
            cure = "a larger features.hold_inputs holds" if hold else "features.hold_inputs: 25 would hold"
            notes.append(
                f"The input {name} is known on {known} of {dates} forecast dates and unused on the others; "
                f"{cure} its last value for so many sessions."
            )
    return tuple(notes)


def _split(
    panel: Panel, names: Sequence[str], tables: Mapping[str, pl.DataFrame], config: Config
) -> tuple[list[str], list[Float32Array]]:
    """Names of the characteristics to compute, and the values of the user's inputs [T, N]."""
    computed = [name for name in names if not name.startswith(INPUT_PREFIX)]
    frames, hold = user_inputs(tables, config).values(), config.features.hold_inputs
    return computed, [own_values(frame, panel, hold).astype(np.float32) for frame in frames]
