"""The units in which the columns of M are fitted, and the least noise that can be told in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import constants
from ..lowrank import Array
from ..sample import resolution

if TYPE_CHECKING:
    from ..problem import Problem

ENTRIES_PER_COLUMN = 64  # drawn on average: hardly any column has too few for a unit then


@dataclass(frozen=True, eq=False)
class Columns:
    """What is known of every column of M before a fit.

    Attributes
    ----------
    unit : array of shape (n2,)
        A robust spread, relative to that of a typical column. M is fitted divided by it.
    least : array of shape (n2,)
        Lower bound of the noise, in that unit: rounding, the step between values, MIN_DETECTABLE_NOISE.
    """

    unit: Array
    least: Array

    @classmethod
    def of(cls, problem: Problem) -> Columns:
        if problem.maps is not None:  # latent values are in one unit
            return cls(np.ones(problem.shape[1]), np.maximum(problem.maps.least, constants.MIN_DETECTABLE_NOISE))
        unit, typical = find_units(problem)
        sample = problem.sample
        step = 2 * resolution(*sample.distinct, most=1.0) / np.sqrt(12)
        rounding = float(np.finfo(sample.dtype).eps) * float(np.quantile(np.abs(sample.values), 0.9))
        spread = typical if typical > 0 else float(np.abs(sample.values).max())  # NaN where all values are one
        return cls(unit, np.maximum(max(step, rounding) / unit, constants.MIN_DETECTABLE_NOISE * spread))


def entries_for_units(n2: int) -> int:
    """Return how many entries are drawn for the units of n2 columns, where those of the sample are too few."""
    return min(ENTRIES_PER_COLUMN * n2, constants.BUDGET.block)


def find_units(problem: Problem) -> tuple[Array, float]:
    """Return a robust spread of every column, relative to that of a typical one, and that one.

    Columns that have features are alike, as those of one quantity at several places: they share one unit, unless they
    differ by so much that they cannot be.
    """
    engine, sample = problem.engine, problem.sample
    n2, cols, values = engine.shape[1], sample.cols, sample.values
    if len(values) < ENTRIES_PER_COLUMN * n2 and engine.n_observed > len(values):
        _, cols, values = engine.draw(entries_for_units(n2), problem.rng("units"))
    unit = find_spreads(values.astype(float), cols, n2)
    known = np.isfinite(unit) & (np.bincount(cols, minlength=n2) >= constants.BUDGET.fewest)
    if not known.any():
        return np.ones(n2), float(np.std(values))
    if problem.F2.given:
        low, high = np.quantile(unit[known], (0.05, 0.95))
        if high <= constants.MAX_RATIO * low:
            return np.ones(n2), float(find_spreads(sample.values, np.zeros(len(sample.values), np.intp), 1)[0])
    middle = float(np.exp(np.mean(np.log(unit[known]))))
    return np.where(known, unit / middle, 1.0), middle


def find_spreads(x: Array, group: Array, n: int) -> Array:
    """Return the spread of each of n groups: from the quartiles; where half of the values are one, the deviation.

    NaN where all are the same.
    """
    order = np.lexsort((x, group))
    x, group = x[order], group[order]
    counts = np.bincount(group, minlength=n)
    some = np.flatnonzero(counts)
    counts = counts[some]
    first, last, which = np.cumsum(counts) - counts, counts - 1, np.repeat(np.arange(len(some)), counts)

    def quantile(q: float) -> Array:
        at = (q * last).astype(np.intp)
        low, high = x[first + at], x[first + np.minimum(at + 1, last)]
        between: Array = low + (high - low) * (q * last - at)
        return between

    width = (quantile(0.75) - quantile(0.25)) / 1.349
    mean = np.bincount(which, x) / counts
    deviation = np.sqrt(np.bincount(which, (x - mean[which]) ** 2) / counts)
    found = np.full(n, np.nan)
    found[some] = np.where(x[first + last] > x[first], np.where(width > 0, width, deviation), np.nan)
    return found
