"""Monotone maps of columns: from what a cell holds to a latent value that follows the factor model, and back.

A map is a line through knots, continued beyond the last of them as a logarithm, so that no value is infinitely far and
no expected value runs away. A knot may stand for an interval of latent values: one of few ordered values, or the value
at which a column is piled up (zeros, a limit of detection), which says only that the latent value is beyond a bound.
All of it is said once, for NumPy arrays and for tensors, of a table or of scattered cells: ``cols`` says of which
columns, in any shape that broadcasts with the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from ..engines.base import Sided
from ..lowrank import Array, LowRank

KNOTS = 64  # of a map, a power of two: bisection takes six steps
FAR = 8.0  # standard deviations from the middle at which a value begins that no cell of a column of few values holds
OFF_GRID = 0.01  # of a step: M may be in single precision, and values be recovered from latent ones
SAME = 1e-4  # latent values that differ by less are those of one knot: M may be in single precision
MAPPED_ENTRIES = 1 << 20  # that are mapped at a time: a dozen numbers are made for each


@dataclass(frozen=True)
class Kind:
    """What a column holds, and its map.

    Attributes
    ----------
    name : for people, such as "logarithm, 61% at 0"
    x, z : the knots: values of the column, increasing, and their latent values
    low, high : the interval of latent values that a knot stands for; both are z where it stands for itself
    limits : the least and the largest value that the column can hold
    least : the noise that cannot be told from none: that of equal values, and what a map of two parameters leaves
    plain : whether the latent value is the value itself, but for its place and unit
    """

    name: str
    x: Array
    z: Array
    low: Array
    high: Array
    limits: tuple[float, float]
    least: float
    plain: bool


@dataclass(frozen=True, eq=False)
class ColumnMaps(Sided):
    """The maps of all columns of a table.

    Attributes
    ----------
    knots : array of shape (n2, 4, KNOTS)
        x, z, low and high of :class:`Kind`, continued with infinite ones.
    limits : array of shape (n2, 2)
    least : array of shape (n2,)
    names : tuple of str

    Examples
    --------
    >>> from irpca.model.kinds import kind_of
    >>> maps = ColumnMaps.of([kind_of(np.arange(1.0, 100.0)), kind_of(np.array([0.0, 1.0] * 50))])
    >>> maps.names
    ('as it is', 'yes or no')
    >>> Z = maps.latent(np.array([[50.0, 1.0], [99.0, 0.0]]))
    >>> Z.round(2).tolist(), maps.expected(Z).round(2).tolist()
    ([[0.0, 0.8], [1.32, -0.8]], [[50.0, 1.0], [99.0, 0.0]])
    """

    PAIRS: ClassVar[tuple[tuple[str, str], ...]] = (("rows", "knots"), ("rows", "limits"), ("rows", "least"))
    knots: Any
    limits: Any
    least: Any
    names: tuple[str, ...] = ()
    rows: None = None  # nothing is known of rows: the other side of PAIRS

    @classmethod
    def of(cls, kinds: Sequence[Kind]) -> ColumnMaps:
        knots = np.full((len(kinds), 4, KNOTS), np.inf)
        for one, kind in zip(knots, kinds, strict=True):
            one[:, : len(kind.x)] = kind.x, kind.z, kind.low, kind.high
        limits = np.array([kind.limits for kind in kinds])
        return cls(knots, limits, np.array([kind.least for kind in kinds]), tuple(kind.name for kind in kinds))

    def latent(self, X: Any, cols: Any = None) -> Any:
        """The latent values of cells, in double precision; NaN where they are."""
        xp, x, cols = self._given(X, cols)
        x0, x1, z0, z1, first, last = self._segment(x, cols, 0)
        slope = (z1 - z0) / (x1 - x0)
        zero = xp.zeros_like(x)  # not 0 x: of infinite values that is NaN
        over, under = xp.where(last, x - x1, zero) * slope, xp.where(first, x0 - x, zero) * slope
        z = z0 + slope * (x - x0)
        z = xp.where(over > 0, z1 + xp.log1p(xp.where(over > 0, over, 0.0)), z)
        z = xp.where(under > 0, z0 - xp.log1p(xp.where(under > 0, under, 0.0)), z)
        away = x - self._middle(cols)
        foreign = xp.sign(away) * (FAR + xp.asinh(xp.abs(away)))
        of_few = xp.where(x == x0, z0, xp.where(x == x1, z1, foreign))
        return xp.where(self._few[cols] & (x == x), of_few, z)

    def observed(self, Z: Any, cols: Any = None) -> Any:
        """What a cell holds whose latent value this is: the inverse of :meth:`latent`."""
        xp, z, cols = self._given(Z, cols)
        x0, x1, z0, z1, first, last = self._segment(z, cols, 1)
        slope = (x1 - x0) / (z1 - z0)
        zero = xp.zeros_like(z)
        over, under = xp.where(last, z - z1, zero), xp.where(first, z0 - z, zero)
        x = x0 + slope * (z - z0)
        x = xp.where(over > 0, x1 + slope * xp.expm1(xp.where(over > 0, over, 0.0)), x)
        x = xp.where(under > 0, x0 - slope * xp.expm1(xp.where(under > 0, under, 0.0)), x)
        foreign = self._middle(cols) + xp.sign(z) * xp.sinh(xp.where(xp.abs(z) > FAR, xp.abs(z) - FAR, zero))
        of_few = xp.where(xp.abs(z) >= FAR, foreign, xp.where(z - z0 <= z1 - z, x0, x1))
        return xp.where(self._few[cols] & (z == z), of_few, x)

    def expected(self, Z: Any, cols: Any = None, held: bool = False) -> Any:
        """The median of what cells hold whose latent values have these medians; within what the column can hold.

        Of columns of few values it may lie between them, as a mean does; ``held``: it is one of them.
        """
        xp, z, cols = self._given(Z, cols)
        z = xp.clip(z, -FAR, FAR)
        x0, x1, z0, z1, first, last = self._segment(z, cols, 1)
        between = x0 + (x1 - x0) / (z1 - z0) * (z - z0)
        over, under = xp.where(last, z - z1, 0.0 * z), xp.where(first, z0 - z, 0.0 * z)
        slope = (x1 - x0) / (z1 - z0)
        x = xp.where(over > 0, x1 + slope * xp.expm1(over), xp.where(under > 0, x0 - slope * xp.expm1(under), between))
        if held:
            at = self._below(z, cols, 3, strict=True)
            x = xp.where(self._few[cols], self._take(0, cols, at), x)
        low, high = self.limits[cols, 0], self.limits[cols, 1]
        x = xp.where(x < low, low, xp.where(x > high, high, x))
        return xp.where(z == z, x, z)

    def interval(self, Z: Any, cols: Any = None) -> tuple[Any, Any]:
        """The interval of latent values that a cell stands for; where it is a number, its latent value twice."""
        xp, z, cols = self._given(Z, cols)
        at = self._below(z + SAME, cols, 1)
        same = xp.abs(z - self._take(1, cols, at)) <= SAME
        low, high = (xp.where(same, self._take(part, cols, at), z) for part in (2, 3))
        return low, high

    def ranges(self, X: Array, cols: Array) -> tuple[Array, Array]:
        """The interval of values that a cell stands for, half way to the next ones; a number is its own."""
        x, last = X.astype(float), self._last[cols]
        at = self._below(x, cols, 0)
        same = (self._take(0, cols, at) == x) & (self._take(2, cols, at) < self._take(3, cols, at))
        before, after = (self._take(0, cols, np.clip(at + step, 0, last)) for step in (-1, 1))
        half = np.where(self._few[cols], 0.5, 1.0)  # beside a pile, there is a knot half way
        low = np.where(at == 0, -np.inf, x + half * (before - x))
        high = np.where(at == last, np.inf, x + half * (after - x))
        return np.where(same, low, x), np.where(same, high, x)

    def log_slope(self, X: Array, cols: Array) -> Array:
        """The logarithm of the slope of the map at some cells."""
        x = X.astype(float)
        x0, x1, z0, z1, first, last = self._segment(x, cols, 0)
        slope = (z1 - z0) / (x1 - x0)
        beyond = np.where(last, np.maximum(x - x1, 0), 0) + np.where(first, np.maximum(x0 - x, 0), 0)
        away = x - self._middle(cols)
        found: Array = np.where(self._few[cols], -0.5 * np.log1p(away**2), np.log(slope) - np.log1p(beyond * slope))
        return found

    def is_few(self, cols: Any) -> Any:
        """Whether columns hold few ordered values."""
        return self._few[cols]

    def on_grid(self, X: Any, cols: Any) -> Any:
        """Whether cells are whole steps from the values of their column; a step is between the nearest of these."""
        xp, x = array_namespace(X), self.knots[:, 0]
        last = ~xp.isfinite(x[:, 1:])
        x = xp.where(xp.isfinite(x), x, xp.zeros_like(x))
        steps = xp.min(xp.where(last, np.inf, x[:, 1:] - x[:, :-1]), axis=1)
        away = (X - x[cols, 0]) / steps[cols]
        return xp.abs(away - xp.round(away)) < OFF_GRID

    def count(self, cols: Any) -> Any:
        """How many values columns of few values hold."""
        return self._last[cols] + 1

    def table(self, M: Any, dtype: Any = None) -> Any:
        """The latent values of a table, or of some rows of it, in its precision or in another one."""
        Z = array_namespace(M).empty_like(M, dtype=dtype)
        step = max(1, MAPPED_ENTRIES // M.shape[1])
        for first in range(0, len(M), step):
            some = slice(first, first + step)
            Z[some] = self.latent(M[some])
        return Z

    def cells(self, values: Any, cols: Any, dtype: Any = None) -> Any:
        """The latent values of scattered cells, in their precision or in another one."""
        found = array_namespace(values).empty_like(values, dtype=dtype)
        for first in range(0, len(values), MAPPED_ENTRIES):
            some = slice(first, first + MAPPED_ENTRIES)
            found[some] = self.latent(values[some], cols[some])
        return found

    def _given(self, values: Any, cols: Any) -> tuple[Any, Any, Any]:
        xp = array_namespace(values)
        if cols is None:
            cols = xp.arange(values.shape[-1], device=values.device)
        return xp, xp.astype(values, xp.float64, copy=False), cols

    @property
    def _last(self) -> Any:
        """The position of the last knot of every column."""
        xp = array_namespace(self.knots)
        return xp.sum(xp.astype(xp.isfinite(self.knots[:, 0]), xp.int64), axis=1) - 1

    @property
    def _few(self) -> Any:
        """Which columns hold few ordered values: every knot stands for an interval."""
        xp = array_namespace(self.knots)
        return xp.all((self.knots[:, 2] < self.knots[:, 3]) | xp.isinf(self.knots[:, 0]), axis=1)

    def _middle(self, cols: Any) -> Any:
        return self._take(0, cols, self._last[cols] // 2)

    def _take(self, part: int, cols: Any, at: Any) -> Any:
        return self.knots[cols, part, at]

    def _below(self, values: Any, cols: Any, part: int, strict: bool = False) -> Any:
        """The position of the last knot that is not above each value; ``strict``: how many are not above it."""
        xp = array_namespace(values)
        at = xp.zeros_like(values, dtype=xp.int64) - int(strict)
        step = KNOTS // 2
        while step:
            ahead = at + step
            at = xp.where(self._take(part, cols, ahead) <= values, ahead, at)
            step //= 2
        last = self._last[cols] + 0 * at
        at = at + int(strict)
        return xp.where(at < last, at, last)

    def _segment(self, values: Any, cols: Any, part: int) -> tuple[Any, ...]:
        """The knots on both sides of each value, and whether the value is in the first or the last segment."""
        xp = array_namespace(values)
        at, last = self._below(values, cols, part), self._last[cols] - 1
        at = xp.where(at < last, at, last + 0 * at)
        x0, x1 = self._take(0, cols, at), self._take(0, cols, at + 1)
        z0, z1 = self._take(1, cols, at), self._take(1, cols, at + 1)
        return x0, x1, z0, z1, at == 0, at == last


class MappedLowRank(LowRank):
    """Expected values of a table whose columns are mapped: what belongs to a low-rank matrix of latent values.

    ``left``, ``core`` and ``right`` are factors of the latent values; entries are in units of the table.
    """

    maps: ColumnMaps

    def __init__(self, latent: LowRank, maps: ColumnMaps) -> None:
        super().__init__(latent.left, latent.core, latent.right)
        object.__setattr__(self, "maps", maps)

    @property
    def latent(self) -> LowRank:
        return LowRank(self.left, self.core, self.right)

    def part(self, rows: Any, cols: Any) -> LowRank:
        return MappedLowRank(self.latent.part(rows, cols), self.maps.cut(slice(None), np.asarray(cols)))

    def rows(self, index: Any) -> Array:
        found: Array = self.maps.expected(self.latent.rows(index))
        return found

    def entries(self, rows: Any, cols: Any) -> Array:
        found: Array = self.maps.expected(self.latent.entries(rows, cols), np.broadcast_arrays(rows, cols)[1])
        return found

    def sampled(self, rows: Array, cols: Array) -> Array:
        found: Array = self.maps.expected(self.latent.sampled(rows, cols), cols)
        return found

    def dense(self) -> Array:
        U, V = self.thin()
        full = np.empty(self.shape)
        step = max(1, MAPPED_ENTRIES // len(V))
        for first in range(0, len(U), step):
            full[first : first + step] = self.maps.expected(U[first : first + step] @ V.T)
        return full
