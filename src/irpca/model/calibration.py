"""The probability that a residual is a gross error, from the distribution of all residuals.

Residuals are standardised, each by its own uncertainty. Their sizes |z| are counted in bins of equal width in log |z|.
The count of a bin is Poisson with the mean ``clean · f0(bin) + excess(bin)``: f0 is the density of clean noise, the
excess is due to gross errors. The only assumption about the excess is that it is zero within Tukey's fence (four clean
medians of |z|, 2.7 standard deviations of Gaussian noise), which is what "gross" means here. f0 is fitted on a grid of
shapes and scales: generalised Gaussian (Laplace, Gaussian, lighter tails), Student (1.5 degrees of freedom and more),
and Gaussian with a log-normal standard deviation (noise of unequal size).

The tail of f0: a bin outside the fence either agrees with f0, and contributes its misfit to the likelihood, or holds
more entries than f0 expects, and gets a free excess at a fixed penalty. So the misfit of an excess is bounded (gross
errors do not make the tail of f0 heavier), while that of a bin with fewer entries than f0 expects is not: f0 cannot
have heavier tails than the data. Points of the grid are averaged with the weights ``exp(−misfit)``: where data do not
distinguish a heavy tail from gross errors, both are taken into account.

The probability of a gross error is ``1 − expected clean entries / entries``, made non-decreasing in |z| by isotonic
regression, and shrunk towards 0 by the posterior odds that the excess is real.

Where the clean residuals are skewed, all of this is done on either side of their median by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from .. import constants
from ..lowrank import Array
from .choice import skewness

AT_ONCE = 256  # points of the grid that are tried together: what they make stays in cache


class Calibration:
    """The probability of a gross error as a function of the standardised residual.

    Parameters
    ----------
    z : array
        Standardised residuals of any shape; those that are not finite are left out.
    fence : float
        Smaller residuals are no gross errors.
    gross : float
        A first estimate of the share of gross errors: where they are many, the median of all residuals is not that of
        the clean ones.

    Attributes
    ----------
    share : float
        Estimated share of gross errors.
    scale : float
        Half the width of the central 68.27 % of the clean noise: its standard deviation if it is Gaussian.
    sd : float
        Standard deviation of the clean residuals, each weighted by the probability that it is clean.
    limit : float
        The size |z| from which on the probability exceeds one half; infinite if it never does.
    center : float
        The median of the clean residuals if they are skewed, else 0.
    edges, levels, counts, clean : arrays
        Bins of z, from the smallest to the largest: the edges between them, one of which is the center; of each bin the
        probability, the entries, and how many of these clean noise explains.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> z = rng.standard_normal(10_000)
    >>> z[:500] += 20
    >>> calibration = Calibration(z)
    >>> np.round(calibration([0.5, 20.0, np.nan]), 2), round(calibration.share, 2)
    (array([ 0.,  1., nan]), 0.05)
    """

    def __init__(self, z: Array, gross: float = 0.0, fence: float = 0.0) -> None:
        z = np.asarray(z, float).ravel()
        z = z[np.isfinite(z)]
        self.edges, self.levels = np.zeros(0), np.zeros(1)
        self.counts, self.clean = np.full(1, float(z.size)), np.full(1, float(z.size))
        self.center, self.share, self.scale, self.sd = 0.0, 0.0, 0.0, 0.0
        if z.any():
            self._learn(z, gross, fence)

    def __call__(self, z: Any) -> Any:
        """The probability that each entry is a gross error; NaN where z is. Of an array, or of a tensor."""
        xp = array_namespace(z) if hasattr(z, "shape") else np
        z = xp.asarray(z)
        edges, levels = (xp.asarray(part, dtype=xp.float64, device=device(z)) for part in (self.edges, self.levels))
        level = levels[xp.searchsorted(edges, xp.astype(z, xp.float64), side="right")]
        if len(self.edges):
            level = xp.maximum(level, self._unseen(z))
        return xp.where(xp.isnan(z), xp.nan, level)

    def _unseen(self, z: Any) -> Any:
        """The probability where nothing was seen when this was learned; 0 elsewhere.

        By the rule of succession one more of n entries is a gross error as likely as the largest clean one of n. Beyond
        that one, clean entries are rarer by at least the heaviest tail that noise may have, a power of their size.
        """
        ratio = array_namespace(z).maximum(
            (z - self.center) / (self.edges[-1] - self.center), (z - self.center) / (self.edges[0] - self.center)
        )
        return (ratio > constants.UNSEEN_FACTOR) * (1 / (1 + ratio.clip(1.0) ** (-1 / constants.STUDENT_TAILS[1])))

    @property
    def skewed(self) -> bool:
        """Whether residuals above and below the median of the clean ones are judged apart."""
        return self.center != 0

    @property
    def limit(self) -> float:
        return self.size_at(0.5)

    @property
    def largest(self) -> float:
        """The size up to which there were residuals on both sides."""
        return float(min(-self.edges[0], self.edges[-1]))

    def limits_at(self, probability: float) -> tuple[float, float]:
        """Below the first and above the second the probability exceeds this; infinite if it never does."""
        found = [np.inf, np.inf]
        for k, (edges, levels) in enumerate(self._sides(self.levels)):
            wrong = np.flatnonzero(levels > probability)
            found[k] = float(edges[wrong[0]]) if len(wrong) else np.inf
        return self.center - found[1], self.center + found[0]

    def size_at(self, probability: float) -> float:
        """The size |z| from which on the probability exceeds this, on one side at least; infinite if it never does."""
        low, high = self.limits_at(probability)
        return max(min(-low, high), 0.0)

    def below(self, z: Any) -> Any:
        """The share of the clean entries that are smaller; beyond the bins it changes as with the heaviest tail."""
        xp = array_namespace(z)
        if not len(self.edges):
            return xp.where(z > 0, xp.ones_like(z), xp.zeros_like(z))
        upper, lower = (
            _beyond(side * (z - self.center), *tail) for side, tail in zip((1, -1), self._tails, strict=True)
        )
        return xp.where(z > self.center, 1 - upper, lower)

    def size_of_tail(self, share: float) -> float:
        """The size beyond which this share of the clean entries is, on one side at least, or a lower bound of it."""
        if not len(self.edges):
            return 0.0
        sizes = [edges[max(int(np.searchsorted(-shares, -share)) - 1, 0)] for edges, shares in self._tails]
        return float(max(min(sizes[0] + self.center, sizes[1] - self.center), 0.0))

    def _sides(self, of_bins: Array) -> list[tuple[Array, Array]]:
        """Lower edges of the bins, as distances from the center, and a number of each; above the center, and below."""
        if not len(self.edges):
            return []
        middle = int(np.searchsorted(self.edges, self.center))
        above = self.edges[middle:] - self.center, of_bins[middle + 1 :]
        return [above, (self.center - self.edges[middle::-1], of_bins[middle::-1])]

    @property
    def _tails(self) -> list[tuple[Array, Array]]:
        """Distances from the center, and the shares of clean entries beyond them; no tail is known to be empty."""
        total = self.clean.sum()
        return [
            (edges, np.maximum(np.cumsum(clean[::-1])[::-1] / total, constants.MIN_BIN_PROBABILITY))
            for edges, clean in self._sides(self.clean)
        ]

    def _learn(self, z: Array, gross: float, fence: float) -> None:
        self.center = _center(z, gross)
        if self.center:
            above = _learned(np.sort(z[z > self.center] - self.center), gross, fence)
            below = _learned(np.sort(self.center - z[z <= self.center]), gross, fence)
        else:
            both = _learned(np.sort(np.abs(z)), gross, fence)
            above = below = both._replace(counts=both.counts / 2, clean=both.clean / 2)
        self.edges = np.r_[self.center - below.edges[::-1], self.center, self.center + above.edges]
        self.levels = np.r_[below.levels[::-1], above.levels]
        self.counts, self.clean = np.r_[below.counts[::-1], above.counts], np.r_[below.clean[::-1], above.clean]
        self.share = float(self.levels @ self.counts / z.size)
        self.scale = (above.scale + below.scale) / 2
        wrong, sizes = self(z), np.abs(z)
        clean, most = 1 - wrong, sizes[wrong <= 0.5].max(initial=0.0)  # larger ones count as this: z² has no bound
        self.sd = float(np.sqrt(clean @ np.minimum(sizes, most) ** 2 / clean.sum()))


class _Learned(NamedTuple):
    """What is learned of the sizes of residuals: lower edges of all bins but the first; see Calibration."""

    edges: Array
    levels: Array
    counts: Array
    clean: Array
    scale: float


def _center(z: Array, gross: float) -> float:
    """The median of the clean residuals if these are skewed beyond chance; else 0."""
    sizes = np.abs(z)
    fence = 2.0**constants.TUKEY_FENCE * float(np.quantile(sizes, (1 - gross) / 2))
    inner = z[sizes <= fence]
    center = float(np.median(inner))
    if min(np.count_nonzero(inner < center), np.count_nonzero(inner > center)) < constants.BUDGET.fewest:
        return 0.0
    error = constants.SKEWNESS_ERROR / np.sqrt(len(inner))
    return center if abs(skewness(inner)) > constants.SIGNIFICANT_STANDARD_ERRORS * error else 0.0


def _beyond(size: Any, edges: Array, shares: Array) -> Any:
    """The share of clean entries beyond a size, on one side."""
    xp = array_namespace(size)
    largest = float(edges[-1])
    edges, shares = (xp.asarray(part, dtype=xp.float64, device=device(size)) for part in (edges, shares))
    at = xp.searchsorted(edges, xp.astype(size, xp.float64))
    at = xp.where(at < len(edges) - 1, xp.where(at > 1, at, 1 + 0 * at), len(edges) - 1 + 0 * at)
    part = (size - edges[at - 1]) / (edges[at] - edges[at - 1])
    inner = shares[at - 1] ** (1 - part.clip(0, 1)) * shares[at] ** part.clip(0, 1)
    return inner * (largest / size.clip(largest)) ** (1 / constants.STUDENT_TAILS[1])


def _learned(sizes: Array, gross: float, fence: float) -> _Learned:
    """Fit clean noise and gross errors to sizes, which are in order."""
    edges, counts, median = _bins(sizes, gross)
    low, high = constants.TABLE_RANGE
    grid, table = _tables()
    steps = constants.STEPS_PER_DOUBLING
    log_edges = np.clip(np.log2(edges / median), low + 2, high - 2)
    shapes = np.arange(len(table))
    up = 1 if gross == 0 else steps // 2  # the estimate of the share may be too low or too high
    shifts = np.arange(-int(constants.MAX_MEDIAN_SHIFT * steps), up + 1)
    shape, shift = np.repeat(shapes, shifts.size), np.tile(shifts, shapes.size)
    misfit, expected, outside = _fitted(shape, shift, log_edges, counts)
    weight = np.exp(misfit.min() - misfit)
    weight /= weight.sum()
    levels = _probabilities(counts, weight @ np.where(outside, expected, counts), weight @ expected)
    levels[np.r_[edges, np.inf] < fence] = 0.0  # of the last bin most may be beyond
    width = np.array([np.interp(-np.log(0.3173), -row, grid) for row in table])
    scale = float(median * 2.0 ** (weight @ (width[shape] + shift / steps)))
    return _Learned(edges, levels, counts, weight @ expected, scale)


def most_certain_first(probability: Any, size: Any) -> Any:
    """The order of decreasing probability and, of equal ones, of decreasing size; NaN counts as 0.

    Examples
    --------
    >>> most_certain_first(np.array([0.9, 1.0, 0.9, np.nan]), np.array([1.0, 2.0, -3.0, 9.0]))
    array([1, 2, 0, 3])
    """
    xp = array_namespace(probability, size)
    order = xp.argsort(-xp.abs(size), stable=True)
    sure = xp.where(xp.isnan(probability), 0.0, probability)
    return order[xp.argsort(-sure[order], stable=True)]


def discoveries(probability: Any, fdr: float, size: Any) -> Any:
    """The largest set of entries whose expected share of false ones is at most ``fdr``.

    Entries enter the most certain first, as long as the mean of ``1 − probability`` is at most ``fdr``.

    Parameters
    ----------
    probability : array, or tensor
        Of a gross error, for every entry; NaN is in no set.
    fdr : float
    size : array of the same shape
        Of equal probabilities the larger in size is first.

    Returns
    -------
    boolean array of the same shape

    Examples
    --------
    >>> discoveries(np.array([0.2, 0.99, 0.93, 0.7]), 0.05, np.ones(4))
    array([False,  True,  True, False])
    """
    xp = array_namespace(probability)
    order = most_certain_first(probability, size)
    order = order[~xp.isnan(probability[order])]
    false = xp.cumulative_sum(1 - probability[order])
    counts = xp.arange(1, len(order) + 1, dtype=xp.float64, device=device(false))
    good = xp.nonzero(false <= fdr * counts)[0]
    found = xp.zeros_like(probability, dtype=xp.bool)
    found[order[: int(good[-1]) + 1 if len(good) else 0]] = True
    return found


@lru_cache(maxsize=1)
def _tables() -> tuple[Array, Array]:
    """The log survival function of |x|, at powers of 2 of its median; one row for each shape of noise."""
    low, high = constants.TABLE_RANGE
    steps = constants.STEPS_PER_DOUBLING
    grid = np.arange(low * steps, high * steps + 1) / steps
    rows = []
    for survival in _shapes():
        median = np.interp(np.log(2), -_log(survival, grid), grid)
        rows.append(_log(survival, grid + median))
    return grid, np.array(rows)


def _log(survival: Callable[[Array], Array], log2x: Array) -> Array:
    return np.log(np.maximum(survival(2.0**log2x), 1e-300))


def _shapes() -> list[Callable[[Array], Array]]:
    """Survival functions of |x|, in any unit."""
    from scipy.special import betainc, erfc, gammaincc

    node, mass = np.polynomial.hermite_e.hermegauss(41)
    mass = mass / mass.sum()

    def power(p: float) -> Callable[[Array], Array]:
        return lambda x: gammaincc(1 / p, x**p)

    def student(t: float) -> Callable[[Array], Array]:
        return lambda x: betainc(0.5 / t, 0.5, 0.5 / (0.5 + t * x**2))

    def unequal(s: float) -> Callable[[Array], Array]:
        return lambda x: mass @ erfc(x / np.exp(s * node)[:, None])

    kinds = (
        (power, np.geomspace(*constants.POWER_EXPONENTS)),
        (student, np.linspace(*constants.STUDENT_TAILS)),
        (unequal, np.linspace(*constants.LOG_NORMAL_SPREADS)),
    )
    return [kind(value) for kind, values in kinds for value in values]


def _bins(sizes: Array, gross: float) -> tuple[Array, Array, float]:
    """Upper edges of the bins but the last, which is infinite; counts; and about the median of the clean sizes."""
    n, distinct = sizes.size, sizes[np.r_[True, np.diff(sizes) > 0]]
    half = n * (1 - gross) / 2
    median = float(sizes[int(half)] if sizes[int(half)] > 0 else distinct[1])
    per = constants.BINS_PER_DOUBLING
    top = np.clip(np.log2(sizes[-1] / median), constants.TUKEY_FENCE + 1, constants.TABLE_RANGE[1] - 3)
    edges = median * 2.0 ** (np.arange(-3 * per, np.ceil(top * per)) / per)
    if distinct.size < n / 2:  # rounded data: edges half way between the values that occur
        i = np.clip(np.searchsorted(distinct, edges), 1, distinct.size - 1)
        edges = np.unique((distinct[i - 1] + distinct[i]) / 2)
        median = float(np.interp(half, np.r_[0, np.searchsorted(sizes, edges), n], np.r_[0, edges, 2 * edges[-1]]))
    counts = np.diff(np.r_[0, np.searchsorted(sizes, edges), n]).astype(float)
    return edges, counts, median


def _misfit(counts: Array, expected: Array) -> Array:
    """Half the Poisson deviance of every bin, in nats."""
    deviance: Array = expected - counts + counts * np.log(np.maximum(counts, 1e-9) / expected)
    return deviance


def _fitted(shape: Array, shift: Array, log_edges: Array, counts: Array) -> tuple[Array, Array, Array]:
    """For noise of some shapes and scales: misfit, expected clean counts, and which bins are outside the fence."""
    parts = [slice(first, first + AT_ONCE) for first in range(0, len(shape), AT_ONCE)]
    found = zip(*(_fitted_some(shape[part], shift[part], log_edges, counts) for part in parts), strict=True)
    misfit, expected, outside = (np.concatenate(some) for some in found)
    return misfit, expected, outside


def _fitted_some(shape: Array, shift: Array, log_edges: Array, counts: Array) -> tuple[Array, Array, Array]:
    steps = constants.STEPS_PER_DOUBLING
    position = (log_edges - constants.TABLE_RANGE[0]) * steps
    i = np.floor(position).astype(int)
    part, i = position - i, i - shift[:, None]
    table = _tables()[1]
    survival = np.exp((1 - part) * table[shape[:, None], i] + part * table[shape[:, None], i + 1])
    likely = np.maximum(-np.diff(survival, axis=1, prepend=1.0, append=0.0), constants.MIN_BIN_PROBABILITY)
    outside: Array = np.r_[-np.inf, log_edges] >= (shift[:, None] / steps + constants.TUKEY_FENCE - 1e-9)
    weight = 1 / (1 + constants.NOISE_DENSITY_ERROR**2 * counts)
    penalty = np.where(outside, 0.5 * np.log1p(counts) + constants.EXCESS_PENALTY, np.inf)
    log_ratio = np.log(np.maximum(counts, 1e-9)) - np.log(likely)
    clean = ~outside
    for _ in range(3):  # the number of clean entries, from the bins that agree with f0
        total = (clean @ counts) / (clean * likely).sum(axis=1)
        expected = total[:, None] * likely
        cost = weight * (expected - counts + counts * (log_ratio - np.log(total)[:, None]))  # as _misfit
        before, clean = clean, (cost <= penalty) | (expected > counts)
        if np.array_equal(clean, before):
            break
    return np.where(clean, cost, penalty).sum(axis=1), expected, outside


def _probabilities(counts: Array, clean: Array, expected: Array) -> Array:
    """The probability of a gross error in every bin; it does not decrease with |z|.

    In a bin without entries gross errors are as many as in all bins on the mean, and clean entries as ``expected``.
    """
    from scipy.optimize import isotonic_regression

    full, excess = np.flatnonzero(counts), float(np.maximum(counts - clean, 0).mean())
    empty = excess / np.maximum(excess + expected, np.finfo(float).tiny)
    counts, bins, clean = counts[full], counts.size, clean[full]
    fit = isotonic_regression(clean / counts, weights=counts, increasing=False)
    sizes = np.add.reduceat(counts, fit.blocks[:-1])
    expected = np.minimum(np.add.reduceat(clean, fit.blocks[:-1]), sizes)
    # Posterior odds that the excess of a level set is real; a priori one bin of all has one.
    odds = _misfit(sizes, expected) - 0.5 * np.log1p(sizes) - np.log(bins)
    P = (1 - expected / sizes) / (1 + np.exp(-np.clip(odds, -50, 50)))
    P = np.repeat(np.maximum.accumulate(P), np.diff(fit.blocks))
    above = np.searchsorted(full, np.arange(bins))
    below = np.maximum(np.searchsorted(full, np.arange(bins), side="right") - 1, 0)
    levels: Array = np.clip(empty, P[below], P[np.minimum(above, full.size - 1)])
    return np.maximum.accumulate(levels)
