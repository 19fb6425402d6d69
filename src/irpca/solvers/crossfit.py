"""How well cells are predicted that a fit has not seen: cross-fitting on the part of M on which fits were compared.

Every cell is held out once, in four folds, and predicted by the recipe that won. Gross errors are weighed out by their
own probability, which is calibrated on the same cells. What comes of it is in numbers for people
(:class:`~irpca.result.Unseen`), and in factors that make the intervals of the whole fit hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import constants
from ..lowrank import Array
from ..model.calibration import most_certain_first
from ..model.entry_scale import HALF, REACH, Met, calibrate, learn_slopes
from ..model.factors import Fit
from ..model.noise import scales
from ..result import Unseen
from .part import Part


@dataclass(frozen=True, eq=False)
class CrossFit:
    """What comes of fits that have not seen the cells which they predict.

    Attributes
    ----------
    unseen : Unseen
    widths : array of shape (n2,)
        What the standard deviation in each column of M is to be multiplied by.
    middle : float
        What the range of half of the clean cells is then to be multiplied by; less than 1 where noise has long tails.
    confused, sharpness, slopes : five floats, a float, and array of shape (n2,) or None
        See :class:`~irpca.model.entry_scale.EntryScale`.
    """

    unseen: Unseen
    widths: Array
    middle: float
    confused: tuple[float, ...]
    sharpness: float
    slopes: Array | None


def predict_unseen(part: Part, whole: Fit, fits: Sequence[Fit]) -> CrossFit:
    """Return what follows from the fit to all cells of a part and from those to all but one fold each."""
    folds, maps = part.folds, part.problem.maps
    rows, cols = folds.rows, folds.cols
    values, gross = part.values_at(rows, cols), whole.noise.gross if maps is None else 0.0
    mine, shape = part.table.lines[1], part.M.shape
    expected, z, wrong, away = (np.zeros(len(rows)) for _ in range(4))
    met: list[Met] = []
    for k, fit in enumerate(fits):
        at = folds.at(k)
        scale, L = part.scale(replace(fit, strict=whole.strict).principal(), unseen=True)
        expected[folds.which == k] = L.sampled(*at)
        met.append((scale, (values - expected)[folds.which == k], *at))
        z[folds.which == k] = scale.spread_sizes(*met[-1][1:])
    slopes = None
    if maps is not None:
        numbers = ~maps.is_few(mine[cols])
        slopes = learn_slopes(z[numbers], expected[numbers], cols[numbers], len(mine))
        met = [(replace(scale, slopes=slopes), R, i, j) for scale, R, i, j in met]
    judge, found = calibrate(met, gross)
    assert judge.scale is not None
    confused, sharpness = judge.scale.confused, judge.scale.sharpness
    for k, (scale, R, *place) in enumerate(met):
        size = np.abs(scale.spread_sizes(R, *place))
        away[folds.which == k] = size * replace(scale, tail=1.0).std_at(*place) / scale.std_at(*place)
        wrong[folds.which == k] = found[k]
    scale, L = part.scale(whole.principal())
    scale = replace(scale, slopes=slopes, confused=confused, sharpness=sharpness)
    met = [(scale, values - L.sampled(rows, cols), rows, cols)]
    again = calibrate(met, gross, known=True)[0].is_outlier(*met[0][1:])
    n = int(np.count_nonzero(again))
    factors, middle = _factors(away, cols, 1 - wrong, len(mine))
    clearest = again[most_certain_first(wrong, away)[:n]]
    agreement = clearest.mean() if n >= constants.BUDGET.fewest else np.nan
    unseen = _unseen(part, expected, away, 1 - wrong, float(agreement))
    widths, slopes = (None if x is None else _of_all(x, mine, shape[1]) for x in (factors, slopes))
    assert widths is not None
    return CrossFit(unseen, widths, middle, confused, sharpness, slopes)


def _of_all(values: Array, some: Array, n: int) -> Array:
    """Numbers of some columns as those of all; of the others their median."""
    found = np.full(n, float(np.median(values)))
    found[some] = values
    return found


def _unseen(part: Part, expected: Array, away: Array, clean: Array, agreement: float) -> Unseen:
    """Sum up what was expected at all cells, and by how many standard deviations that was missed.

    ``clean`` is the probability that a cell is no gross error.
    """
    folds, cols = part.folds, part.folds.cols
    mine, n2 = part.table.lines[1], part.M.shape[1]
    columns, values, maps = mine[cols], part.values_at(folds.rows, cols), part.problem.maps
    within = np.zeros((2, len(cols)), bool)
    for k in range(constants.FOLDS):  # by what the other folds say
        some = folds.which == k
        factors, middle = _factors(away[~some], cols[~some], clean[~some], len(mine))
        within[:, some] = away[some] / factors[cols[some]] <= np.array([[HALF * middle], [REACH]])
    if maps is not None:
        values, expected = maps.observed(values, columns), maps.expected(expected, columns)
    weight = np.bincount(columns, clean, n2)
    weight[weight < constants.BUDGET.fewest] = np.nan  # too few to tell

    def means(what: Array) -> Array:
        """Of the clean cells of every column."""
        found: Array = np.bincount(columns, clean * what, n2) / weight
        return found

    medians = _quantiles(values, cols, clean, len(mine), 0.5)[cols]
    errors, plain = means(np.abs(values - expected)), means(np.abs(values - medians))
    # Of absolute errors of yes and no, and of mostly zeros, none has less than the median, whatever is known of a cell.
    few = means((values == medians).astype(float)) > constants.MAJORITY
    squares = means((values - expected) ** 2), means((values - means(values)[columns]) ** 2)
    above, below = np.where(few, np.sqrt(squares[0]), errors), np.where(few, np.sqrt(squares[1]), plain)
    ratio = np.divide(above, below, out=np.full(n2, np.nan), where=below > 0)
    told, coverage = np.isfinite(ratio), [means(inside.astype(float)) for inside in within]
    return Unseen(
        skill=float(1 - np.median(ratio[told]) ** 2) if told.any() else np.nan,
        skills=1 - ratio**2,
        errors=errors,
        covered=(float(np.average(within[0], weights=clean)), float(np.average(within[1], weights=clean))),
        coverage=np.array(coverage),
        agreement=agreement,
        cells=len(cols),
    )


def _factors(away: Array, cols: Array, clean: Array, n2: int) -> tuple[Array, float]:
    """What standard deviations are to be multiplied by so that 95 % of the clean cells are within 1.96 of them.

    One number for every column, shrunk towards the common one as the scales of noise are: the more, the less columns
    differ beyond chance. The second number is what 50 % intervals are to be multiplied by then.
    """
    weight = np.bincount(cols, clean, n2)
    own = _quantiles(away, cols, clean, n2, 0.95) / REACH
    factors = np.sqrt(scales(weight * own**2, weight))
    all_of_them = np.zeros_like(cols)
    factors *= _quantiles(away / factors[cols], all_of_them, clean, 1, 0.95)[0] / REACH  # few cells reach less far
    return factors, float(_quantiles(away / factors[cols], all_of_them, clean, 1, 0.5)[0] / HALF)


def _quantiles(values: Array, groups: Array, weights: Array, n: int, share: float) -> Array:
    """The weighted quantile of every group; 1 of a group without cells."""
    order = np.lexsort((values, groups))
    values, groups, weights = values[order], groups[order], weights[order]
    found, ends = np.ones(n), np.searchsorted(groups, np.arange(n + 1))
    for k in range(n):
        total = np.cumsum(weights[ends[k] : ends[k + 1]])
        if len(total) and total[-1] > 0:
            found[k] = values[ends[k] + min(np.searchsorted(total, share * total[-1]), len(total) - 1)]
    return found
