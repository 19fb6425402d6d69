"""Where residuals are dense: the peak of clean ones at zero, and their mode where errors have shifted it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import constants
from ..lowrank import Array


@dataclass(frozen=True)
class Peak:
    """The narrowest peak at zero that stands out of the residuals.

    Attributes
    ----------
    zeta : a threshold that nearly all of the peak is within
    share : of all residuals that are in the peak, less the ground below it; 0: there is no peak
    """

    zeta: float
    share: float

    @property
    def deviation(self) -> float:
        """The standard deviation, if the peak is Gaussian: two of them hold 95 % of it, and zeta is twice as wide."""
        return self.zeta / (2 * constants.PEAK_MARGIN)


def find_peak(sizes: Array, lowest: float = 0.0, fewest: float = 0.0) -> Peak:
    """Return the narrowest peak of absolute residuals at zero that cannot be chance.

    For every width the residuals within it are compared with as many as a flat ground would have there, by those from
    twice to four times the width. From narrow to wide, the first width at which the difference is the most significant,
    before it becomes less so, is that of the peak. It is no narrower than ``lowest``, and holds a share ``fewest`` of
    them: with fewer than one for each unknown, least squares would fit whatever is kept.
    """
    if not len(sizes):
        return Peak(0.0, 0.0)
    sizes = np.sort(sizes)
    n, first = len(sizes), max(float(sizes[min(constants.BUDGET.fewest, len(sizes)) - 1]), lowest, np.finfo(float).tiny)
    steps = int(np.log(max(sizes[-1] / first, 1.0)) / np.log(constants.WIDTH_STEP)) + 1
    widths = first * constants.WIDTH_STEP ** np.arange(steps)
    once, twice, four = (np.searchsorted(sizes, k * widths, side="right") for k in (1, 2, 4))
    ground = 0.5 * (four - twice)
    excess = once - ground
    z = np.where(excess >= fewest * n, excess / np.sqrt(1.5 * ground + 1), 0.0)
    highest = np.maximum.accumulate(z)
    fallen = z < highest - np.maximum(1.0, 0.05 * highest)  # z has a standard error of one
    past = np.flatnonzero(fallen & (highest > constants.SIGNIFICANT_STANDARD_ERRORS))
    end = past[0] if len(past) else len(z)
    at = int(np.argmax(z[:end]))
    if z[at] <= constants.SIGNIFICANT_STANDARD_ERRORS:
        return Peak(float(sizes[-1]), 0.0)
    enough = int(np.argmax(excess[: at + 1] >= constants.PEAK_SHARE * excess[at]))
    return Peak(constants.PEAK_MARGIN * float(widths[enough]), float(excess[at] / n))


def find_mode(R: Array, share: float) -> tuple[float, float]:
    """Return the middle of the shortest interval that holds a share of the residuals, and half its width."""
    R = np.sort(R[np.isfinite(R)])
    h = max(int(share * len(R)), 2)
    if len(R) < h:
        return 0.0, 0.0
    width = R[h - 1 :] - R[: len(R) - h + 1]
    i = int(width.argmin())
    return float(np.median(R[i : i + h])), float(width[i]) / 2
