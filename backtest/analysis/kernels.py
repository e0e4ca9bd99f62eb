"""Compiled loops over the rows of a ledger. Importing this module imports numba.

Shape suffixes: T sessions, N firms, R rows of the ledger, K styles.
"""

from __future__ import annotations

from features.arithmetic.kernels import compiled
from features.arrays import Float32Array, FloatArray, IntArray


@compiled
def add_scored(  # noqa: PLR0917 - a compiled loop takes its output array as a positional argument
    session_R: IntArray,
    firm_R: IntArray,
    amount_R: FloatArray,
    score_KTN: Float32Array,
    sessions_ago: int,
    out_TK: FloatArray,
) -> None:
    """Add amount times score to the session of each row; scores are those of some sessions ago.

    Rows of the first sessions, before which there is no score, add nothing.
    """
    for r in range(len(session_R)):
        known = session_R[r] - sessions_ago
        if known >= 0 and amount_R[r] != 0.0:
            for k in range(score_KTN.shape[0]):
                out_TK[session_R[r], k] += amount_R[r] * score_KTN[k, known, firm_R[r]]
