"""The panel on one device, and the batches of dates every forecaster sees.

Legend: B dates in a batch, N firms, W window length, C channels, F characteristics, T sessions,
L peer layers, H heads, S sessions with those before the first.  Index t is the close of session t.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.spec import Shape


@dataclass(frozen=True, slots=True, eq=False)
class Ablation:
    """What an explainer removes from a forward pass; ``None`` removes nothing.

    Attributes
    ----------
    days_keep_BW
        bool.  False: the day encoder masks that day as a key for every firm, and forgets what the
        day held where it is itself a query or a linear term, so that nothing of it is left.
    peers_keep_BN
        bool.  False: firm j is masked as a key for every other firm.  Its own forecast keeps its
        own information, which never travels through peer attention.
    """

    days_keep_BW: Tensor | None = None
    peers_keep_BN: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B dates of the panel, holding the firms that are in the universe on at least one of them.

    Attributes
    ----------
    x_BNWC
        float32 scaled channels of the W sessions that end at each date; no NaN.
    z_BNF
        float32 characteristics at the date, rank-normal within the date; unknown is 0.
    m_BN
        bool, in the universe at the date.
    s_BN
        int64 group code at the date; 0 is unknown.
    y_BN
        float32 target, known only after the label's span has passed; NaN is unknown.
    firms_N
        int64 columns of the panel that the batch holds, ascending.  A dense batch has places, whose firms
        differ from date to date: [B, N].
    dense
        Every place is computed, in the universe or not, so that no shape depends on values.
    key_BN
        int64 :func:`firm_key` of each firm's name, by which a model recognises a firm that its options
        name, wherever its column is; 0 where the panel has no names.  None: names are not asked for.
    path_BNK
        float32 targets of the horizons shorter than the label's, ascending, K - 1 of them; NaN is unknown.
        None without any.
    """

    x_BNWC: Tensor
    z_BNF: Tensor
    m_BN: Tensor
    s_BN: Tensor
    y_BN: Tensor
    firms_N: Tensor
    key_BN: Tensor | None = None
    dense: bool = False
    path_BNK: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """Attention weights read from the explicit path.

    Attributes
    ----------
    days_BNW
        Weight of each day in what the last day-encoder layer hands on, averaged over heads; rows of
        firms outside the universe are 0.  None for models without a day encoder.
    peers_BLHNN
        Weight of key firm j (last axis) for query firm i (last but one).  A row sums to 1 minus the
        weight of the null key.  None for models without peers.
    """

    days_BNW: Tensor | None = None
    peers_BLHNN: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PanelTensors:
    """The panel as tensors on one device, built once; windows are gathered batch by batch.

    Attributes
    ----------
    history_NSC
        float32 channels, scaled with a fold's training sessions; no NaN. S is W-1+T: before a firm's
        first session lie W-1 sessions of zeros (the channels' centre), so that the window that ends at
        session t is the run of W sessions from S index t on, in one piece of memory.
    characteristics_TNF
        float32, rank-normal within the date; no NaN.
    mask_TN
        bool, the universe.
    group_TN
        int64, 0 is unknown and the panel's code plus 1 otherwise.
    target_TN
        float32, NaN is unknown.
    key_N
        int64 :func:`firm_key` of each firm's name; 0 without names.
    shape
        What a model needs to be built for this panel.
    path_TNK
        float32 targets of the horizons shorter than the label's, ascending; NaN is unknown. None without any.
    """

    history_NSC: Tensor
    characteristics_TNF: Tensor
    mask_TN: Tensor
    group_TN: Tensor
    target_TN: Tensor
    key_N: Tensor
    shape: Shape
    path_TNK: Tensor | None = None

    @property
    def window(self) -> int:
        """Number of sessions in a window."""
        return self.shape.window

    @property
    def device(self) -> torch.device:
        """The device that holds every tensor."""
        return self.mask_TN.device

    @property
    def channels_TNC(self) -> Tensor:  # noqa: N802 - a shape suffix, as of the other attributes
        """The channels by session and firm, a view."""
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
        device: torch.device | str = "cpu",
    ) -> PanelTensors:
        """Copy numpy arrays to a device.

        Parameters
        ----------
        channels_TNC, characteristics_TNF
            Scaled channels and rank-normal characteristics; NaN (unknown) becomes 0, their centre.
        mask_TN
            Universe.
        group_TN
            The panel's codes, -1 for unknown.
        target_TN
            Target in the label's unit (or rank-normal); NaN is unknown.
        window
            Sessions in a window.
        n_groups
            Number of the panel's groups, ``len(panel.groups_S)``; the largest code seen plus 1 when
            not given.
        characteristic_names
            Names of the F characteristics, for the models that ask for one by name.
        firm_names
            Tickers of the N firms, for the models that ask for firms by name; may be left out.
        path_TNK
            Targets of the horizons shorter than the label's, ascending; NaN is unknown.
        device
            Where the tensors live.

        Raises
        ------
        ValueError
            When shapes or names disagree, or a group code is not below ``n_groups``.
        """
        mask = np.ascontiguousarray(mask_TN, dtype=np.bool_)
        arrays = {
            "channels_TNC": np.asarray(channels_TNC, dtype=np.float32),
            "characteristics_TNF": np.asarray(characteristics_TNF, dtype=np.float32),
            "target_TN": np.asarray(target_TN, dtype=np.float32),
        }
        if path_TNK is not None:
            arrays["path_TNK"] = np.asarray(path_TNK, dtype=np.float32)
        group = np.asarray(group_TN).astype(np.int64) + 1
        checked: dict[str, npt.NDArray[Any]] = {**arrays, "group_TN": group}
        for name, array in checked.items():
            if mask.ndim != 2 or array.shape[:2] != mask.shape or array.ndim != len(name.split("_")[1]):
                raise ValueError(
                    f"{name} has shape {array.shape} but mask_TN has {mask.shape}: "
                    "pass arrays over the same sessions and firms."
                )
            if np.isinf(array).any():
                raise ValueError(f"{name} holds infinite values: clip them, or set them to NaN (unknown).")
        highest = int(group.max(initial=0))
        total = highest + 1 if n_groups is None else n_groups + 1
        if highest >= total or int(group.min(initial=0)) < 0:
            raise ValueError(
                f"group_TN holds codes from {int(group.min()) - 1} to {highest - 1} but n_groups is "
                f"{total - 1}: codes run from 0 to n_groups - 1, and -1 is unknown."
            )
        if len(firm_names) not in (0, mask.shape[1]):
            raise ValueError(
                f"{len(firm_names)} firm names were given for {mask.shape[1]} firms: give one each, or none."
            )
        keys = [firm_key(name) for name in firm_names] or [0] * mask.shape[1]
        channels = np.nan_to_num(arrays["channels_TNC"], nan=0.0)
        characteristics = np.nan_to_num(arrays["characteristics_TNF"], nan=0.0)
        shape = Shape(
            n_channels=channels.shape[2],
            n_characteristics=characteristics.shape[2],
            window=window,
            n_groups=total,
            characteristic_names=tuple(characteristic_names),
            n_horizons=1 + (arrays["path_TNK"].shape[2] if "path_TNK" in arrays else 0),
        )
        T, N, C = channels.shape
        history_NSC = torch.zeros((N, window - 1 + T, C))
        history_NSC[:, window - 1 :] = torch.from_numpy(channels).transpose(0, 1)
        return cls(
            history_NSC=history_NSC.to(device),
            characteristics_TNF=torch.tensor(characteristics, device=device),
            mask_TN=torch.tensor(mask, device=device),
            group_TN=torch.tensor(group, device=device),
            target_TN=torch.tensor(arrays["target_TN"], device=device),
            key_N=torch.tensor(keys, dtype=torch.int64, device=device),
            shape=shape,
            path_TNK=torch.tensor(arrays["path_TNK"], device=device) if "path_TNK" in arrays else None,
        )

    def windows(self, sessions: Tensor, firms: Tensor) -> Tensor:
        """Gather windows, each a single copy of W x C numbers that lie together.

        Parameters
        ----------
        sessions
            int64 sessions that the windows end at.
        firms
            int64 firms, of the same shape or one that broadcasts with it.

        Returns
        -------
        Tensor
            float32 of the common shape followed by W and C; sessions before the panel's first are zeros.

        Raises
        ------
        ValueError
            When a session or firm is not in the panel.
        """
        N, S, C = self.history_NSC.shape
        for name, index, size in (("session", sessions, len(self.mask_TN)), ("firm", firms, N)):
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
                raise ValueError(
                    f"The {name} indices run from {int(index.min())} to {int(index.max())}: "
                    f"the panel has {size}, counted from 0."
                )
        first = firms * S + sessions  # where the window's first session lies
        every_window = self.history_NSC.as_strided((N * S - self.window + 1, self.window * C), (C, 1))
        return every_window.index_select(0, first.flatten()).view(*first.shape, self.window, C)

    def batch(self, dates_B: Tensor) -> Batch:
        """Gather the windows and cross-sections of some dates.

        Firms outside the universe on every one of the dates are left out; sessions before the
        panel's first are zeros (the channels' centre).

        Parameters
        ----------
        dates_B
            int64 session indices.

        Raises
        ------
        ValueError
            When no firm is in the universe on any of the dates.
        """
        dates_B = dates_B.to(self.device)
        present_BN = self.mask_TN[dates_B]
        firms_N = present_BN.any(dim=0).nonzero().squeeze(1)
        if firms_N.numel() == 0:
            raise ValueError(
                f"No firm is in the universe at sessions {dates_B.tolist()}: "
                "ask for dates with a universe, or loosen the universe rule."
            )
        at = (dates_B[:, None], firms_N)
        return Batch(
            x_BNWC=self.windows(*at),
            z_BNF=self.characteristics_TNF[at],
            m_BN=self.mask_TN[at],
            s_BN=self.group_TN[at],
            y_BN=self.target_TN[at],
            firms_N=firms_N,
            key_BN=self.key_N[firms_N].expand(len(dates_B), -1),
            path_BNK=None if self.path_TNK is None else self.path_TNK[at],
        )


def firm_key(name: str) -> int:
    """63 bits of a name's BLAKE2b hash: the same on every machine, whatever the other firms are."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def present_windows(batch: Batch) -> Tensor:
    """Windows [M, W, C] of the firms in the universe, or of every place of a dense batch."""
    return batch.x_BNWC.flatten(0, 1) if batch.dense else batch.x_BNWC[batch.m_BN]


def scatter_present(h_MD: Tensor, m_BN: Tensor) -> Tensor:
    """Put the rows of the present firms (or of all) back to their places in [B, N, D], zeros elsewhere."""
    if len(h_MD) == m_BN.numel():
        return h_MD.reshape(*m_BN.shape, -1).masked_fill(~m_BN[:, :, None], 0.0)
    h_BND = h_MD.new_zeros(*m_BN.shape, h_MD.shape[-1])
    return h_BND.masked_scatter(m_BN[:, :, None], h_MD)


def recent_days(batch: Batch, days: int, ablation: Ablation | None) -> Tensor:
    """The last ``days`` sessions of every window, flattened to [B, N, days * C]; cut days are 0."""
    x_BNKC = batch.x_BNWC[:, :, -days:]
    if ablation is not None and ablation.days_keep_BW is not None:
        x_BNKC = x_BNKC * ablation.days_keep_BW[:, None, -days:, None]
    return x_BNKC.flatten(2)


def days_kept(batch: Batch, ablation: Ablation | None) -> Tensor | None:
    """Days [M, W] that are kept for the present firms; None where none is cut."""
    if ablation is None or ablation.days_keep_BW is None:
        return None
    assert not batch.dense, "an explainer's batches hold one date's firms"
    return ablation.days_keep_BW[:, None, :].expand(*batch.m_BN.shape, -1)[batch.m_BN]
