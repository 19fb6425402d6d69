"""What people read and use of a fit: outliers, expected and repaired values, with how sure they are.

All of it is said once, for NumPy arrays and for tensors. Tables as large as M are what a :class:`Region` answers: some
rows at a time in host memory or on a device (:func:`fill`), chunk by chunk of a dask array
(:mod:`.engines.distributed.lazy_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from .arguments import number
from .engines.base import Engine, Sided
from .engines.sparse_part import on_device, only, places
from .lowrank import Array
from .model.calibration import discoveries, most_certain_first
from .model.entry_scale import REACH, EntryScale, Judge
from .model.maps import ColumnMaps
from .result import Result, in_units_of_M

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .engines.sparse_part import Sparse

MOST_CELLS = 1 << 28  # of a table of expected or repaired values: 2 GB
JUDGED_CELLS = 1 << 24  # that are looked at together, in double precision
MARKS = np.array(["", "outlier", "missing"])


@dataclass(frozen=True)
class Criterion:
    """Which cells are called outliers: by at most one of three numbers; none of them: probability above one half.

    Attributes
    ----------
    fdr : the expected share of false alarms among the cells
    probability : the least probability of being an outlier
    threshold : the size of the difference between observed and expected that a cell must exceed, in units of M

    Examples
    --------
    >>> print(Criterion(fdr=0.05))
    an expected share of false alarms of at most 0.05
    """

    fdr: float | None = None
    probability: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"give one of fdr, probability and threshold, got {', '.join(given)}")
        if self.probability is not None:
            number(self.probability, "probability", above=0, most=1)
        if self.threshold is not None:
            number(self.threshold, "threshold (a size in units of M)", least=0)
        if self.fdr is not None:
            number(self.fdr, "fdr (a share of false alarms, such as 0.05)", above=0, below=1)

    def __str__(self) -> str:
        if self.fdr is not None:
            return f"an expected share of false alarms of at most {self.fdr:g}"
        if self.threshold is not None:
            return f"a difference larger than {self.threshold:g}"
        return "probability above 0.5" if self.probability is None else f"probability at least {self.probability:g}"

    @property
    def default(self) -> bool:
        return self == Criterion()


# Outliers


def flagged(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> Sparse:
    """The cells that a cut calls outliers, with M − L.

    Those of the fit are known. For more, M is read again, and ``owner`` makes its engine.
    """
    if cut.default:
        found: Any = result.S
        return found
    among = Candidates(candidates(result, cut, owner), result.judge)
    S = among.keep(among.choose(cut))
    return S if result.scale is None or result.maps is None else in_units_of_M(S, result.scale)


def candidates(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> Sparse:
    """The residuals among which a cut chooses, and perhaps others; where they are."""
    exact = result.noise == 0
    if result.failed and (cut.fdr or cut.probability):
        raise ValueError(f"there are no probabilities to choose by. {result.status.name}: {result.status.advice}")
    if not exact and result.calibration is None and (cut.fdr or cut.probability):
        raise ValueError(
            "fdr and probability need a model of the noise, and this solver has none: use solver='irpca', or threshold"
        )
    sure = cut.probability is not None and cut.probability > 0.5
    large = cut.threshold is not None and result.scale is None and cut.threshold >= result.zeta
    if exact or cut.default or sure or large:  # the outliers of the fit hold all that the cut asks for
        found: Any = result.residuals
        return found
    return _read_beyond(result, cut, owner())


def _read_beyond(result: Result, cut: Criterion, engine: Engine) -> Sparse:
    """All cells that may be in the cut, from one read of M."""
    if result.maps is not None:
        engine = engine.mapped(result.maps)
    if cut.threshold is not None:
        judge = replace(result.judge, limit=cut.threshold if result.maps is None else 0.0, scale=None)
        if result.maps is not None and np.prod(engine.shape) > MOST_CELLS:
            raise ValueError(
                "threshold is in units of M, and columns of this model are mapped: of so large a table all cells would "
                "have to be listed; use probability or fdr"
            )
    else:
        assert result.scale is not None and result.calibration is not None
        level = np.nextafter(cut.probability or 0.0, -1)
        judge = replace(result.judge, limit=result.calibration.size_at(level), level=max(level, 0.0))
    S, _ = engine.corruption(result.factors, judge.candidates)
    return judge.outliers(S)


class Cells(NamedTuple):
    """Some entries of S: their positions in it, |M − L| in units of its uncertainty, scores and probabilities."""

    at: Any
    size: Any
    score: Any
    probability: Any

    def take(self, which: Any) -> Cells:
        return Cells(*(part[which] for part in self))

    def join(self, other: Cells) -> Cells:
        xp = array_namespace(self.at)
        return Cells(*(xp.concat(parts) for parts in zip(self, other, strict=True)))

    def sort(self) -> Cells:
        """The most certain first."""
        return self.take(most_certain_first(self.probability, self.score))


class Candidates:
    """Residuals among which a criterion chooses outliers, where they are.

    Scores are in units of the standard deviations of ``scale``, if there is one.
    """

    def __init__(self, S: Any, judge: Judge, scale: EntryScale | None = None) -> None:
        self.S, self.judge, self.scale = S, judge, scale
        if on_device(S):
            self.judge, self.scale = judge.converted(S.tensor_of), scale and scale.converted(S.tensor_of)

    def choose(self, cut: Criterion, most: int | None = None) -> Cells:
        """Those that a criterion calls outliers, the most certain first, and only the first ``most``."""
        found = self._judge(slice(0, 0))
        for first in range(0, self.S.nnz, JUDGED_CELLS):
            some = self._judge(slice(first, min(first + JUDGED_CELLS, self.S.nnz)))
            if cut.threshold is not None:
                some = some.take(abs(self.difference(some.at)) > cut.threshold)
            elif cut.probability is not None:
                some = some.take(some.probability >= cut.probability)
            found = found.join(some) if len(found.at) else some
            if most is not None and cut.fdr is None:
                found = found.sort().take(slice(most))
        if cut.fdr is not None:
            found = found.take(discoveries(found.probability, cut.fdr, found.size))
        return found.sort().take(slice(most))

    def _judge(self, some: slice) -> Cells:
        residuals, at = self.S.data[some], places(self.S, some)
        size = abs(self.judge.standardised(residuals, *at))
        plain = self.judge.scale is None or self.scale is None or self.scale.maps is not None
        score = size if plain or self.scale is None else abs(residuals) / cast(self.scale.std_at(*at), self.S.dtype)
        positions = array_namespace(residuals).arange(some.start, some.stop, device=device(residuals))
        return Cells(positions, size, score, self.judge.probability(residuals, *at))

    def difference(self, at: Any) -> Any:
        """Observed less expected, of some of the cells, in units of M."""
        residuals, scale = self.S.data[at], self.judge.scale
        if scale is None or scale.maps is None:
            return residuals
        observed, expected = scale.in_units_of_M(residuals, *places(self.S, at))
        return observed - expected

    def keep(self, chosen: Cells) -> Sparse:
        """S with some of its entries, where it is."""
        kept = self.S.data != self.S.data
        kept[chosen.at] = True
        found: Sparse = only(self.S, kept)
        return found


def find(S: csr_array, rows: Array, cols: Array) -> Array:
    """Which entries of S some cells are; −1: none."""
    if not S.nnz:
        return np.full(len(rows), -1)
    (in_rows, in_cols), n2 = places(S), S.shape[1]
    held, wanted = in_rows * n2 + in_cols, rows * n2 + cols
    order = np.argsort(held)
    at = order[np.minimum(np.searchsorted(held, wanted, sorter=order), S.nnz - 1)]
    return np.where(held[at] == wanted, at, -1)


# Values of cells. A scale has factors of what is expected, ``left`` and ``right``, also where columns are not mapped.


def bound(middle: Any, away: Any, maps: ColumnMaps | None, cols: Any = None) -> Any:
    """What cells hold that are so far from what is expected; where columns are mapped, both are of latent values."""
    return middle + away if maps is None else maps.expected(middle + away, cols)


def width(maps: ColumnMaps | None, latent: Any, std: Any, cols: Any = None) -> Any:
    """A standard deviation in units of M; where columns are mapped, half of what it is on both sides of ``latent``."""
    return std if maps is None else 0.5 * (maps.expected(latent + std, cols) - maps.expected(latent - std, cols))


def bounds_at(scale: EntryScale, rows: Any, cols: Any) -> tuple[Any, Any]:
    """Between which values 95 % of the clean measurements of some cells lie."""
    middle, away = scale.latent_at(rows, cols), REACH * scale.std_at(rows, cols)
    return bound(middle, -away, scale.maps, cols), bound(middle, away, scale.maps, cols)


@dataclass(frozen=True, eq=False)
class Region(Sided):
    """Some rows and columns of a table. What it answers are tuples of tables; M is NaN where it is not observed."""

    PAIRS = (("S", "columns"),)
    scale: EntryScale  # NaN in lines of which nothing is known
    S: Any = None  # the outliers of these rows
    columns: Any = None  # of S that are meant: positions that follow each other

    def expected(self, M: Any = None) -> tuple[Any, ...]:
        """What is expected."""
        latent, maps = self.scale.latent_table(), self.scale.maps
        return (latent if maps is None else maps.expected(latent),)

    def deviation(self, M: Any = None) -> tuple[Any, ...]:
        """The standard deviation of clean measurements.

        Where columns are mapped, it depends on how far a cell is from what is expected: the difference divided by it
        is that of the latent values, standardised.
        """
        std, maps = self.scale.std_table(), self.scale.maps
        if maps is None:
            return (std,)
        latent = self.scale.latent_table()
        std = width(maps, latent, std)
        if M is not None:
            xp, residuals = array_namespace(std), maps.latent(M) - latent
            away, size = xp.abs(M - maps.expected(latent)), xp.abs(residuals) / self.scale.unit_table(residuals)
            std = xp.where(
                away > 0, xp.where(size > 0, away / xp.where(size > 0, size, 1.0), xp.maximum(std, away)), std
            )
        return (std,)

    def interval(self, M: Any = None, *, reach: float) -> tuple[Any, ...]:
        """What is so many standard deviations below what is expected, and above it."""
        latent, away = self.scale.latent_table(), reach * self.scale.std_table()
        return tuple(bound(latent, end, self.scale.maps) for end in (-away, away))

    def repaired(self, M: Any, *, std: bool) -> tuple[Any, ...]:
        """M with outliers and holes replaced by what is expected there, where that is known; and what was replaced.

        The second table has the standard deviations about what was replaced, and 0 elsewhere; None without ``std``. The
        third, of positions in MARKS, has 1 where an outlier and 2 where a hole was replaced, and 2 where a hole stays.
        """
        xp, maps, latent = array_namespace(M), self.scale.maps, self.scale.latent_table()
        expected = latent if maps is None else maps.expected(latent, held=True)
        outlier, missing, known = self._outliers(M), xp.isnan(M), xp.isfinite(expected)
        marks = xp.where(outlier, cast(known, np.int8), 2 * cast(missing, np.int8))
        made = xp.where((outlier | missing) & known, expected, M)
        if not std:
            return made, None, marks
        away = width(maps, latent, self.scale.std_table())
        return made, xp.where(marks > 0, away, xp.zeros_like(away)), marks

    def _outliers(self, M: Any) -> Any:
        """Where S has entries."""
        found = array_namespace(M).zeros_like(M, dtype=array_namespace(M).bool)
        rows, cols = places(self.S)
        cols = cols - self.columns[0]
        inside = (cols >= 0) & (cols < len(self.columns))
        found[rows[inside], cols[inside]] = True
        return found


Answer = Callable[[Region, Any], tuple[Any, ...]]  # what a region says, M there being known or None


def fill(region: Region, answer: Answer, dtypes: tuple[Any, ...], blocks: Iterable[tuple[slice, Any]]) -> list[Any]:
    """What a region answers, where its arrays are; in these types, None for what is not wanted.

    ``blocks``: the rows that are answered for together, and M there, if the answer needs it.
    """
    rows, cols = region.scale.rows, region.scale.cols
    xp, shape, there = array_namespace(rows), (len(rows), len(cols)), device(rows)
    made = [None if dtype is None else xp.empty(shape, dtype=_type_of(xp, dtype), device=there) for dtype in dtypes]
    for some, M in blocks:
        for whole, part in zip(made, answer(region.cut(some, slice(None)), M), strict=True):
            if whole is not None:
                whole[some] = part
    return made


def cast(values: Any, dtype: Any) -> Any:
    """An array or tensor in a precision that NumPy names; no copy if it has that."""
    xp = array_namespace(values)
    return xp.astype(values, _type_of(xp, dtype), copy=False)


def _type_of(xp: Any, dtype: Any) -> Any:
    return getattr(xp, np.dtype(dtype).name)


def refuse_large(shape: tuple[int, int]) -> None:
    if shape[0] * shape[1] > MOST_CELLS:
        raise ValueError(
            f"a table of {shape[0]} × {shape[1]} values does not fit into memory; take some cells, with "
            "low_rank_.entries(rows, columns), some rows of low_rank_.thin(), or the cells of outliers(). Fitted to a "
            "dask array, it is one that is computed chunk by chunk"
        )
