"""The judge: fits race on a part of M, and entries that none of them has seen decide between them.

Neither the log predictive density nor the absolute error alone is enough. The density prefers fits that are nearly
exact on a part of the table and give up the rest; the error is lost when most entries are wrong. So: of the fits whose
density is within one nat of the best, those whose error is not worse than the smallest by two standard errors (paired,
entry by entry); of these, the one of the highest density. A simpler model, in which features say all, is taken in its
place unless it is worse in most rows and most columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import constants
from .factors import Fit
from .lowrank import Array


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Entries that no fit has seen.

    Attributes
    ----------
    rows, cols, values : arrays
    least : array
        Scales below which a fit is as good as exact; the same for all fits.
    """

    rows: Array
    cols: Array
    values: Array
    least: Array

    def score(self, fit: Fit) -> Score:
        """Log predictive density and absolute error at every held-out entry."""
        L, noise = fit.L, fit.noise
        row_spread, col_spread = fit.spreads
        i, j = self.rows, self.cols
        R = self.values - L.entries(i, j)
        var = np.einsum("kq,kq->k", row_spread[i], col_spread[j])
        s2 = np.maximum(noise.s**2 * noise.rows[i] * noise.cols[j], self.least**2)
        return Score(noise.log_density(R, s2, var), np.abs(R))

    def met(self, fit: Fit) -> bool:
        """Whether most held-out entries are as good as exact, and no row or column went astray: none can be better."""
        L = fit.L.entries(self.rows, self.cols)
        told_apart = float(np.median(self.least)) <= 10 * constants.TOLD_APART * float(np.std(L))  # else all are met
        if not told_apart or not fit.nearly_exact or len(fit.astray(0)) or len(fit.astray(1)):
            return False
        close = np.abs(self.values - L) <= self.least
        return bool(close.mean() > constants.MOST)


@dataclass(frozen=True, eq=False)
class Score:
    density: Array
    error: Array


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fit in the race.

    Attributes
    ----------
    name : how it was made
    fit, score : the fit to nine tenths of the entries, and how it does on the others
    """

    name: str
    fit: Fit
    score: Score

    @property
    def student(self) -> bool:
        return bool(np.isfinite(self.fit.noise.nu))

    @property
    def complexity(self) -> int:
        """Sides that are free of what features say: the fewer, the simpler the model."""
        return 2 - sum(self.fit.tied)


def worse(a: Array, b: Array) -> float:
    """By how many standard errors a is larger than b, on average, entry by entry."""
    d = a - b
    error = float(d.std()) / np.sqrt(len(d))
    return float(d.mean()) / error if error > 0 else 0.0 if d.mean() == 0 else float(np.sign(d.mean()) * np.inf)


def worse_in_most(held: HeldOut, a: Candidate, b: Candidate) -> bool:
    """Whether a predicts most rows, and most columns, worse than b does.

    Of the lines, those with the largest and the smallest differences are left out (a trimmed mean, with its standard
    error from Winsorised differences; Tukey and McLaughlin 1963). So a few lines that disagree with their features
    are no reason to give up a model in which features say all: those lines are what is wrong.
    """
    gain = a.score.error - b.score.error  # not the density: there, all entries pay for what is wrong in a few lines
    most = constants.BEYOND * b.fit.noise.deviation  # a row that one of them got wrong shall not drown all columns
    gain = np.clip(gain, -most, most)
    for lines in (held.rows, held.cols):
        counts = np.bincount(lines)
        seen = counts > 0
        means = np.sort(np.bincount(lines, gain)[seen] / counts[seen])
        cut = int(constants.DISAGREE * len(means))
        kept = means[cut : len(means) - cut]
        if len(kept) < 2:
            return True
        error = np.clip(means, kept[0], kept[-1]).std() / (1 - 2 * constants.DISAGREE) / np.sqrt(len(means))
        if kept.mean() <= constants.STANDARD_ERRORS * error:
            return False
    return True


def choose(held: HeldOut, candidates: Sequence[Candidate]) -> tuple[Candidate, list[Candidate]]:
    """The best fit, and those that are as good by what was held out."""
    density = [float(c.score.density.mean()) for c in candidates]
    near = [c for c, d in zip(candidates, density, strict=True) if d > max(density) - constants.NAT]
    # What is beyond is no error of L. Student's scale is none of clean entries alone.
    most = constants.BEYOND * max(c.fit.noise.s for c in [c for c in near if not c.student] or near)
    errors = [np.minimum(c.score.error, most) for c in near]
    least = min(errors, key=np.mean)
    close = (1 + constants.AS_GOOD) * float(least.mean())
    tied = [
        c
        for c, error in zip(near, errors, strict=True)
        if error.mean() <= close or worse(error, least) <= constants.STANDARD_ERRORS
    ]
    highest = max(float(c.score.density.mean()) for c in tied)
    best = next(c for c in tied if c.score.density.mean() >= highest - constants.NOISE_AT_REST)  # less is rounding
    tied = [c for c in tied if worse(best.score.density, c.score.density) <= constants.STANDARD_ERRORS]
    simpler = [c for c in candidates if c.complexity < best.complexity and not c.student]
    if simpler:
        rival = choose(held, simpler)[0]
        if not worse_in_most(held, rival, best):
            return rival, [c for c in tied if c.complexity == rival.complexity] or [rival]
    return best, [c for c in tied if c.complexity == best.complexity]
