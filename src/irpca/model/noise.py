"""The noise model: a mixture for clean noise, gross errors, and a scale for every row and column.

    e_ij  ~  (1 − π) Σ_k p_k N(0, (c_k s α_i β_j)²)  +  π [(1 − h) N(0, b²) + h Cauchy of the same median],  c = 1, 2, 4

s is the common scale, α and β those of rows and columns relative to it; π is ``gross``, h is ``heavy``, and b is
``broad``: a size in units of the column, the same in every row and column.

The shares p_k are estimated, so that Gaussian, Laplace and Student noise are all approximated. From the model follow
the weight of every entry in a regression and the probability that it is a gross error. Gross errors are Gaussian or
Cauchy, by a share that is estimated: some have a typical size, others have none. A line is a row or a column.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtr

from .. import constants
from ..engines import kernels
from ..engines.base import CAUCHY, COMPONENTS, MEDIAN, Noise, Sums
from ..lowrank import Array
from .peaks import find_peak

SQUARES = np.square(COMPONENTS)


@dataclass
class NoiseModel:
    """The state of the noise model during a fit.

    Attributes
    ----------
    s : float
        The common scale.
    least : array of shape (n2,)
        Lower bound of the scale of an entry, for each column: rounding.
    rows, cols : arrays
        Variances of rows and columns relative to the common one, α² and β²: they have no unit.
    gross, broad, heavy, shares : float, float, float, array
        Share and size of gross errors, and the share of Cauchy ones among them; shares of the clean components.
    target : float or None
        The standard deviation of the noise if the user has given it: s decreases to the scale that belongs to it.
    estimate : float
        The value of s that follows from the last sums.
    units : array of shape (n2,), or None
        Of the columns, in which all of this is, if the engine's M is not.
    equal_rows : bool
        Whether all rows have the same noise.
    """

    s: float
    least: Array
    rows: Array
    cols: Array
    broad: float
    gross: float = constants.INITIAL_GROSS_SHARE
    shares: Array = field(default_factory=lambda: np.array(constants.CLEAN_SHARES))
    heavy: float = constants.INITIAL_CAUCHY_SHARE
    target: float | None = None
    estimate: float = np.inf
    units: Array | None = None
    equal_rows: bool = False

    def for_engine(self, row_spread: Array, col_spread: Array) -> Noise:
        """The noise by which an engine weighs entries: its rows are s² α², its columns β²; s² of an entry is both."""
        cols = np.maximum(self.cols, (self.least / self.s) ** 2)
        rows = np.maximum(self.s**2 * self.rows, self.lowest**2)
        mixture = self.shares, self.gross, self.broad, self.heavy
        return Noise(rows, cols, row_spread, col_spread, *mixture, self.units)

    @property
    def lowest(self) -> float:
        """Lower bound of s."""
        return float(self.least.min())

    @property
    def deviation(self) -> float:
        """Standard deviation of the clean noise, in a typical row and column."""
        if self.target is not None:
            return self.target
        return max(self.s, float(np.median(self.least))) * self.tail

    @property
    def tail(self) -> float:
        """The standard deviation of noise of scale 1."""
        return float(np.sqrt(self.shares @ SQUARES))

    def learn_shares(self, sums: Sums) -> None:
        """Shares of the components and gross errors from the sums of a read."""
        parts, gross, gross_energy = sums.totals[:3], sums.totals[3], sums.totals[4]
        entries = float(parts.sum() + gross)
        self.gross = float(np.clip(gross / entries, *constants.GROSS_LIMITS))
        parts = parts + np.array(constants.CLEAN_SHARES) * constants.CLEAN_SHARES_WEIGHT * entries
        self.shares = parts / parts.sum()
        if gross > 1:
            self.heavy = _cauchy_share(float(sums.totals[6]), gross)
            self.broad = max(float(np.sqrt(gross_energy / gross)), constants.MAX_CLEAN_RESIDUAL * self.s)

    def learn(self, sums: Sums, rise: bool = True) -> None:
        """Update what is common to all lines; s may ``rise``, or must decrease."""
        self.learn_shares(sums)
        energy, trust = sums.rows.sum(axis=0)
        self.estimate = self.s * float(np.sqrt(energy / max(trust, 1e-9)))
        wanted = self.estimate if self.target is None else self.target / self.tail
        lowest = self.s / constants.MAX_SCALE_DECREASE
        self.s = max(min(wanted, self.broad), lowest, self.lowest) if rise else max(lowest, self.lowest)

    def learn_scales(self, sums: Sums, axis: int) -> None:
        """Update the scales of the rows (0) or columns from the sums of a read; their geometric mean is s."""
        if axis == 0 and self.equal_rows:
            return
        lines, name = (sums.rows, sums.cols)[axis], ("rows", "cols")[axis]
        energy, trust = lines.sum(axis=0)
        if not energy > 0:  # no entry is an inlier, or all residuals are zero
            return
        new = scales(lines[:, 0] * getattr(self, name), lines[:, 1])
        new /= energy / max(trust, 1e-9)  # the common factor is s
        low, high = constants.LINE_VARIANCE_LIMITS
        usual = float(np.median(new))
        new = np.clip(new, low * usual, high * usual)
        new = np.maximum(new, (self.lowest / self.s) ** 2)  # below, it is rounding
        middle = float(np.exp(np.log(new).mean()))
        setattr(self, name, new / middle)
        if self.target is None:
            self.s = max(min(self.s * float(np.sqrt(middle)), self.broad), self.lowest)

    def capped(self, units: Array) -> NoiseModel:
        """The model by which gross errors are flagged: scales of broken lines are capped.

        A line is broken if it is far noisier than lines differ otherwise: its errors are gross errors, not noise. Where
        lines differ much in their noise, none is. A column must be that noisy both in its own unit and in that of the
        table; ``units`` are the squares of the former.
        """
        cols = np.maximum(_capped(self.cols), _capped(self.cols * units) / units)
        return replace(self, rows=_capped(self.rows), cols=cols)

    @property
    def noisy_rows(self) -> Array:
        """Rows that are far noisier than rows differ otherwise, in the sense of :meth:`capped`."""
        return np.flatnonzero(self.rows > _noisiest(self.rows))

    def log_density(self, R: Array, s2: Array | float, var: Array | float = 0.0) -> Array:
        """Log density of residuals R, where clean ones have the squared scale s2, and L the variance var."""
        total = sum(_gross_densities(R * R, self.gross, self.broad, self.heavy))
        for share, square in zip(self.shares, SQUARES, strict=True):
            variance = square * s2 + var
            total += (1 - self.gross) * share * np.exp(-0.5 * R * R / variance) / np.sqrt(variance)
        return np.log(total) - 0.5 * np.log(2 * np.pi)

    def log_mass(self, low: Array, high: Array, s2: Array, var: Array) -> Array:
        """Log probability of a residual between two bounds, with the same scales as ``log_density``."""
        total = np.zeros(np.shape(low))
        for bound, sign in ((high, 1.0), (low, -1.0)):
            for share, square in zip(self.shares, SQUARES, strict=True):
                total += sign * (1 - self.gross) * share * ndtr(bound / np.sqrt(square * s2 + var))
            heavy = 0.5 + np.arctan(bound / (MEDIAN * self.broad)) / np.pi
            total += sign * self.gross * (self.heavy * heavy + (1 - self.heavy) * ndtr(bound / self.broad))
        return np.log(np.maximum(total, np.finfo(float).tiny))

    @property
    def falling(self) -> bool:
        """Whether s is still decreasing."""
        return self.s > self.lowest and self.estimate < self.s / constants.SCALE_CONVERGED


def _noisiest(scales: Array) -> float:
    """The variance beyond which a line is far noisier than lines differ otherwise."""
    logs = np.log(scales)
    middle = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - middle)))
    return float(
        np.exp(middle + max(constants.SIGNIFICANT_STANDARD_ERRORS * spread, constants.MIN_NOISY_LINE_LOG_RATIO))
    )


def _capped(scales: Array) -> Array:
    most = _noisiest(scales)
    few = np.count_nonzero(scales > most) <= constants.MAX_ODD_LINES * len(scales)
    return np.minimum(scales, most) if few else scales


def scales(energy: Array, trust: Array) -> Array:
    """Relative variances of lines, shrunk towards the common one: the more alike lines are, the more.

    The logarithm of a line's own variance, from t entries, has a sampling variance of about
    ``LOG_VARIANCE_SAMPLING / t``; the variance between lines is estimated (Paule and Mandel, one step).
    """
    seen = trust > 1.0
    ones = np.ones(len(trust))
    if seen.sum() < 3:
        return ones
    own = np.log(np.maximum(energy[seen], 1e-12 * energy[seen].max() + 1e-300) / trust[seen])
    sampling = constants.LOG_VARIANCE_SAMPLING / trust[seen]
    weight = 1 / (sampling + sampling.mean())
    centre = float(own @ weight / weight.sum())
    apart = max(float(np.mean((own - centre) ** 2 - sampling)), 0.0)
    weight = 1 / (sampling + apart)
    centre = float(own @ weight / weight.sum())
    ones *= np.exp(centre)
    ones[seen] = np.exp(centre + (own - centre) * apart / (apart + sampling))
    return ones


def _gross_densities(square: Array, gross: float, broad: float, heavy: float) -> tuple[Array, Array]:
    """The densities of gross errors, Gaussian and Cauchy, less a factor of √2π that all have in common."""
    light = (1 - heavy) * gross * np.exp(-0.5 * square / broad**2) / broad
    tails = heavy * gross * CAUCHY / (broad * (1 + square / (MEDIAN * broad) ** 2)) + 1e-300
    return light, tails


def _cauchy_share(tails: float, gross: float) -> float:
    """The share of Cauchy errors among the gross ones, with a weak prior."""
    prior = constants.CLEAN_SHARES_WEIGHT * gross
    return (tails + constants.INITIAL_CAUCHY_SHARE * prior) / (gross + prior)


def _step(model: NoiseModel, z: Array) -> tuple[NoiseModel, float]:
    """One step of EM for the mixture, at standardised residuals z, and the mean log density before it."""
    n, sums = len(z), Sums.zero((1, len(z)))
    certain, scale = np.zeros((n, 2)), np.array([model.s**2])
    mixture = model.shares, model.gross, model.broad, model.heavy
    noise = Noise(scale, np.ones(n), certain[:1], certain, *mixture)
    entries = np.broadcast_to(z, (1, n))  # read-only, as M is: one compiled kernel serves both
    kernels.weigh_tile(entries, np.zeros((1, n)), np.empty((1, n)), noise.part(slice(0, 1)), sums.part(slice(0, 1)))
    gross, energy, log_density, tails = sums.totals[3:]
    s = max(model.s * float(np.sqrt(sums.rows[0, 0] / max(n - gross, 1e-9))), model.lowest)
    parts = sums.totals[:3] + np.array(constants.CLEAN_SHARES) * constants.CLEAN_SHARES_WEIGHT * n
    new = replace(
        model,
        s=s,
        shares=parts / parts.sum(),
        gross=float(np.clip(gross / n, *constants.GROSS_LIMITS)),
        broad=max(float(np.sqrt(energy / max(gross, 1e-9))), constants.MAX_CLEAN_RESIDUAL * s),
        heavy=_cauchy_share(float(tails), float(gross)),
    )
    return new, float(log_density) / n


def refit_mixture(model: NoiseModel, z: Array) -> NoiseModel | None:
    """Return the mixture fitted anew to standardised residuals z, from the peak of those that are clean.

    None if it is not better than the present one, or not narrower. Without this, fits with many gross errors converge
    to a wide mixture without any.
    """
    peak = find_peak(np.abs(z), model.lowest)
    s, gross = max(peak.deviation, model.lowest), float(np.clip(1 - peak.share, *constants.GROSS_LIMITS))
    start = NoiseModel(s, model.least, model.rows, model.cols, 3 * float(z.std()) + s, gross, target=model.target)
    start = replace(start, equal_rows=model.equal_rows)
    found, score = _converged(start, z)
    return found if score > _step(model, z)[1] + constants.MIN_EM_GAIN and found.s < model.s else None


def _converged(model: NoiseModel, z: Array) -> tuple[NoiseModel, float]:
    """EM for the mixture until it hardly improves, and the mean log density."""
    score = -np.inf
    for _ in range(constants.MAX_STEPS):
        last = score
        model, score = _step(model, z)
        if score < last + constants.MIN_EM_GAIN:
            break
    return model, score


def widened(model: NoiseModel, z: Array) -> NoiseModel:
    """The mixture, fitted again to standardised residuals z if most of the noise is not in its narrowest component.

    Then s had stopped at a fraction of the noise, and the wider components took its place.
    """
    largest = int(np.argmax(model.shares))
    if not largest:
        return model
    wider = replace(model, s=float(np.sqrt(SQUARES[largest])) * model.s, shares=np.array(constants.CLEAN_SHARES))
    return _converged(wider, z)[0]


def with_piles(model: NoiseModel, left_out: Array, entries: int) -> NoiseModel:
    """The model of a fit to ``entries`` entries, with the residuals that were left out added to the gross errors."""
    there = model.gross * entries
    gross = min((there + len(left_out)) / (entries + len(left_out)), constants.GROSS_LIMITS[1])
    energy = there * model.broad**2 + float(left_out @ left_out)
    return replace(model, gross=gross, broad=max(float(np.sqrt(energy / (there + len(left_out)))), model.broad))
