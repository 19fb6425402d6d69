"""The rules by which the threshold ζ falls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

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


# Phase 1 of the adaptive rule: ζ = k · quantile_q(|R|). A low quantile survives more corruption, a high one needs fewer
# clean entries; no single pair serves every level, so each is tried in turn and the best explanation kept.
STARTS = ((0.3, 8.0), (0.05, 15.0), (0.05, 40.0))
MAJORITY_STARTS = ((0.5, 8.0),)  # for noise with long tails, where only the majority can say what is normal

LAGGING = 0.005  # the share of clean entries that may lag behind rounding when a fit is called exact
ROOM = 1000.0  # what is no larger than so many times rounding is not a gross error either
TAIL = 0.02  # of the clean entries: more than Gaussian noise can have beyond the efficient cut
LEAST_CLEAN = 0.03  # share of the entries that the clean ones must be
CORE = 2.0  # the window, in standard deviations, in which the noise is looked at


def quantile(sizes: Array, q: float) -> float:
    """The q-quantile, as the entry next below it."""
    at = int(q * (len(sizes) - 1))
    return float(np.partition(sizes, at)[at])


def rounding_floor(dtype: np.dtype, largest: float) -> float:
    """The size below which a residual is rounding: S must not fill with it.

    ``largest`` is the largest entry of L. That of M would let one huge outlier hide all the others.
    """
    return 64 * float(np.finfo(dtype).eps) * largest


@dataclass(frozen=True)
class Level:
    """What a look at residuals says about the noise, and the threshold that follows.

    Attributes
    ----------
    sigma : standard deviation of the noise; 0 if it is below rounding
    clean : share of the entries that are not corrupted
    floor : size below which a residual is rounding
    zeta : threshold for the most accurate fit
    """

    sigma: float
    clean: float
    floor: float
    zeta: float

    @property
    def exact(self) -> bool:
        return self.sigma == 0.0


def level(
    sizes: Array,
    floor: float,
    noise: float | None = None,
    most: float = 5.0,
    majority: bool = False,
    near: float = 0.0,
) -> Level:
    """Noise, clean share and threshold from the sizes ``|R|`` of residuals at random entries.

    Parameters
    ----------
    sizes : array
    floor : size below which a residual is rounding
    noise : the standard deviation of the noise, if it is known
    most : the largest entry, in standard deviations, that Gaussian noise is expected to have
    majority : take the noise from the median rather than from the innermost core
    near : size below which a residual is no gross error, when others are at rounding: it belongs to a row that lags;
        0 if no row can
    """
    sizes = np.sort(sizes)
    if majority:
        sigma = 1.4826 * float(np.median(sizes))
        zeta = max(most * sigma, floor)
        return Level(0.0 if sigma <= floor / 8 else sigma, _share(sizes, zeta), floor, zeta)
    sigma, clean = core_scale(sizes)
    if noise is not None:
        sigma, clean = noise, max(_share(sizes, CORE * noise), 0.01) / coverage(CORE)
    if sigma <= floor / 8:
        close = sizes[: np.searchsorted(sizes, max(near, ROOM * floor), side="right")]
        if near and np.count_nonzero(close > floor) > LAGGING * len(close):
            return Level(float(np.sqrt(np.mean(close**2))), len(close) / len(sizes), floor, float(close[-1]))
        # Rounding grows where features are coherent; a gross error is far beyond what nearly all clean entries show.
        zeta = max(floor, 8 * float(np.quantile(close, 0.999))) if len(close) else floor
        return Level(0.0, _share(sizes, zeta), floor, zeta)
    zeta = efficient_cut(sizes, sigma, most) * sigma
    gap = valley(sizes, floor)
    below = sizes[: np.searchsorted(sizes, gap)]
    if gap > zeta and np.count_nonzero(below > zeta) > TAIL * len(below):
        # Noise has long tails, and gross errors are another crowd beyond them: the median says what is normal.
        zeta = max(zeta, min(gap, most * 1.4826 * float(np.median(below))))
    return Level(sigma, min(clean, 1.0), floor, max(zeta, floor))


def _share(sizes: Array, limit: float) -> float:
    return float(np.searchsorted(sizes, limit, side="right") / len(sizes))


def core_scale(sizes: Array) -> tuple[float, float]:
    """Standard deviation and share of the clean entries, from the sizes ``|R|`` of residuals (sorted), both at once.

    The clean residuals are taken as Gaussian near zero. Within a window of ±2σ the mean square of a Gaussian is a known
    part of σ²; the window is opened from the smallest residuals until that holds. What lies in it, and the known part
    of a Gaussian that it holds, give the clean share. Starting from below finds the innermost core, whatever the rest;
    but not one of hardly any entries, such as a dead sensor makes.
    """
    squares = np.cumsum(sizes**2)
    n = len(sizes)
    for part in (50, 20, 10, 5):
        sigma, clean = _core_from(max(n // part, min(50, n // 8)), sizes, squares)  # fewer crowd together by chance
        if clean >= LEAST_CLEAN:
            break
    return sigma, clean


def _core_from(start: int, sizes: Array, squares: Array) -> tuple[float, float]:
    n, sigma = len(sizes), sizes[start] / CORE
    for _ in range(200):
        inside = int(np.searchsorted(sizes, CORE * sigma, side="right"))
        if inside == 0 or sigma == 0:
            break
        wider = float(np.sqrt(squares[inside - 1] / inside / truncated_variance(CORE)))
        settled = abs(wider - sigma) <= 1e-6 * sigma
        sigma = wider
        if settled or inside == n:
            break
    inside = int(np.searchsorted(sizes, CORE * sigma, side="right"))
    return float(sigma), inside / n / coverage(CORE)


def coverage(c: float) -> float:
    """Share of a Gaussian within ±c standard deviations."""
    return math.erf(c / math.sqrt(2))


def truncated_variance(c: float) -> float:
    """Variance of a standard Gaussian cut to ±c."""
    return 1 - 2 * c * math.exp(-c * c / 2) / math.sqrt(2 * math.pi) / coverage(c)


def efficient_cut(sizes: Array, sigma: float, most: float) -> float:
    """The threshold, in units of σ, at which trimmed least squares is most accurate on residuals like these (sorted).

    The error variance of trimming at w is E[r²; |r| ≤ w] / (P(|r| ≤ w) − w f(w))², f the density of |r|: a low cut
    loses clean entries, a high one lets outliers in. Among equals the highest is taken: it flags fewest clean entries.
    """
    sizes = sizes / sigma
    squares = np.cumsum(sizes**2)
    cuts = np.arange(CORE, max(most, CORE + 0.5) + 1e-9, 0.125)
    half = 0.25
    inside = np.searchsorted(sizes, cuts, side="right")
    density = (np.searchsorted(sizes, cuts + half) - np.searchsorted(sizes, cuts - half)) / (2 * half)
    slope = inside - cuts * density
    with np.errstate(divide="ignore"):
        variance = np.where(slope > 0, squares[np.maximum(inside, 1) - 1] / slope.astype(float) ** 2, np.inf)
    good = variance <= variance.min() * 1.001
    return float(cuts[np.nonzero(good)[0][-1]])


def stray_lines(kept: Array, observed: Array) -> Array:
    """Rows (or columns) of whose observed entries far fewer are kept than of others': L is not to be trusted there."""
    seen = observed > 0
    share = kept / np.maximum(observed, 1)
    return np.nonzero(seen & (share < 0.5 * np.median(share[seen])))[0]


def has_valley(sizes: Array, floor: float) -> bool:
    """Whether small and large residuals are two crowds with a valley between, on a logarithmic scale.

    Then the small ones are the clean entries, however few. One crowd with a long tail is noise of its own kind, and
    nothing but the majority can say what is normal.
    """
    return valley(sizes, floor) > 0


def valley(sizes: Array, floor: float) -> float:
    """The size at the bottom of the first such valley; 0 if there is none."""
    if not len(sizes):
        return 0.0
    logs = np.log(np.maximum(sizes, max(floor, np.finfo(float).tiny)))
    if logs.max() == logs.min():
        return 0.0
    width = 0.15 * max(1.0, (20_000 / len(sizes)) ** 0.2)
    counts, edges = np.histogram(logs, np.arange(logs.min() - width, logs.max() + 2 * width, width))
    smooth = np.convolve(counts, (0.25, 0.5, 0.25), mode="same")
    left = np.maximum.accumulate(smooth)
    right = np.maximum.accumulate(smooth[::-1])[::-1]
    lower = np.minimum(left, right)
    crowd = np.cumsum(counts) >= 0.01 * len(sizes)
    deep = (smooth < 0.7 * lower) & (lower - smooth > 3.5 * np.sqrt(lower + smooth + 1)) & crowd
    if not deep.any():
        return 0.0
    first = int(deep.argmax())
    last = first + int(np.append(~deep[first:], True).argmax())
    bottom = first + int(smooth[first:last].argmin())
    return float(np.exp((edges[bottom] + edges[bottom + 1]) / 2))


def has_core(sizes: Array, sigma: float) -> bool:
    """Whether residuals crowd around zero as noise does, rather than leave a hole there."""
    near = np.count_nonzero(sizes <= 0.5 * sigma) / 0.5
    far = np.count_nonzero((sizes > sigma) & (sizes <= 2 * sigma))
    return bool(near > 1.5 * far)  # 2.8 for a Gaussian, 1.9 for rounded values


def consensus(sizes: Array, floor: float) -> float:
    """Mean logarithm of the residuals: lower is a better explanation. Outliers hardly move it, exact fits much."""
    return float(np.log(np.maximum(sizes, max(floor, np.finfo(float).tiny))).mean())
