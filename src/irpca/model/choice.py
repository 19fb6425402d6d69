"""Model choice: candidate fits are compared by how well they predict held-out entries.

Neither the log predictive density nor the absolute error alone is enough. The density prefers fits that are nearly
exact on a part of the table and ignore the remainder; the error is uninformative when most entries are gross errors.
So: of the fits whose error is not worse than the smallest by two standard errors (paired, entry by entry) or 2 %, the
one of the highest density; an error counts for no more than a gross error, six times the noise. A simpler model, in
which features determine L, is preferred unless it is worse in most rows and most columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import constants
from ..lowrank import Array
from .factors import Fit


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out entries: no fit was made from them.

    Attributes
    ----------
    rows, cols, values : arrays
    least : array
        Scales below which a fit is as good as exact; the same for all fits.
    slope : array
        Log slope of what the values are in units of M: densities are per unit of M.
    bounds : pair of arrays, or None
        The intervals that values stand for; a value that stands for itself lies at both ends. None: all do.
    """

    rows: Array
    cols: Array
    values: Array
    least: Array
    slope: Array | float = 0.0
    bounds: tuple[Array, Array] | None = None

    def score(self, fit: Fit) -> Score:
        """Log predictive density and absolute error at every held-out entry."""
        L, noise = fit.L, fit.noise
        row_spread, col_spread = fit.spreads
        i, j = self.rows, self.cols
        R = self.values - L.sampled(i, j)
        var = np.einsum("kq,kq->k", row_spread[i], col_spread[j])
        s2 = np.maximum(noise.s**2 * noise.rows[i] * noise.cols[j], self.least**2)
        density = noise.log_density(R, s2, var) + self.slope
        if self.bounds is not None:
            some = self.bounds[0] < self.bounds[1]
            low, high = (end[some] - self.values[some] + R[some] for end in self.bounds)
            density[some] = noise.log_mass(low, high, s2[some], var[some])
        return Score(density, np.abs(R))

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """All of several, each of other entries; for comparisons of fits that were scored by each."""
        rows, cols, values, least = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "cols", "values", "least")
        )
        return cls(rows, cols, values, least)

    def nearly_exact(self, fit: Fit) -> bool:
        """Whether most held-out entries are predicted exactly and no line is poorly fitted: no fit can be better."""
        L = fit.L.sampled(self.rows, self.cols)
        rounding = float(np.median(self.least))
        distinguishable = rounding <= 10 * constants.MAX_RELATIVE_ROUNDING * float(np.std(L))  # else all would be exact
        if (
            self.bounds is not None
            or not distinguishable
            or not fit.nearly_exact
            or len(fit.poorly_fitted(0))
            or len(fit.poorly_fitted(1))
        ):
            return False
        close = np.abs(self.values - L) <= self.least
        return bool(close.mean() > constants.MAJORITY)


@dataclass(frozen=True, eq=False)
class Score:
    density: Array
    error: Array

    @classmethod
    def joined(cls, parts: Sequence[Score]) -> Score:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("density", "error")))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fit that takes part in the comparison.

    Attributes
    ----------
    name : how it was made
    fit, score : the fit to nine tenths of the entries, and how well it predicts the others
    """

    name: str
    fit: Fit
    score: Score

    @property
    def complexity(self) -> int:
        """Sides whose factors are not determined by features: the fewer, the simpler the model."""
        return 2 - sum(self.fit.tied)


def is_strict(held: Sequence[HeldOut], fits: Sequence[Fit]) -> bool:
    """Whether the components that noise hides where entries are missing or wrong can go without loss.

    Where a line has few entries its factors are shrunk towards what is expected, and weak components still help. Each
    fit is judged by entries that were held out of it.
    """
    if fits[0].directions is not None:
        return False
    few, more = ([replace(fit, strict=strict).principal() for fit in fits] for strict in (True, False))
    if all(a.rank == b.rank for a, b in zip(few, more, strict=True)):
        return False
    scores = (Score.joined([h.score(fit) for h, fit in zip(held, some, strict=True)]) for some in (few, more))
    fewer, all_of_them = scores
    return bool(fewer.density.mean() >= all_of_them.density.mean() and fewer.error.mean() <= all_of_them.error.mean())


def skewness(x: Array) -> float:
    """Bowley's coefficient, with tenths in place of quarters: 0 if x is distributed symmetrically."""
    low, middle, high = np.quantile(x, (0.1, 0.5, 0.9))
    return float((high + low - 2 * middle) / max(high - low, 1e-300))


def worse(a: Array, b: Array) -> float:
    """By how many standard errors the mean of a is larger than that of b (paired)."""
    d = a - b
    error = float(d.std()) / np.sqrt(len(d))
    return float(d.mean()) / error if error > 0 else 0.0 if d.mean() == 0 else float(np.sign(d.mean()) * np.inf)


def better(a: Candidate, b: Candidate) -> bool:
    """Whether a predicts held-out entries better than b beyond chance: by its density, and by its error."""
    most = constants.MAX_CLEAN_RESIDUAL * min(c.fit.noise.deviation for c in (a, b))
    errors = (np.minimum(c.score.error, most) for c in (b, a))
    gains = worse(a.score.density, b.score.density), worse(*errors)
    return all(gain > constants.TIE_STANDARD_ERRORS for gain in gains)


def worse_in_most(held: HeldOut, a: Candidate, b: Candidate) -> bool:
    """Whether a predicts most rows, and most columns, worse than b does.

    The mean over lines is trimmed, with its standard error from Winsorised differences (Tukey and McLaughlin 1963).
    So a few lines that disagree with their features do not rule out a model in which features determine L: these lines
    are outliers.
    """
    gain = a.score.error - b.score.error  # not the density: a few bad lines lower that of all entries
    # Clipped: one row that is wrong in one of the fits must not dominate the means of all columns.
    most = constants.MAX_CLEAN_RESIDUAL * b.fit.noise.deviation
    gain = np.clip(gain, -most, most)
    for lines in (held.rows, held.cols):
        counts = np.bincount(lines)
        seen = counts > 0
        means = np.sort(np.bincount(lines, gain)[seen] / counts[seen])
        cut = int(constants.MAX_ODD_LINES * len(means))
        kept = means[cut : len(means) - cut]
        if len(kept) < 2:
            return True
        error = np.clip(means, kept[0], kept[-1]).std() / (1 - 2 * constants.MAX_ODD_LINES) / np.sqrt(len(means))
        if kept.mean() <= constants.TIE_STANDARD_ERRORS * error:
            return False
    return True


def choose(held: HeldOut, candidates: Sequence[Candidate]) -> tuple[Candidate, list[Candidate]]:
    """The best fit, and those that predict held-out entries equally well."""
    most = constants.MAX_CLEAN_RESIDUAL * max(c.fit.noise.s for c in candidates)  # a larger error is a gross error
    errors = [np.minimum(c.score.error, most) for c in candidates]
    least = min(errors, key=np.mean)
    close = (1 + constants.ERROR_TOLERANCE) * float(least.mean())
    tied = [
        c
        for c, error in zip(candidates, errors, strict=True)
        if error.mean() <= close or worse(error, least) <= constants.TIE_STANDARD_ERRORS
    ]
    highest = max(float(c.score.density.mean()) for c in tied)
    best = next(c for c in tied if c.score.density.mean() >= highest - constants.MIN_EM_GAIN)  # less is rounding
    tied = [c for c in tied if worse(best.score.density, c.score.density) <= constants.TIE_STANDARD_ERRORS]
    simpler = [c for c in candidates if c.complexity < best.complexity]
    if simpler:
        rival = choose(held, simpler)[0]
        if not worse_in_most(held, rival, best):
            return rival, [c for c in tied if c.complexity == rival.complexity] or [rival]
    return best, [c for c in tied if c.complexity == best.complexity]
