"""The panel as tensors on one device, and batches of dates, the input of every forecaster.

Legend: B dates in a batch, N firms, W window length, C channels, F characteristics, T sessions,
L peer layers, H heads, G market tokens, U different windows, S sessions including the padding before the
first, P places.  Index t is the close of session t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from features.library.scaling import ChannelScaler
from models.panel_memory import RelativeWindows, Upload, holds_anywhere, padded_history, shared_tensor
from models.spec import Shape, firm_key


@dataclass(frozen=True, slots=True, eq=False)
class EqualDates:
    """Dates of a batch that are equal in some inputs; what depends on these alone is computed once."""

    first_U: Tensor  # int64, one date for each of the U different inputs
    index_B: Tensor  # int64, which of them each date has

    @classmethod
    def of(cls, label_B: Tensor) -> EqualDates:
        """Group the dates with the same label."""
        label_U, index_B = torch.unique(label_B, return_inverse=True)
        date_B = torch.arange(len(label_B), device=label_B.device)
        first_U = torch.zeros_like(label_U, dtype=torch.int64)
        return cls(first_U.scatter_reduce(0, index_B, date_B, "amin", include_self=False), index_B)


@dataclass(frozen=True, slots=True, eq=False)
class Ablation:
    """Inputs that an explainer removes from a forward pass; ``None`` removes nothing."""

    # bool; False removes the day for every firm. The day encoder masks it as a key, and sets its values to
    # zero where the day is a query or enters linearly, so the forecast does not depend on the day.
    days_keep_BW: Tensor | None = None
    # bool; False masks firm j as a key for all other firms. The forecast of firm j itself still uses its own
    # information, which does not pass through peer attention.
    peers_keep_BN: Tensor | None = None
    tokens_keep_BG: Tensor | None = None  # bool; False masks market token g as a key for all firms
    # which dates have the same windows and ablated days; None: all may be different
    windows: EqualDates | None = None
    # which dates have the same windows, ablated days and characteristics, so that they differ in ablated
    # peers and tokens only; None: all may be different
    inputs: EqualDates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PresentCells:
    """Places of the True values of a flattened mask: bool ``m_BN``, int64 ``cells_M``."""

    m_BN: Tensor
    cells_M: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B dates of the panel with N places for firms, as many as the largest date needs.

    The firms of a date come first, in the panel's order; places after them are outside the universe.
    """

    x_BNWC: Tensor  # float32, scaled channels of the W sessions up to each date; no NaN
    # float32, characteristics at the date, ranked to a normal within the date; unknown values are 0
    z_BNF: Tensor
    m_BN: Tensor  # bool, whether the firm is in the universe at the date
    s_BN: Tensor  # int64, group code at the date; 0 means unknown
    y_BN: Tensor  # float32, target, which is known only after the end of the label's span; NaN means unknown
    # int64, panel columns of the firms, in ascending order. [B, N] for several dates, where a place holds
    # different firms on different dates.
    firms_N: Tensor
    # int64, :func:`firm_key` of each firm's name. A model uses it to find firms that its options name. 0 if
    # the panel has no names; None if no names are needed.
    key_BN: Tensor | None = None
    # whether all positions are computed, in the universe or not, so that no shape depends on values
    dense: bool = False
    # float32, targets of the K - 1 horizons shorter than the label's, in ascending order; NaN means unknown.
    # None if there are no shorter horizons.
    path_BNK: Tensor | None = None
    # float32, return that a holder earns over the label's span, as a fraction and without the target's
    # transform; NaN means unknown. None: the target is that return.
    r_BN: Tensor | None = None
    # the cells of ``m_BN``, found on the host so that a GPU need not be waited for. They are used only with
    # the very mask that they were found in; with another one, or None, the mask is searched.
    present: PresentCells | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """Attention weights, computed by the explicit path."""

    days_BNW: Tensor | None = None
    """Weight of each day in the output of the last layer of the day encoder, averaged over heads; 0 for firms
    outside the universe. None for models without a day encoder."""
    peers_BLHNN: Tensor | None = None
    """Weight of key firm j (last axis) for query firm i (second to last axis). A row sums to 1 minus the
    weight of the null key. None for models without peers."""


@dataclass(frozen=True, slots=True, eq=False)
class PanelTensors:
    """The panel as tensors on one device. It is built once; windows are gathered for each batch.

    The two large tensors, channels and characteristics, can stay in the host's memory instead. Batches are
    the same; they are gathered on the host and copied while the device computes the batch before.
    """

    # float32, channels scaled with the statistics of a fold's training sessions; no NaN. S = W - 1 + T: the
    # first W - 1 sessions are padding with zeros (the channels' mean). The window that ends at session t is
    # therefore the contiguous block of W sessions that starts at index t of S. A single zero, expanded, if no
    # model reads windows.
    history_NSC: Tensor
    # float32, ranked to a normal within the date; no NaN. On a CPU these are the arrays that were given,
    # without a copy where possible, so that processes share a memory-mapped file. Never write to it.
    characteristics_TNF: Tensor
    mask_TN: Tensor  # bool, the universe
    group_TN: Tensor  # int16, the panel's group code plus 1; 0 means unknown. Batches hold int64.
    target_TN: Tensor  # float32; NaN means unknown
    key_N: Tensor  # int64, :func:`firm_key` of each firm's name; 0 if there are no names
    shape: Shape  # the sizes that a model needs to be built for this panel
    # float32, targets of the horizons shorter than the label's, in ascending order; NaN means unknown. None
    # if there are none.
    path_TNK: Tensor | None = None
    # float32, returns over the label's span, for losses of a portfolio; None: the target is the return
    return_TN: Tensor | None = None
    # copies batches to the device if ``history_NSC`` and ``characteristics_TNF`` are in the host's memory;
    # None if they are on the device
    upload: Upload | None = None
    # scales the channels that windows give relative to their last session. Their values in ``history_NSC``
    # are levels. None if there are none.
    relative: RelativeWindows | None = None
    # the universe, and its cells with a known target, as masks on the host. Which firms and cells a batch has
    # is decided on them, so no step of training waits for the device.
    listed_TN: Tensor = field(init=False)
    known_TN: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "listed_TN", self.mask_TN.cpu())
        object.__setattr__(self, "known_TN", self.listed_TN & self.target_TN.isfinite().cpu())

    @property
    def window(self) -> int:
        """Number of sessions in a window."""
        return self.shape.window

    @property
    def device(self) -> torch.device:
        """The device of the batches, on which models compute."""
        return self.mask_TN.device

    @property
    def channels_TNC(self) -> Tensor:  # noqa: N802 - a shape suffix, as in the other attributes
        """The channels by session and firm, without padding, as a view."""
        return self.history_NSC[:, self.window - 1 :].transpose(0, 1)

    @classmethod
    def from_arrays(
        cls,
        *,
        channels_TNC: npt.ArrayLike,
        characteristics_TNF: npt.ArrayLike,
        mask_TN: npt.ArrayLike,
        group_TN: npt.ArrayLike,
        target_TN: npt.ArrayLike,
        window: int,
        n_groups: int | None = None,
        characteristic_names: tuple[str, ...] = (),
        firm_names: Sequence[str] = (),
        path_TNK: npt.ArrayLike | None = None,
        return_TN: npt.ArrayLike | None = None,
        device: torch.device | str = "cpu",
        scaler: ChannelScaler | None = None,
        complete: bool = False,
        windows: bool = True,
        in_host_memory: bool = False,
    ) -> PanelTensors:
        """Build the tensors from numpy arrays.

        ``channels`` are scaled and ``characteristics`` ranked to a normal; NaN (unknown) is replaced by 0,
        their mean. ``mask`` is the universe, ``group`` holds codes (-1 unknown) of ``n_groups`` groups, by
        default the largest code plus 1. ``target`` and ``path``, the targets of shorter horizons in ascending
        order, are in the unit of the label or ranked to a normal; NaN means unknown. On a CPU the memory of
        mask, target and characteristics is shared: do not change them. The names are for models whose options
        name a characteristic or firms. ValueError if shapes or names do not match, a value is infinite, or a
        code is out of range.

        Parameters
        ----------
        return_TN
            Returns over the label's span, for losses of a portfolio; known where the target is. None: the
            target is the return.
        scaler
            Scales the channels while they are copied, without a scaled copy of all of them; None if
            ``channels_TNC`` are scaled.
        complete
            Whether ``characteristics_TNF`` are known to be finite. They are not read then, which matters
            where they are a large file.
        windows
            Whether a model reads windows of channels. If not, they are zeros that take no memory.
        in_host_memory
            Whether channels and characteristics stay in the host's memory, for a panel that the device cannot
            hold (:func:`models.panel_memory.exceeds_device`).
        """
        mask = np.ascontiguousarray(mask_TN, dtype=np.bool_)
        given = {
            **{"channels_TNC": channels_TNC, "characteristics_TNF": characteristics_TNF},
            **{"target_TN": target_TN, "path_TNK": path_TNK, "return_TN": return_TN},
        }
        arrays = {name: np.asarray(x, dtype=np.float32) for name, x in given.items() if x is not None}
        codes = np.asarray(group_TN)
        checked: dict[str, npt.NDArray[Any]] = {**arrays, "group_TN": codes}
        for name, array in checked.items():
            if mask.ndim != 2 or array.shape[:2] != mask.shape or array.ndim != len(name.split("_")[1]):
                raise ValueError(
                    f"{name} has shape {array.shape} but mask_TN has {mask.shape}; "
                    "pass arrays over the same sessions and firms."
                )
            if not (complete and name == "characteristics_TNF") and holds_anywhere(np.isinf, array):
                raise ValueError(f"{name} has infinite values; clip them, or set them to NaN (unknown).")
        lowest, highest = int(codes.min(initial=0)), int(codes.max(initial=-1))
        groups = highest + 1 if n_groups is None else n_groups
        if not -1 <= lowest <= highest + 1 <= groups <= np.iinfo(np.int16).max:
            raise ValueError(
                f"group_TN has codes from {lowest} to {highest} but n_groups is {groups}; codes must be from "
                f"0 to n_groups - 1, or -1 for unknown, and n_groups at most {np.iinfo(np.int16).max}."
            )
        if len(firm_names) not in (0, mask.shape[1]):
            raise ValueError(
                f"{len(firm_names)} firm names were given for {mask.shape[1]} firms; give one per firm, or "
                "none."
            )
        keys = [firm_key(name) for name in firm_names] or [0] * mask.shape[1]
        channels, characteristics = arrays["channels_TNC"], arrays["characteristics_TNF"]
        if not complete and holds_anywhere(np.isnan, characteristics):
            characteristics = np.nan_to_num(characteristics, nan=0.0)
        shape = Shape(
            n_channels=channels.shape[2],
            n_characteristics=characteristics.shape[2],
            window=window,
            n_groups=groups + 1,
            characteristic_names=tuple(characteristic_names),
            n_horizons=1 + (arrays["path_TNK"].shape[2] if "path_TNK" in arrays else 0),
        )
        size_NSC = (mask.shape[1], window - 1 + len(mask), channels.shape[2])
        held = torch.device("cpu" if in_host_memory else device)
        scale = scaler.relative if scaler is not None else None
        if scale is not None and len(scale.mean_WC) != window:
            raise ValueError(
                f"The scaler's relative channels are of windows of {len(scale.mean_WC)} sessions, "
                f"not {window}; fit it for this window."
            )
        no_history_NSC = torch.zeros((), device=device).expand(size_NSC)
        return cls(
            history_NSC=padded_history(channels, window, scaler).to(held) if windows else no_history_NSC,
            characteristics_TNF=shared_tensor(characteristics).to(held),
            mask_TN=shared_tensor(mask).to(device),
            group_TN=torch.tensor(codes.astype(np.int16) + np.int16(1), device=device),
            target_TN=shared_tensor(arrays["target_TN"]).to(device),
            key_N=torch.tensor(keys, dtype=torch.int64, device=device),
            shape=shape,
            path_TNK=torch.tensor(arrays["path_TNK"], device=device) if "path_TNK" in arrays else None,
            return_TN=shared_tensor(arrays["return_TN"]).to(device) if "return_TN" in arrays else None,
            upload=Upload(device) if in_host_memory else None,
            relative=None if scaler is None or not windows else RelativeWindows.of(scaler, held),
        )

    def windows(self, sessions: Tensor, firms: Tensor) -> Tensor:
        """Gather windows; each window is one contiguous copy of W x C numbers, relative channels scaled.

        ``sessions`` (int64) are the last ones of the windows, and ``firms`` (int64) panel columns; they
        broadcast. Returns float32 of the broadcast shape followed by W and C, zeros before the first session
        of the panel. ValueError if a session or firm is not in the panel.
        """
        _require_below("session", sessions, len(self.mask_TN))
        _require_below("firm", firms, len(self.history_NSC))
        return self.gather_windows(sessions, firms)

    def gather_windows(self, sessions: Tensor, firms: Tensor) -> Tensor:
        """Gather windows as :meth:`windows` does, of sessions and firms that were checked before."""
        if self.upload is None:
            return self._windows(sessions, firms)
        return self.upload(self._windows(sessions.cpu(), firms.cpu()))[0]

    def gather_inputs(
        self, sessions: Tensor, firms: Tensor, on_host: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Windows and characteristics of firms at sessions: indices on the device, and again on the host."""
        if self.upload is None:
            return self._windows(sessions, firms), self.characteristics_TNF[sessions, firms]
        windows, characteristics = self.upload(self._windows(*on_host), self.characteristics_TNF[on_host])
        return windows, characteristics

    def _windows(self, sessions: Tensor, firms: Tensor) -> Tensor:
        N, S, C = self.history_NSC.shape
        first = firms * S + sessions  # index of the window's first session
        if not any(self.history_NSC.stride()):  # one zero for all values: no windows were asked for
            return self.history_NSC.new_zeros(()).expand(*first.shape, self.window, C)
        every_window = self.history_NSC.as_strided((N * S - self.window + 1, self.window * C), (C, 1))
        gathered = every_window.index_select(0, first.flatten()).view(*first.shape, self.window, C)
        return gathered if self.relative is None else self.relative(gathered)

    def batch(self, dates_B: Tensor, chosen_BN: Tensor | None = None) -> Batch:
        """Gather the windows and cross-sections of some dates, session indices (int64) on the host.

        Sessions before the first of the panel are zeros (the channels' mean). ``chosen_BN``, bool over all
        firms of the panel and on the host, are the firms of the universe that count as present; by default,
        all of them. ValueError if a date is not in the panel, or no firm is in the universe on any of the
        dates.
        """
        _require_below("session", dates_B, len(self.listed_TN))
        chosen_BN = self.listed_TN[dates_B] if chosen_BN is None else chosen_BN
        most = int(chosen_BN.sum(dim=1).max())
        if most == 0:
            raise ValueError(
                f"No firm is in the universe at sessions {dates_B.tolist()}; "
                "choose other dates, or relax the universe rule."
            )
        firms_BN, m_BN = firms_in_places(chosen_BN, most)
        cells_M = m_BN.flatten().nonzero().squeeze(1)
        on_host = (dates_B[:, None], firms_BN)
        dates_B, firms_BN, m_BN, cells_M = (
            x.to(self.device, non_blocking=True) for x in (dates_B, firms_BN, m_BN, cells_M)
        )
        at = (dates_B[:, None].expand_as(firms_BN), firms_BN)
        x_BNWC, z_BNF = self.gather_inputs(*at, on_host)
        return Batch(
            x_BNWC=x_BNWC,
            z_BNF=z_BNF,
            m_BN=m_BN,
            s_BN=self.group_TN[at].long(),
            y_BN=self.target_TN[at],
            firms_N=firms_BN if len(dates_B) > 1 else firms_BN[0],
            key_BN=self.key_N[firms_BN],
            path_BNK=None if self.path_TNK is None else self.path_TNK[at],
            r_BN=None if self.return_TN is None else self.return_TN[at],
            present=PresentCells(m_BN, cells_M),
        )


def _require_below(name: str, index: Tensor, size: int) -> None:
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise ValueError(
            f"The {name} indices are from {int(index.min())} to {int(index.max())}; the panel has {size}, "
            "numbered from 0."
        )


def present_cells(values_BNX: Tensor, batch: Batch) -> Tensor:
    """Values [M, ...] of the firms in the universe, or of all positions of a dense batch."""
    if batch.dense:
        return values_BNX.flatten(0, 1)
    cells_M = _known_cells(batch)
    return values_BNX[batch.m_BN] if cells_M is None else values_BNX.flatten(0, 1).index_select(0, cells_M)


def scatter_present(h_MD: Tensor, batch: Batch) -> Tensor:
    """Scatter the rows of the present firms (or of all positions) into [B, N, D]; zeros elsewhere."""
    m_BN = batch.m_BN
    if len(h_MD) == m_BN.numel():
        return h_MD.reshape(*m_BN.shape, -1).masked_fill(~m_BN[:, :, None], 0.0)
    cells_M = _known_cells(batch)
    if cells_M is None:
        return h_MD.new_zeros(*m_BN.shape, h_MD.shape[-1]).masked_scatter(m_BN[:, :, None], h_MD)
    h_CD = h_MD.new_zeros(m_BN.numel(), h_MD.shape[-1]).index_copy(0, cells_M, h_MD)
    return h_CD.view(*m_BN.shape, -1)


def _known_cells(batch: Batch) -> Tensor | None:
    """Places of the firms in the universe, if they were found in the batch's own mask."""
    present = batch.present
    return present.cells_M if present is not None and present.m_BN is batch.m_BN else None


def select_dates(batch: Batch, date_U: Tensor) -> Batch:
    """Select dates of a batch; if all dates are views of one, the result is views of it too."""

    def take(value: Tensor) -> Tensor:
        return value[:1].expand(len(date_U), *value.shape[1:]) if value.stride(0) == 0 else value[date_U]

    return replace(
        batch,
        x_BNWC=take(batch.x_BNWC),
        z_BNF=take(batch.z_BNF),
        m_BN=take(batch.m_BN),
        s_BN=take(batch.s_BN),
        y_BN=take(batch.y_BN),
        key_BN=None if batch.key_BN is None else take(batch.key_BN),
    )


def recent_days(batch: Batch, days: int, ablation: Ablation | None) -> Tensor:
    """The last ``days`` sessions of every window, flattened to [B, N, days * C]; ablated days are 0."""
    x_BNKC = batch.x_BNWC[:, :, -days:]
    if ablation is not None and ablation.days_keep_BW is not None:
        x_BNKC = x_BNKC * ablation.days_keep_BW[:, None, -days:, None]
    return x_BNKC.flatten(2)


def days_kept(batch: Batch, ablation: Ablation | None) -> Tensor | None:
    """Bool [M, W] for the present firms: False for ablated days; None if no day is ablated."""
    if ablation is None or ablation.days_keep_BW is None:
        return None
    assert not batch.dense, "explainers use batches of one date"
    return present_cells(ablation.days_keep_BW[:, None, :].expand(*batch.m_BN.shape, -1), batch)


def firms_in_places(chosen: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Give each chosen firm of a date a place: at most P of ``chosen``, bool [..., B, N].

    Returns the firms of the places, int64 [..., B, P]: the chosen ones in ascending order, then others; and
    whether each of them is chosen, bool of the same shape.
    """
    firms = chosen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :places]
    return firms, chosen.gather(-1, firms)
