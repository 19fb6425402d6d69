"""Probability that a standardised residual is a gross error (one-dimensional two-groups model).

Model.  The absolute residuals are counted in cells of equal width in log|z|.  The count of a cell is Poisson
with mean  clean * f0(cell) + excess(cell):  f0 is the clean noise density, excess >= 0 is whatever the gross
errors add.  Nothing is assumed about the excess but that it is nil inside Tukey's fence (four clean medians of
|z|, 2.7 sd for Gaussian noise), which is what "gross" means here.  f0 runs over a grid of shapes and scales:
generalised Gaussian (Laplace, Gaussian, lighter), Student (1.5 degrees of freedom and up), and Gaussian with a
log-normal standard deviation (noise of unequal size).

What pins the tail of f0.  A cell outside the fence either agrees with f0 and then counts in the likelihood as
it is, or holds more entries than f0 expects and is explained by a free excess, for which it pays a fixed price.
Its misfit is therefore capped from above (a redescending likelihood: a bump cannot drag the tail of f0 along),
while a cell with FEWER entries than f0 expects always pays in full, so f0 cannot have a heavier tail than the
data.  Grid points are averaged with weights exp(-misfit), so where data cannot tell a heavy tail from gross
errors, the heavy tail has a say in the expected number of clean entries.

Probability.  P = 1 - (expected clean entries) / (entries), made non-decreasing in |z| by isotonic regression,
each level set shrunk towards 0 by the posterior odds that its excess is real.
"""
import functools

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import betainc, erfc, gammaincc

CELLS = 8             # cells per doubling of |z| (9 % wide): finer than any feature wanted, some 70 cells in all
STEP = 64             # scale grid and table steps per doubling (1.1 %): below the error of a scale at n = 10,000
COARSE, FINE = 4, 6   # first pass tries every 4th scale; second +-6 steps (6.7 %) about each shape's best
POWERS = 2.0 ** (np.r_[-5:11, 13, 18, 26] / 10)   # generalised Gaussian exp(-|x|^p): p = 0.71 ... 2 by 7 %, to 6
TAILS = np.arange(0.02, 0.67, 0.02)               # Student, 1/df: df = 50 ... 1.5
SPREADS = np.arange(0.15, 1.0, 0.085)             # Gaussian times exp(s * normal): unequal noise, s to 1 (0.2 = +-20 %)
FENCE = 2.0           # log2 of the fence in clean medians: 4 medians = Tukey's 1.5-IQR fence
MAX_SHIFT = 1.45      # log2(median of all / of clean) at most: 40 % far errors in Student noise, df 2 (1.38)
MODEL_ERROR = 0.02    # f0 is trusted to 2 % per cell: more than 1/0.02^2 entries in a cell add no certainty
PRICE = 0.6           # Occam factor of a free excess, log-uniform over 2 decades: log(log(100) / sqrt(2 pi)) = 0.61
FLOOR = 1e-12         # no cell is called less likely than this: no tail is known better
LOW, HIGH = -14, 16   # range of the tables, log2(|x| / median)


@functools.lru_cache(maxsize=1)
def _tables():
    """Log survival function of |x| at x = 2**(LOW, ..., HIGH) medians, one row per noise shape."""
    node, mass = np.polynomial.hermite_e.hermegauss(41)
    shapes = [lambda x, p=p: gammaincc(1 / p, x ** p) for p in POWERS]
    shapes += [lambda x, t=t: betainc(0.5 / t, 0.5, 0.5 / (0.5 + t * x ** 2)) for t in TAILS]
    shapes += [lambda x, s=s: mass / mass.sum() @ erfc(x / np.exp(s * node)[:, None]) for s in SPREADS]
    grid, rows = np.arange(LOW * STEP, HIGH * STEP + 1) / STEP, []
    for sf in shapes:
        def log_sf(log2x):
            return np.log(np.maximum(sf(2.0 ** log2x), 1e-300))
        rows.append(log_sf(grid + np.interp(np.log(2), -log_sf(grid), grid)))
    return grid, np.array(rows)


def _cells(a):
    """Upper cell edges (the last is infinite), counts and median of the sorted absolute residuals."""
    n, distinct = a.size, a[np.r_[True, np.diff(a) > 0]]
    median = a[n // 2] if a[n // 2] > 0 else distinct[1]
    top = np.clip(np.log2(a[-1] / median), FENCE + 1, HIGH - 3)
    edges = median * 2.0 ** (np.arange(-3 * CELLS, np.ceil(top * CELLS)) / CELLS)
    if distinct.size < n / 2:                  # rounded data: edges half way between the values that occur
        i = np.clip(np.searchsorted(distinct, edges), 1, distinct.size - 1)
        edges = np.unique((distinct[i - 1] + distinct[i]) / 2)
        median = np.interp(n / 2, np.r_[0, np.searchsorted(a, edges), n], np.r_[0, edges, 2 * edges[-1]])
    counts = np.diff(np.r_[0, np.searchsorted(a, edges), n]).astype(float)
    return edges, counts, median


def _misfit(counts, expected):
    """Poisson deviance / 2 per cell (nats)."""
    return expected - counts + counts * np.log(np.maximum(counts, 1e-9) / expected)


def _fit_grid(shape, shift, log_edges, counts):
    """Misfit, expected clean counts and outside-the-fence mask for grid points (shape index, scale shift)."""
    position = (log_edges - LOW) * STEP
    i = np.floor(position).astype(int)
    part, i = position - i, i - shift[:, None]
    table = _tables()[1]
    sf = np.exp((1 - part) * table[shape[:, None], i] + part * table[shape[:, None], i + 1])
    prob = np.maximum(-np.diff(sf, axis=1, prepend=1.0, append=0.0), FLOOR)
    outside = np.r_[-np.inf, log_edges] >= (shift[:, None] / STEP + FENCE - 1e-9)
    weight = 1 / (1 + MODEL_ERROR ** 2 * counts)
    price = np.where(outside, 0.5 * np.log1p(counts) + PRICE, np.inf)
    clean = ~outside
    for _ in range(3):                         # number of clean entries, from the cells that agree with f0
        total = (clean @ counts) / (clean * prob).sum(1)
        expected = total[:, None] * prob
        cost = weight * _misfit(counts, expected)
        clean = (cost <= price) | (expected > counts)
    return np.where(clean, cost, price).sum(1), expected, outside


class GrossErrorCalibration:
    """P(gross | z) from an array of standardised residuals.  Attributes: ``share`` (estimated share of gross
    errors), ``sd`` (standard deviation of the clean part: each entry weighted by 1 - P), ``scale`` (half width
    of the central 68.27 % of the fitted noise; equals the sd for Gaussian noise and stays finite for any)."""

    def __init__(self, z):
        a = np.sort(np.abs(np.asarray(z, float).ravel()))
        a = a[np.isfinite(a)]
        self.edges, self.levels, self.share, self.scale, self.sd = np.zeros(0), np.zeros(1), 0.0, 0.0, 0.0
        if a.size == 0 or a[-1] == 0:
            return
        self.edges, counts, median = _cells(a)
        log_edges = np.clip(np.log2(self.edges / median), LOW + 2, HIGH - 2)
        shifts, shapes = np.arange(-int(MAX_SHIFT * STEP), COARSE, COARSE), np.arange(len(_tables()[1]))
        cost = _fit_grid(np.repeat(shapes, shifts.size), np.tile(shifts, shapes.size), log_edges, counts)[0]
        best = shifts[cost.reshape(shapes.size, -1).argmin(1)]
        shape, shift = np.repeat(shapes, 2 * FINE + 1), (best[:, None] + np.arange(-FINE, FINE + 1)).ravel()
        cost, expected, outside = _fit_grid(shape, shift, log_edges, counts)
        weight = np.exp(cost.min() - cost)
        weight /= weight.sum()
        self.levels = self._probabilities(counts, weight @ np.where(outside, expected, counts))
        self.share = float(self.levels @ counts / a.size)
        grid, table = _tables()
        width = np.array([np.interp(-np.log(0.3173), -row, grid) for row in table])
        self.scale = float(median * 2.0 ** (weight @ (width[shape] + shift / STEP)))
        p = self(a)
        w, most = 1 - p, a[p <= 0.5].max()     # larger ones count as this: (1 - P) z^2 is not bounded
        self.sd = float(np.sqrt(w @ np.minimum(a, most) ** 2 / w.sum()))

    @staticmethod
    def _probabilities(counts, clean):
        full = np.flatnonzero(counts)
        counts, cells, clean = counts[full], counts.size, clean[full]
        fit = isotonic_regression(clean / counts, weights=counts, increasing=False)
        sizes = np.add.reduceat(counts, fit.blocks[:-1])
        expect = np.minimum(np.add.reduceat(clean, fit.blocks[:-1]), sizes)
        # posterior odds that the excess of a level set is real; a priori one cell in all has one
        odds = _misfit(sizes, expect) - 0.5 * np.log1p(sizes) - np.log(cells)
        p = (1 - expect / sizes) / (1 + np.exp(-np.clip(odds, -50, 50)))
        p = np.repeat(np.maximum.accumulate(p), np.diff(fit.blocks))
        return p[np.minimum(np.searchsorted(full, np.arange(cells)), full.size - 1)]

    def __call__(self, z):
        """Probability that each entry is a gross error (not-a-number where z is)."""
        return np.where(np.isnan(z), np.nan, self.levels[np.searchsorted(self.edges, np.abs(z), side="right")])

    def report(self, z, fdr=0.05):
        """Largest set of entries with P > 0.5, in order of decreasing P, whose mean of 1 - P is <= fdr (mask)."""
        p, a = self(z).ravel(), np.abs(np.ravel(z))
        order = np.flatnonzero(p > 0.5)
        order = order[np.argsort(-a[order], kind="stable")]       # P is monotone in |z|: the same order, ties cut
        good = np.flatnonzero(np.cumsum(1 - p[order]) <= fdr * np.arange(1, order.size + 1))
        mask = np.zeros(p.size, bool)
        mask[order[:good[-1] + 1 if good.size else 0]] = True
        return mask.reshape(np.shape(z))
