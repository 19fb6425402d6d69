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

from .. import constants
from ..engines.base import MOST_SPREAD, Sided, Standardised
from ..engines.sparse_part import on_device, only, places
from .calibration import Calibration

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

    Examples
    --------
    >>> scale = EntryScale(np.array([1.0, 4.0]), np.ones(3), np.ones((2, 1)), np.array([[0.0], [0.0], [5.0]]))
    >>> scale.std_table()
    array([[1.        , 1.        , 2.44948974],
           [2.        , 2.        , 3.        ]])
    >>> scale.unit_at(np.array([9.0]), np.array([0]), np.array([2]))
    array([2.44948974])
    """

    PAIRS = (("rows", "cols"), ("row_spread", "col_spread"))
    rows: Any
    cols: Any
    row_spread: Any
    col_spread: Any
    tail: float = 1.0

    def unit_at(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """What residuals at some entries are measured in."""
        return self._unit(residuals, self.rows[rows] * self.cols[cols], self._variance(rows, cols))

    def unit_table(self, residuals: Any, rows: Lines = slice(None), cols: Lines = slice(None)) -> Any:
        """What the residuals of all entries of some rows and columns are measured in."""
        return self._unit(residuals, *self._squares(rows, cols))

    def _unit(self, residuals: Any, s2: Any, var: Any) -> Any:
        xp = array_namespace(s2)
        used = xp.abs(residuals) <= constants.MAX_CLEAN_RESIDUAL * self.tail * s2**0.5  # NaN is not
        return (s2 + xp.where(used, xp.minimum(var, MOST_SPREAD * s2), var)) ** 0.5

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
    """

    limit: float
    scale: EntryScale | None = None
    calibration: Calibration | None = None
    exact: bool = False
    known: tuple[Any, Any] | None = None

    @property
    def candidates(self) -> float | Standardised:
        """A looser limit for an engine, s without var L: every outlier is beyond it; ``outliers`` drops the rest."""
        if self.scale is None or np.isinf(self.limit):
            return self.limit
        return Standardised(self.scale.rows, self.scale.cols, self.limit)

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
        return self.calibration(z)

    def is_outlier(self, residuals: Any, rows: Any, cols: Any) -> Any:
        """Which of some candidates are outliers: entries that are already known to be beyond ``candidates``."""
        limit = 0.0 if self.scale is None else self.limit
        found = abs(self.standardised(residuals, rows, cols)) > limit
        return found if self.known is None else found & self.known[0][rows] & self.known[1][cols]

    def outliers(self, S: Any) -> Any:
        """Those of the candidates S that are outliers; where they were, in host memory or on a device."""
        certain = self.scale is None or not self.scale.row_spread.shape[1]
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
