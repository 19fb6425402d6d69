"""How far clean entries scatter about what is expected of them, and how probable it is that one is a gross error.

An entry of M is expected to be L_ij. Clean ones scatter about that by the noise, of the scale ``s² = rows_i · cols_j``,
and by the error of L itself, whose variance is ``var = Σ_k row_spread_ik · col_spread_jk``. A residual is measured in
units of ``sqrt(s² + var)``; where the fit used the entry, L has followed it, and var counts for no more than 9 s², as
in the fit. In these units the distribution of all residuals tells which are too large (:mod:`irpca.model.calibration`).
Everything that says which cells are outliers and how sure that is, S, files, tables, checks and new rows, uses these
formulas: for NumPy arrays and for tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.special import ndtr, ndtri

from .. import constants
from ..constants import KINDS
from ..engines.base import MEDIAN, MOST_SPREAD, Sided, Standardised
from ..engines.sparse_part import on_device, only, places
from ..lowrank import Array, LowRank
from .calibration import Calibration
from .maps import ColumnMaps

FENCE = MEDIAN * 2.0**constants.TUKEY_FENCE  # standard deviations: what is within Tukey's fence is no mistake
HALF = float(ndtri(0.75))  # standard deviations to either side: half of the clean measurements, if they are Gaussian
REACH = 1.96  # the same of 95 %
JUDGED_ENTRIES = 1 << 20  # of S at a time: some numbers are made for each
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
    unseen : bool
        Whether the fit was made without the entries that are judged.
    left, right, maps : arrays of shape (n1, k) and (n2, k), and ColumnMaps; or None
        Where columns are mapped: factors of what is expected of latent values, and the maps. All else is of latent
        values then.

    Examples
    --------
    >>> scale = EntryScale(np.array([1.0, 4.0]), np.ones(3), np.ones((2, 1)), np.array([[0.0], [0.0], [5.0]]))
    >>> scale.std_table()
    array([[1.        , 1.        , 2.44948974],
           [2.        , 2.        , 3.        ]])
    >>> scale.unit_at(np.array([9.0]), np.array([0]), np.array([2]))
    array([2.44948974])
    """

    PAIRS = (("rows", "cols"), ("row_spread", "col_spread"), ("left", "right"))
    rows: Any
    cols: Any
    row_spread: Any
    col_spread: Any
    tail: float = 1.0
    middle: float = 1.0
    unseen: bool = False
    left: Any = None
    right: Any = None
    maps: ColumnMaps | None = None

    def unit_at(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """What residuals at some entries are measured in."""
        s2, var = self.rows[rows] * self.cols[cols], self._variance(rows, cols)
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

    def draw_sizes(self, residuals: Any, rows: Any, cols: Any, rng: np.random.Generator) -> Any:
        """Standardised residuals; of entries that stand for an interval, drawn from within it.

        Randomised quantile residuals (Dunn and Smyth 1996): of clean entries they are distributed as those of numbers.
        """
        if self.maps is None:
            return residuals / self.unit_at(residuals, rows, cols)
        s2, var = self.rows[rows] * self.cols[cols], self._variance(rows, cols)
        (low, high), unit = self._bounds(residuals, s2, var, self.latent_at(rows, cols), cols)
        low, high, some = low / unit, high / unit, low < high
        flip = low > 0  # in the upper tail the distribution function has lost its digits
        ends = np.where(flip, -high, low), np.where(flip, -low, high)
        below, above = ndtr(ends[0]), ndtr(ends[1])
        drawn = ndtri(np.maximum(below + (above - below) * rng.random(len(low)), np.finfo(float).tiny))
        return np.where(some, np.where(flip, -drawn, drawn), low)

    def odds_at(self, residuals: Any, rows: Any, cols: Any, below: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Of entries of few values or at a bound: which these are, and the density of mistakes over that of clean.

        Half of the mistakes in a column of few values are taken for one of these, the others for values that no clean
        cell holds. ``below``: the share of clean residuals that are smaller, by their size in units of ``unit_at``.
        """
        assert self.maps is not None
        s2, var, xp = self.rows[rows] * self.cols[cols], self._variance(rows, cols), array_namespace(residuals)
        (low, high), unit = self._bounds(residuals, s2, var, self.latent_at(rows, cols), cols)
        mass = below(high / unit) - below(low / unit)
        few, some = self.maps.is_few(cols), low < high
        hit = xp.where(few, 0.5 / self.maps.count(cols), KINDS.pile + 0.0 * unit)
        odds = hit / xp.where(mass > 0, mass, np.finfo(float).tiny)
        return some | few, xp.where(some, odds, 0.5 / KINDS.rare)

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

    def corrected(self, factors: Array, middle: float) -> EntryScale:
        """The same with standard deviations multiplied by one factor for each column."""
        square = factors**2
        return replace(self, cols=self.cols * square, col_spread=self.col_spread * square[:, None], middle=middle)

    def reach(self, coverage: float) -> float:
        """Standard deviations to either side of what is expected that hold such a share of the clean measurements."""
        gaussian = float(ndtri(0.5 + 0.5 * coverage))
        return gaussian * float(np.interp(gaussian, [HALF, REACH], [self.middle, 1.0]))

    def std_at(self, rows: Any, cols: Any) -> Any:
        """The standard deviation of clean measurements about what is expected, at some entries."""
        return (self.tail**2 * self.rows[rows] * self.cols[cols] + self._variance(rows, cols)) ** 0.5

    def std_table(self) -> Any:
        """The standard deviation of clean measurements, for all entries."""
        s2, var = self._squares(slice(None), slice(None))
        return (self.tail**2 * s2 + var) ** 0.5

    def _squares(self, rows: Lines, cols: Lines) -> tuple[Any, Any]:
        s2 = self.rows[rows][:, None] * self.cols[cols][None, :]
        return s2, self.row_spread[rows] @ self.col_spread[cols].T

    def _variance(self, rows: Any, cols: Any) -> Any:
        total = 0 * self.rows[rows] * self.cols[cols]
        for k in range(self.row_spread.shape[1]):  # no more than a few numbers for each entry are in memory
            total += self.row_spread[rows, k] * self.col_spread[cols, k]
        return total


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

        Of intervals, some that are outliers with a probability of less than 0.1 only may be within it.
        """
        if self.scale is None or (np.isinf(self.limit) and self.scale.maps is None):
            return self.limit
        limit = self.limit
        if self.scale.maps is not None and self.calibration is not None:
            # A residual without the cell itself is less than 1.16 times as large (see EntryScale._bounds), and the end
            # of an interval is nearer than its middle. An interval is a mistake from this share of clean cells on.
            share = 0.25 * self._prior / (1 - self._prior) * (1 - self.level) / max(self.level, 1e-12)
            limit = min(limit, self.calibration.size_of_tail(min(share, 0.5))) * np.sqrt(3) / 2
        return Standardised(self.scale.rows, self.scale.cols, limit)

    @property
    def _prior(self) -> float:
        """The share of mistakes among entries that stand for an interval."""
        assert self.calibration is not None
        return float(np.clip(self.calibration.share, *constants.GROSS_LIMITS))

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
        some, odds = self.scale.odds_at(residuals, rows, cols, self.calibration.below)
        odds = odds * self._prior / (1 - self._prior)
        return array_namespace(z).where(some, odds / (1 + odds), found)

    def is_outlier(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """Which of some candidates are outliers: entries that are already known to be beyond ``candidates``."""
        limit, z = 0.0 if self.scale is None else self.limit, self.standardised(residuals, rows, cols)
        found = abs(z) > limit
        if self.calibration is not None and self.calibration.skewed and limit:
            found &= self.calibration(z) > self.level
        if self.scale is not None and self.scale.maps is not None and self.calibration is not None:
            some, _ = self.scale.odds_at(residuals, rows, cols, self.calibration.below)
            found = array_namespace(residuals).where(some, self.probability(residuals, rows, cols) > self.level, found)
        return found if self.known is None else found & self.known[0][rows] & self.known[1][cols]

    def outliers(self, S: Any) -> Any:
        """Those of the candidates S that are outliers; where they were, in host memory or on a device."""
        certain = self.scale is None or (not self.scale.row_spread.shape[1] and self.scale.maps is None)
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
