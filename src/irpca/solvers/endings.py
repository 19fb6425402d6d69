"""When a method that trims may stop, and when it has failed."""

from __future__ import annotations

import numpy as np

from ..engines.base import Trim
from ..lowrank import LowRank
from ..threshold import rounding_floor

FULL = 0.5  # beyond this share of the entries, S is no longer a sparse matrix
SWAMPED = 0.9  # as FULL, for methods that are known to recover from more than half
GROSS = 1e-6  # what is smaller than this beside L is not a gross error

NOISE = "Check the rank; if M is noisy or rounded, this method goes on until all of that is in S"


def typical(L: LowRank) -> float:
    """The root mean square of the entries of L, which has orthonormal outer factors."""
    n1, n2 = L.shape
    return float(np.linalg.norm(L.core) / np.sqrt(n1 * n2))


def threshold_floor(L: LowRank, dtype: np.dtype) -> float:
    """Below this a threshold would find rounding errors."""
    return rounding_floor(dtype, 10 * typical(L))


def nothing_left(L: LowRank, trim: Trim) -> bool:
    """Whether all that is kept is tiny beside L: then a small step is the end, however low the threshold could fall."""
    return trim.largest <= GROSS * typical(L)


def saturation(full: float, advice: str = NOISE) -> str | None:
    """What to tell when S holds the share ``full`` of the entries."""
    if full <= SWAMPED:
        return None
    return (
        f"S fills up: {full:.0%} of the entries are beyond the threshold. {advice}, or take solver='irpca', which "
        "finds its own threshold"
    )
