"""The judge: fits race on a part of M, and entries that none of them has seen decide between them.

Neither the log predictive density nor the absolute error alone is enough. The density prefers fits that are nearly
exact on a part of the table and give up the rest; the error is lost when most entries are wrong. So: of the fits whose
density is within one nat of the best, those whose error is not worse than the smallest by two standard errors (paired,
entry by entry); of these, the simplest among those whose density is not worse than the best by two standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import constants
from .engines.base import COMPONENTS
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
        if np.isfinite(noise.nu):
            from scipy.stats import t

            density = t.logpdf(R, noise.nu, scale=np.sqrt(s2 + var))
        else:
            total = 1e-300 + noise.gross * np.exp(-0.5 * (R / noise.broad) ** 2) / noise.broad
            for share, c in zip(noise.shares, COMPONENTS, strict=True):
                variance = c * c * s2 + var
                total += (1 - noise.gross) * share * np.exp(-0.5 * R * R / variance) / np.sqrt(variance)
            density = np.log(total) - 0.5 * np.log(2 * np.pi)
        return Score(density, np.abs(R))


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
    def complexity(self) -> int:
        """Sides that are free of what features say: the fewer, the simpler the model."""
        return 2 - sum(self.fit.tied)


def worse(a: Array, b: Array) -> float:
    """By how many standard errors a is larger than b, on average, entry by entry."""
    d = a - b
    error = float(d.std()) / np.sqrt(len(d))
    return float(d.mean()) / error if error > 0 else 0.0 if d.mean() == 0 else float(np.sign(d.mean()) * np.inf)


def choose(candidates: Sequence[Candidate]) -> tuple[Candidate, list[Candidate]]:
    """The best fit, and those that are as good by what was held out."""
    density = [float(c.score.density.mean()) for c in candidates]
    near = [c for c, d in zip(candidates, density, strict=True) if d > max(density) - constants.NAT]
    first = min(near, key=lambda c: float(c.score.error.mean()))
    tied = [c for c in near if worse(c.score.error, first.score.error) <= constants.STANDARD_ERRORS]
    best = max(tied, key=lambda c: float(c.score.density.mean()))
    tied = [c for c in tied if worse(best.score.density, c.score.density) <= constants.STANDARD_ERRORS]
    return min(tied, key=lambda c: (c.complexity, -float(c.score.density.mean()))), tied
