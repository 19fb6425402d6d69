"""How far clean entries scatter about what is expected of them, and how probable it is that one is a gross error.

An entry of M is expected to be L_ij. Clean ones scatter about that by the noise, of the scale ``s² = rows_i · cols_j``,
and by the error of L itself, whose variance is ``var = Σ_k row_spread_ik · col_spread_jk``. A residual is measured in
units of ``sqrt(s² + var)``; where the fit used the entry, L has followed it, and var counts for no more than 9 s², as
in the fit. In these units the distribution of all residuals tells which are too large (:mod:`irpca.model.calibration`).
Everything that says which cells are outliers and how sure that is, S, files, tables, checks and new rows, uses these
formulas: for NumPy arrays and for tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.special import gammaln, ndtr, ndtri

from .. import constants
from ..constants import KINDS
from ..engines.base import MEDIAN, MOST_SPREAD, Sided, Standardised
from ..engines.sparse_part import on_device, only, places
from ..lowrank import Array, LowRank
from ..sample import GOLDEN
from .calibration import Calibration
from .maps import ColumnMaps

FENCE = MEDIAN * 2.0**constants.TUKEY_FENCE  # standard deviations: what is within Tukey's fence is no mistake
HALF = float(ndtri(0.75))  # standard deviations to either side: half of the clean measurements, if they are Gaussian
REACH = 1.96  # the same of 95 %
JUDGED_ENTRIES = 1 << 20  # of S at a time: some numbers are made for each
NO_GROUP = -1  # of entries that are a number, or at a bound
SHARPNESS = 2.0 ** np.arange(-1, 1, 0.25)  # that are tried, and then halfway to the next ones
SMALLEST_SIZE = 0.05  # of a standardised residual: of smaller ones the logarithm says little
Lines = Any  # a slice, or an array of positions


@dataclass(frozen=True, eq=False)
class EntryScale(Sided):
    """The scale of the noise and the uncertainty of L, at every entry.

    Attributes
    ----------
    rows, cols : arrays of shape (n1,) and (n2,)
        Their product is s², in squared units of M.
    row_spread, col_spread : arrays of shape (n1, q) and (n2, q)
        Their product is the variance of L. q is K for each side whose factors are uncertain: posterior variances of one
        side's factors, and squares of the other's.
    tail : float
        The standard deviation of clean noise in units of s: more than 1 where it has long tails.
    middle : float
        Half of the clean measurements are within so many times the range that Gaussian noise has of the same ``std``.
    confused : five floats
        The shares of the entries of columns of few values that are mistakes and hold the lowest value, one of those
        between, and the highest; and the odds that another value is a mistake, on the grid of these and off it.
    sharpness : float
        What the unit of entries of few values is multiplied by where their intervals are judged: a score stands for an
        interval, so that s holds its width, too.
    unseen : bool
        Whether the fit was made without the entries that are judged.
    left, right, maps : arrays of shape (n1, k) and (n2, k), and ColumnMaps; or None
        Where columns are mapped: factors of what is expected of latent values, and the maps. All else is of latent
        values then.
    slopes : array of shape (n2,), or None
        By how much the logarithm of s grows with the latent value that is expected, in each column: counts scatter
        more about a large one than about a small one, whatever the map.
    widths : array of shape (n2,), or None
        What standard deviations in each column are multiplied by, so that intervals hold for cells that a fit has not
        seen. The unit that residuals are measured in stays as it is: by how much it is off, their distribution tells.

    Examples
    --------
    >>> scale = EntryScale(np.array([1.0, 4.0]), np.ones(3), np.ones((2, 1)), np.array([[0.0], [0.0], [5.0]]))
    >>> scale.std_table()
    array([[1.        , 1.        , 2.44948974],
           [2.        , 2.        , 3.        ]])
    >>> scale.unit_at(np.array([9.0]), np.array([0]), np.array([2]))
    array([2.44948974])
    """

    PAIRS = (
        *(("rows", "cols"), ("row_spread", "col_spread"), ("left", "right")),
        *(("unknown", "widths"), ("unknown", "slopes")),
    )
    rows: Any
    cols: Any
    row_spread: Any
    col_spread: Any
    tail: float = 1.0
    middle: float = 1.0
    confused: tuple[float, ...] = (0.0,) * 5
    sharpness: float = 1.0
    unseen: bool = False
    left: Any = None
    right: Any = None
    maps: ColumnMaps | None = None
    widths: Any = None
    slopes: Any = None
    unknown: None = None  # nothing of the kind is known of rows: the other side of PAIRS

    def unit_at(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """What residuals at some entries are measured in."""
        s2, var = self.noise_at(rows, cols), self._variance(rows, cols)
        if self.maps is None:
            return self._unit(residuals, s2, var)
        return self._unit_of_interval(residuals, s2, var, self.latent_at(rows, cols), cols)

    def unit_table(self, residuals: Any, rows: Lines = slice(None), cols: Lines = slice(None)) -> Any:
        """What the residuals of all entries of some rows and columns are measured in."""
        s2, var = self._squares(rows, cols)
        if self.maps is None:
            return self._unit(residuals, s2, var)
        maps = self.maps.cut(slice(None), cols)
        return replace(self, maps=maps)._unit_of_interval(residuals, s2, var, self.latent_table(rows, cols))

    def mapped(self, L: LowRank, maps: ColumnMaps) -> EntryScale:
        """The same, if all of it is of latent values, of which L is expected."""
        left, right = L.thin()
        return replace(self, left=left, right=right, maps=maps)

    def latent_at(self, rows: Any, cols: Any) -> Any:
        """The latent values that are expected at some entries."""
        total = 0 * self.rows[rows] * self.cols[cols]
        for k in range(self.left.shape[1]):
            total += self.left[rows, k] * self.right[cols, k]
        return total

    def latent_table(self, rows: Lines = slice(None), cols: Lines = slice(None)) -> Any:
        return self.left[rows] @ self.right[cols].T

    def in_units_of_M(self, residuals: Any, rows: Any, cols: Any) -> tuple[Any, Any]:
        """What cells hold, and what is expected there, from the residuals of their latent values."""
        assert self.maps is not None
        latent = self.latent_at(rows, cols)
        return self.maps.observed(latent + residuals, cols), self.maps.expected(latent, cols)

    def spread_sizes(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """Standardised residuals; of entries that stand for an interval, spread evenly within it.

        Randomised quantile residuals (Dunn and Smyth 1996): of clean entries they are distributed as those of numbers.
        In the place of random numbers there are multiples of the golden ratio, by what is expected: no answer depends
        on a seed, or on the order of the entries.
        """
        if self.maps is None:
            return residuals / self.unit_at(residuals, rows, cols)
        s2, var = self.noise_at(rows, cols), self._variance(rows, cols)
        latent = self.latent_at(rows, cols)
        (low, high), unit = self._bounds(residuals, s2, var, latent, cols)
        low, high, some = low / unit, high / unit, low < high
        flip = low > 0  # in the upper tail the distribution function has lost its digits
        ends = np.where(flip, -high, low), np.where(flip, -low, high)
        below, above = ndtr(ends[0]), ndtr(ends[1])
        part = np.empty(len(low))
        part[np.argsort(latent, kind="stable")] = GOLDEN * np.arange(1, len(low) + 1) % 1
        drawn = ndtri(np.maximum(below + (above - below) * part, np.finfo(float).tiny))
        return np.where(some, np.where(flip, -drawn, drawn), low)

    def odds_at(self, residuals: Any, rows: Any, cols: Any, calibration: Calibration) -> tuple[Any, Any]:
        """Of entries of few values or at a bound: which these are, and the odds that they are mistakes."""
        some, group, share = self.shares_at(residuals, rows, cols, calibration)
        gross, xp = _share(calibration), array_namespace(residuals)
        odds, right = KINDS.pile * gross / (1 - gross) / share, 1 - sum(self.confused[:3])
        for k, mistaken in enumerate(self.confused):
            odds = xp.where(group == k, mistaken / (right * share if k < 3 else 1 + 0 * share), odds)
        return some, odds

    def shares_at(self, residuals: Any, rows: Any, cols: Any, calibration: Calibration) -> tuple[Any, Any, Any]:
        """Which entries are of few values or at a bound, and what share of the clean ones hold what they do.

        The second answer is which of ``confused`` counts for them, none of these at a bound; the third means nothing
        for values that their column does not know. What clean residuals are beyond an end of an interval the
        calibration says, in units of ``unit_at``.
        """
        assert self.maps is not None
        s2, var, xp = self.noise_at(rows, cols), self._variance(rows, cols), array_namespace(residuals)
        latent, few = self.latent_at(rows, cols), self.maps.is_few(cols)
        (low, high), unit = self._bounds(residuals, s2, var, latent, cols)
        unit = xp.where(few, self.sharpness * unit, unit)
        share = calibration.below(high / unit) - calibration.below(low / unit)
        group = xp.where(low == -np.inf, 0, xp.where(high == np.inf, 2, 1))
        on_grid = self.maps.on_grid(self.maps.observed(latent + residuals, cols), cols)
        group = xp.where(few, xp.where(low < high, group, xp.where(on_grid, 3, 4)), NO_GROUP)
        share = xp.where(group == 1, share * (self.maps.count(cols) - 2), share)  # any of those between
        return few | (low < high), group, xp.where(share > 0, share, np.finfo(float).tiny)

    def _unit(self, residuals: Any, s2: Any, var: Any) -> Any:
        xp = array_namespace(s2)
        if self.unseen:
            return (s2 + var + 0.0 * residuals) ** 0.5
        used = xp.abs(residuals) <= constants.MAX_CLEAN_RESIDUAL * self.tail * s2**0.5  # NaN is not
        return (s2 + xp.where(used, xp.minimum(var, MOST_SPREAD * s2), var)) ** 0.5

    def _bounds(self, residuals: Any, s2: Any, var: Any, latent: Any, cols: Any = None) -> tuple[tuple[Any, Any], Any]:
        """The interval of each entry about what is expected of it without itself, and the uncertainty of that."""
        assert self.maps is not None
        xp = array_namespace(s2)
        used = xp.abs(residuals) <= constants.REPORTED_THRESHOLD * self.tail * s2**0.5  # others have hardly any weight
        own = xp.where(used, var / (s2 + var), 0.0 * s2) * (not self.unseen)
        expected = latent - residuals * own / (1 - own)
        low, high = self.maps.interval(latent + residuals, cols)
        return (low - expected, high - expected), (s2 + var / (1 - own)) ** 0.5

    def _unit_of_interval(self, residuals: Any, s2: Any, var: Any, latent: Any, cols: Any = None) -> Any:
        """What residuals are measured in, so that the nearer end of the interval counts; infinite within it.

        A value that no other cell of a column of few values holds is as far as KINDS.unknown says.
        """
        xp = array_namespace(s2)
        assert self.maps is not None
        (low, high), unit = self._bounds(residuals, s2, var, latent, cols)
        away = xp.where(low > 0, low, xp.where(high < 0, -high, xp.zeros_like(low)))
        found = xp.where(away > 0, xp.abs(residuals) * unit / xp.where(away > 0, away, 1.0), np.inf)
        columns = slice(None) if cols is None else cols
        unknown = self.maps.is_few(columns) & (low == high)
        return xp.where(unknown, xp.abs(residuals) / KINDS.unknown, found)

    def reach(self, coverage: float) -> float:
        """Standard deviations to either side of what is expected that hold such a share of the clean measurements."""
        gaussian = float(ndtri(0.5 + 0.5 * coverage))
        return gaussian * float(np.interp(gaussian, [HALF, REACH], [self.middle, 1.0]))

    def std_at(self, rows: Any, cols: Any) -> Any:
        """The standard deviation of clean measurements about what is expected, at some entries."""
        std = (self.tail**2 * self.noise_at(rows, cols) + self._variance(rows, cols)) ** 0.5
        return std if self.widths is None else std * self.widths[cols]

    def std_table(self) -> Any:
        """The standard deviation of clean measurements, for all entries."""
        s2, var = self._squares(slice(None), slice(None))
        std = (self.tail**2 * s2 + var) ** 0.5
        return std if self.widths is None else std * self.widths

    def _squares(self, rows: Lines, cols: Lines) -> tuple[Any, Any]:
        s2 = self.rows[rows][:, None] * self.cols[cols][None, :]
        if self.slopes is not None:
            s2 = s2 * self._growth(self.latent_table(rows, cols), cols)
        return s2, self.row_spread[rows] @ self.col_spread[cols].T

    def noise_at(self, rows: Any, cols: Any) -> Any:
        """s² at some entries."""
        s2 = self.rows[rows] * self.cols[cols]
        return s2 if self.slopes is None else s2 * self._growth(self.latent_at(rows, cols), cols)

    def _growth(self, latent: Any, cols: Any) -> Any:
        xp = array_namespace(latent)
        return xp.exp(2 * self.slopes[cols] * xp.clip(latent, -KINDS.levels, KINDS.levels))

    def _variance(self, rows: Any, cols: Any) -> Any:
        total = 0 * self.rows[rows] * self.cols[cols]
        for k in range(self.row_spread.shape[1]):  # no more than a few numbers for each entry are in memory
            total += self.row_spread[rows, k] * self.col_spread[cols, k]
        return total


def _share(calibration: Calibration) -> float:
    """The share of gross errors; never none of them."""
    return float(np.clip(calibration.share, *constants.GROSS_LIMITS))


def learn_slopes(sizes: Array, latent: Array, cols: Array, n2: int) -> Array:
    """The ``slopes`` of :class:`EntryScale`, from standardised residuals and the latent values expected there.

    A column's own slope is shrunk towards that of all columns, and that towards none, by what chance makes of them
    (DerSimonian and Laird 1986). A gross error adds a few units to a logarithm, so it needs no weight of its own.
    """
    y, t = np.log(np.maximum(np.abs(sizes), SMALLEST_SIZE)), np.clip(latent, -KINDS.levels, KINDS.levels)
    counts = np.maximum(np.bincount(cols, minlength=n2), 1)
    y, t = (x - (np.bincount(cols, x, n2) / counts)[cols] for x in (y, t))
    squares = np.bincount(cols, t * t, n2)
    own = np.bincount(cols, t * y, n2) / np.maximum(squares, np.finfo(float).tiny)
    precision = squares / max(float(y @ y) / max(len(y), 1), np.finfo(float).tiny)
    total = precision.sum()
    if not total:
        return np.zeros(n2)
    mean = float(precision @ own / total)
    excess = float(precision @ (own - mean) ** 2) - np.count_nonzero(precision) + 1
    spread = max(0.0, excess / max(float(total - precision @ precision / total), np.finfo(float).tiny))
    inner = np.where(precision > 0, 1 / (spread + 1 / np.maximum(precision, np.finfo(float).tiny)), 0.0)
    mean *= max(0.0, 1 - 1 / max(float(inner.sum()) * mean**2, np.finfo(float).tiny))
    found: Array = mean + (own - mean) * spread * inner
    return found


def learn_confused(met: Sequence[Met], calibration: Calibration) -> tuple[tuple[float, ...], float]:
    """Learn ``confused`` and ``sharpness`` of :class:`EntryScale`: what makes some entries most likely, and odds.

    ``met``: scales of fits, and residuals, rows and columns of entries that each of them is to explain.
    """
    if not any(scale.maps is not None and scale.maps.is_few(cols).any() for scale, *_, cols in met):
        return (0.0,) * 5, 1.0
    best = max((_confused_at(met, calibration, sharpness) for sharpness in SHARPNESS), key=itemgetter(2))
    near = (_confused_at(met, calibration, best[1] * 2.0**step) for step in (-0.125, 0.125))
    return max(best, *near, key=itemgetter(2))[:2]


def _confused_at(
    met: Sequence[Met], calibration: Calibration, sharpness: float
) -> tuple[tuple[float, ...], float, float]:
    """The shares and odds that go with this sharpness, itself, and the log likelihood."""
    groups, clean = [np.zeros(0, int)], [np.zeros(0)]
    for scale, residuals, rows, cols in met:
        _, group, share = replace(scale, sharpness=sharpness).shares_at(residuals, rows, cols, calibration)
        groups.append(group[group != NO_GROUP])
        clean.append(share[group != NO_GROUP])
    held, share = np.concatenate(groups), np.concatenate(clean)
    unknown = (3, KINDS.on_grid), (4, KINDS.off_grid)
    odds = [_odds_of_unknown(int(np.count_nonzero(held == k)), len(held), *usual) for k, usual in unknown]
    shares, likelihood = _shares_of_known(held[held < 3], share[held < 3], _share(calibration))
    return (*shares.tolist(), *odds), sharpness, likelihood


def _shares_of_known(held: Array, clean: Array, gross: float) -> tuple[Array, float]:
    """The shares of mistakes that hold each of three groups of values, by EM, and the log likelihood.

    ``held``: the group of every entry; ``clean``: the share of clean ones that hold what it does. If entries are
    explained as well without mistakes, by the Bayesian information criterion for three numbers, there are next to none:
    in columns that the fit has little to say of, mistakes would explain them as well as anything.
    """
    n = len(held)
    shares, none = np.full(3, gross / 3), np.full(3, 1 / (3 * (n + 2)))  # by the rule of succession
    for _ in range(constants.MAX_STEPS):
        ratio = shares[held] / clean / (1 - shares.sum())
        shares = none + np.bincount(held, ratio / (1 + ratio), 3) / (n + 2)
        shares *= min(1.0, constants.GROSS_LIMITS[1] / shares.sum())
    with_some, without = (float(np.log((1 - x.sum()) * clean + x[held]).sum()) for x in (shares, none))
    if with_some - without > 1.5 * np.log(n + 1):
        return shares, with_some - 1.5 * np.log(n + 1)
    return none, without


def _odds_of_unknown(count: int, n: int, shape: float, rate: float) -> float:
    """The odds that entries are mistakes which hold a value that their column does not know: ``count`` of n entries.

    A table that has no mistakes has so many by a gamma-Poisson distribution; one that has them as many as it may be, as
    likely in every order of magnitude. Each is as likely as the other, a priori.
    """
    count = max(count, 1)
    clean = gammaln(count + shape) - gammaln(shape) - gammaln(count + 1) + shape * np.log(rate / (rate + n))
    clean += count * np.log(n / (rate + n))
    low, high = constants.GROSS_LIMITS
    return float(np.exp(min(-np.log(count * np.log(high / low)) - clean, 50.0)))


@dataclass(frozen=True, eq=False)
class Judge:
    """Which entries are outliers, and how probable that is.

    Attributes
    ----------
    limit : float
        Larger residuals are outliers: in units of ``scale`` or, without one, of M.
    scale, calibration : EntryScale or None, Calibration or None
        None where there is no model of the noise.
    exact : bool
        Whether every outlier is one for certain: the fit is exact.
    known : pair of boolean arrays, or None
        Of which rows, and of which columns, L is known; entries of the others are never outliers. None: of all.
    level : float
        Entries that stand for an interval are outliers with a larger probability.
    """

    limit: float
    scale: EntryScale | None = None
    calibration: Calibration | None = None
    exact: bool = False
    known: tuple[Any, Any] | None = None
    level: float = 0.5

    @property
    def candidates(self) -> float | Standardised:
        """A looser limit for an engine, s without var L: every outlier is beyond it; ``outliers`` drops the rest.

        Of intervals, some may be within it: outliers of a probability of less than 0.1 only, and scores about as likely
        mistakes as not, where L is less certain than they are far apart.
        """
        if self.scale is None or (np.isinf(self.limit) and self.scale.maps is None):
            return self.limit
        limit = self.limit
        if self.scale.maps is not None and self.calibration is not None:
            # A residual without the cell itself is less than 1.16 times as large (see EntryScale._bounds), and the end
            # of an interval is nearer than its middle. An interval is a mistake from this share of clean cells on; few
            # values may be told apart more sharply.
            gross, confused = KINDS.pile * _share(self.calibration), self.scale.confused[:3]
            odds = max(gross / (1 - _share(self.calibration)), max(confused) / (1 - sum(confused)))
            share = odds * (1 - self.level) / max(self.level, 1e-12)
            tail = self.calibration.size_of_tail(min(share, 0.5)) * min(1.0, self.scale.sharpness)
            limit = min(limit, tail) * np.sqrt(3) / 2
        cols = self.scale.cols
        if self.scale.slopes is not None:  # no noise is less
            cols = cols * array_namespace(cols).exp(-2 * KINDS.levels * abs(self.scale.slopes))
        return Standardised(self.scale.rows, cols, limit)

    def standardised(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """Residuals at some entries in units of their uncertainty; without a model of it, of the limit."""
        if self.scale is not None:
            return residuals / self.scale.unit_at(residuals, rows, cols)
        return residuals / (self.limit if 0 < self.limit < np.inf else 1.0)

    def probability(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """The probability that entries are gross errors; NaN where there is no model to tell."""
        z = self.standardised(residuals, rows, cols)
        if self.exact or self.calibration is None:
            return 0 * z + (1.0 if self.exact else np.nan)
        found = self.calibration(z)
        if self.scale is None or self.scale.maps is None:
            return found
        some, odds = self.scale.odds_at(residuals, rows, cols, self.calibration)
        return array_namespace(z).where(some, odds / (1 + odds), found)

    def is_outlier(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """Which of some candidates are outliers: entries that are already known to be beyond ``candidates``."""
        limit, z = 0.0 if self.scale is None else self.limit, self.standardised(residuals, rows, cols)
        found = abs(z) > limit
        if self.calibration is not None and self.calibration.skewed and limit:
            found &= self.calibration(z) > self.level
        if self.scale is not None and self.scale.maps is not None and self.calibration is not None:
            some, _ = self.scale.odds_at(residuals, rows, cols, self.calibration)
            found = array_namespace(residuals).where(some, self.probability(residuals, rows, cols) > self.level, found)
        return found if self.known is None else found & self.known[0][rows] & self.known[1][cols]

    def outliers(self, S: Any) -> Any:
        """Those of the candidates S that are outliers; where they were, in host memory or on a device."""
        one_sided = self.calibration is not None and self.calibration.skewed
        certain = self.scale is None or (not self.scale.row_spread.shape[1] and self.scale.maps is None)
        certain &= not one_sided
        if certain and (self.known is None or all(lines.all() for lines in self.known)):
            return S
        judge, kept = self.converted(S.tensor_of) if on_device(S) else self, S.data != S.data
        for first in range(0, S.nnz, JUDGED_ENTRIES):
            some = slice(first, first + JUDGED_ENTRIES)
            kept[some] = judge.is_outlier(S.data[some], *places(S, some))
        return only(S, kept)

    def converted(self, convert: Callable[[Any], Any]) -> Judge:
        """The same for arrays of another kind."""
        known = None if self.known is None else (convert(self.known[0]), convert(self.known[1]))
        return replace(self, scale=self.scale and self.scale.converted(convert), known=known)


Met = tuple[EntryScale, Array, Array, Array]  # a scale, and the residuals, rows and columns of entries


def calibrate(met: Sequence[Met], gross: float, known: bool = False) -> tuple[Judge, list[Array]]:
    """Learn how probable mistakes are among some entries: a judge, and what it says of them.

    Its scale is the first one. ``gross``: a first estimate of the share of gross errors; ``known``: whether the scales
    say how few values are mistaken. Such mistakes are taken for tails of the noise at first, so those that are found
    are left out the second time.
    """
    sizes = np.concatenate([scale.spread_sizes(*entries) for scale, *entries in met])
    few = np.concatenate([0 * cols > 0 if scale.maps is None else scale.maps.is_few(cols) for scale, *_, cols in met])
    scales, wrong = [scale for scale, *_ in met], np.zeros(len(sizes))
    for _ in range(2 if few.any() else 1):
        calibration = Calibration(sizes[~few | (wrong <= constants.MAJORITY)], gross, FENCE)
        if few.any() and not known:
            confused, sharpness = learn_confused(met, calibration)
            scales = [replace(scale, confused=confused, sharpness=sharpness) for scale in scales]
        judges = [Judge(calibration.limit, scale, calibration) for scale in scales]
        found = [judge.probability(*entries) for judge, (_, *entries) in zip(judges, met, strict=True)]
        wrong = np.concatenate(found)
    return judges[0], found
