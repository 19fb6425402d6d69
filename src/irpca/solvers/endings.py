"""When a method that trims may stop, and when it has failed."""

from __future__ import annotations

import numpy as np

from ..engines.base import Trim
from ..lowrank import LowRank
from ..sample import rounding_floor

MAX_SHARE_IN_S = 0.5  # of the entries: with more, S is no longer a sparse matrix
MAX_SHARE_IN_ROBUST_S = 0.9  # the same for methods that are known to recover from more than half
GROSS = 1e-6  # relative to L: smaller residuals are not gross errors

NOISE = "Check the rank (this method ends up calling noise and rounding outliers)"


def typical(L: LowRank) -> float:
    """The root mean square of the entries of L, which has orthonormal outer factors."""
    n1, n2 = L.shape
    return float(np.linalg.norm(L.core) / np.sqrt(n1 * n2))


def threshold_floor(L: LowRank, dtype: np.dtype) -> float:
    """A lower threshold would call rounding errors outliers."""
    return rounding_floor(dtype, 10 * typical(L))


def nothing_left(L: LowRank, trim: Trim) -> bool:
    """Whether all residuals kept are negligible beside L: then a small step ends it, whatever the threshold."""
    return trim.largest <= GROSS * typical(L)


def saturation(full: float, advice: str = NOISE) -> str | None:
    """The message for an S that holds the share ``full`` of the entries, if that is too much."""
    if full <= MAX_SHARE_IN_ROBUST_S:
        return None
    return (
        f"{full:.0%} of the cells are beyond the threshold and count as outliers (S), which is no answer. {advice}, or "
        "use solver='irpca', which estimates the threshold"
    )
