"""Thresholds: the paper's schedule, and what rounding is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .features import Features
from .lowrank import Array


def paper_start(F1: Features, F2: Features, c_W: float) -> float:
    """The paper's bound on ‖L*‖∞, ``mu1 mu2 sigma1 sigma2 sqrt(d1 d2 / (n1 n2)) c_W``: ζ_1 of Algorithm 1 for ν = 0."""
    spread = np.sqrt(F1.d * F2.d / (F1.n * F2.n))
    return float(F1.mu * F2.mu * F1.sigma_max * F2.sigma_max * spread * c_W)


def paper_schedule(start: float, nu: float, decay: float = 5.0) -> Iterator[float]:
    """ζ_t = start / 5^(t−1) + ν for t = 1, 2, … (step 5 of Algorithm 1)."""
    while True:
        yield start + nu
        start /= decay


def quantile(sizes: Array, q: float) -> float:
    """The q-quantile, as the entry next below it."""
    at = int(q * (len(sizes) - 1))
    return float(np.partition(sizes, at)[at])


def rounding_floor(dtype: np.dtype, largest: float) -> float:
    """The size below which a residual is rounding: S must not fill with it.

    ``largest`` is the largest entry of L. That of M would let one huge outlier hide all the others.
    """
    return 64 * float(np.finfo(dtype).eps) * largest
