"""What people read and use of a fit: outliers, expected and repaired values, with how sure they are.

All of it is said once, for NumPy arrays and for tensors. A table is a question about some rows and columns of M
(:class:`~irpca.engines.base.Sided`): it is answered for all of them in memory, chunk by chunk by
:mod:`.engines.distributed.lazy_tables`, and some rows at a time on a device by :mod:`.engines.gpu.tensor_tables`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from .arguments import number
from .engines.base import Engine, Sided
from .engines.sparse_part import on_device, only, places, with_data
from .lowrank import Array
from .model.calibration import discoveries, most_certain_first
from .model.entry_scale import REACH, EntryScale, Judge
from .model.maps import ColumnMaps
from .result import Result

if TYPE_CHECKING:
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
    """The cells that a cut calls outliers, M − L there, where they are.

    Those of the fit are known. For more, M is read again, and ``owner`` makes its engine.
    """
    if cut.default:
        return result.S
    S = flagged_residuals(result, cut, owner)
    return S if result.maps is None else with_data(S, Candidates(S, result.judge).difference(slice(None)))


def flagged_residuals(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> Sparse:
    """The same, where columns are mapped with the residuals of their latent values, which the judge is about."""
    if cut.default and result.residuals is not None:  # all are more likely outliers than not
        return result.residuals
    found = Candidates(candidates(result, cut, owner), result.judge)
    return found.keep(found.choose(cut))


def candidates(result: Result, cut: Criterion, owner: Callable[[], Engine]) -> Sparse:
    """The cells among which a cut chooses, and perhaps others; where they are. Where columns are mapped, with the
    residuals of their latent values.
    """
    exact = result.noise == 0
    if result.failed and (cut.fdr or cut.probability):
        raise ValueError(f"there are no probabilities to choose by. {result.status.name}: {result.status.advice}")
    if not exact and result.calibration is None and (cut.fdr or cut.probability):
        raise ValueError(
            "fdr and probability need a model of the noise, and this solver has none: use solver='irpca', or threshold"
        )
    assert result.residuals is not None
    return result.residuals if exact or cut.default or _suffices(result, cut) else _read_beyond(result, cut, owner())


def _suffices(result: Result, cut: Criterion) -> bool:
    """Whether the outliers of the fit hold all that the cut asks for."""
    if cut.threshold is not None:
        return result.scale is None and cut.threshold >= result.zeta
    return cut.probability is not None and cut.probability > 0.5


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
    """Cells among which a criterion chooses, and how probable it is that they are outliers; where S is.

    Parameters
    ----------
    S : csr_array or DeviceSparse
        M − L there.
    judge : Judge
    scale : EntryScale or None
        The standard deviations of clean measurements, if scores are in units of these.
    dtype : NumPy's, of standard deviations
    """

    def __init__(self, S: Any, judge: Judge, scale: EntryScale | None = None, dtype: Any = float) -> None:
        self.S, self.judge, self.scale, self.dtype = S, judge, scale, dtype
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
        score = size if plain else abs(residuals) / self.std(*at)
        positions = array_namespace(residuals).arange(some.start, some.stop, device=device(residuals))
        return Cells(positions, size, score, self.judge.probability(residuals, *at))

    def std(self, rows: Any, cols: Any) -> Any:
        """The standard deviation of clean measurements at some cells."""
        assert self.scale is not None
        return cast(self.scale.std_at(rows, cols), self.dtype)

    def observed_and_expected(self, at: Any) -> tuple[Any, Any]:
        """What some of the cells hold and should hold, where columns are mapped."""
        assert self.judge.scale is not None
        return self.judge.scale.in_units_of_M(self.S.data[at], *places(self.S, at))

    def bounds(self, at: Any, expected: Any) -> tuple[Any, Any]:
        """Between which values 95 % of the clean measurements of some of the cells lie."""
        assert self.scale is not None
        rows, cols = places(self.S, at)
        std = self.scale.std_at(rows, cols)
        middle = expected if self.scale.maps is None else self.scale.latent_at(rows, cols)
        return bound(middle, -REACH * std, self.scale.maps, cols), bound(middle, REACH * std, self.scale.maps, cols)

    def difference(self, at: Any) -> Any:
        """Observed less expected, of some of the cells, in units of M."""
        if self.judge.scale is None or self.judge.scale.maps is None:
            return self.S.data[at]
        observed, expected = self.observed_and_expected(at)
        return observed - expected

    def keep(self, chosen: Cells) -> Sparse:
        """S with some of its entries, where it is."""
        kept = self.S.data != self.S.data
        kept[chosen.at] = True
        found: Sparse = only(self.S, kept)
        return found


# Tables


def cast(values: Any, dtype: Any) -> Any:
    """An array or tensor in a precision that NumPy names; no copy if it has that."""
    xp = array_namespace(values)
    return xp.astype(values, getattr(xp, np.dtype(dtype).name), copy=False)


@dataclass(frozen=True, eq=False)
class ExpectedTable(Sided):
    """``left @ right.T``, or what belongs to these latent values; NaN in lines of which nothing is known."""

    PAIRS = (("left", "right"),)
    left: Any
    right: Any
    maps: ColumnMaps | None = None

    def answer(self, M: Any = None) -> tuple[Any, ...]:
        latent = self.left @ self.right.T
        return (latent if self.maps is None else self.maps.expected(latent),)


@dataclass(frozen=True, eq=False)
class DeviationTable(Sided):
    """The standard deviation of clean measurements, NaN in lines of which nothing is known.

    Where columns are mapped, it depends on how far a cell is from what is expected: the difference divided by it is
    that of the latent values, standardised.
    """

    scale: EntryScale

    def answer(self, M: Any = None) -> tuple[Any, ...]:
        std, maps = self.scale.std_table(), self.scale.maps
        if maps is None:
            return (std,)
        xp, latent = array_namespace(std), self.scale.latent_table()
        std = width(maps, latent, std)
        if M is not None:
            residuals = maps.latent(M) - latent
            away, size = xp.abs(M - maps.expected(latent)), xp.abs(residuals) / self.scale.unit_table(residuals)
            std = xp.where(
                away > 0, xp.where(size > 0, away / xp.where(size > 0, size, 1.0), xp.maximum(std, away)), std
            )
        return (std,)


@dataclass(frozen=True, eq=False)
class BoundTable(Sided):
    """What clean measurements exceed with a given probability, NaN in lines of which nothing is known.

    Attributes
    ----------
    away : standard deviations from what is expected
    """

    PAIRS = (("left", "right"),)
    left: Any
    right: Any
    scale: EntryScale
    away: float

    def answer(self, M: Any = None) -> tuple[Any, ...]:
        return (bound(self.left @ self.right.T, self.away * self.scale.std_table(), self.scale.maps),)


def bound(middle: Any, away: Any, maps: ColumnMaps | None, cols: Any = None) -> Any:
    """What cells hold that are so far from what is expected; where columns are mapped, both are of latent values."""
    return middle + away if maps is None else maps.expected(middle + away, cols)


def width(maps: ColumnMaps, latent: Any, std: Any, cols: Any = None) -> Any:
    """Half of what one standard deviation on both sides of some latent values is in units of M."""
    return 0.5 * (maps.expected(latent + std, cols) - maps.expected(latent - std, cols))


@dataclass(frozen=True, eq=False)
class RepairedTable(Sided):
    """M with outliers and holes replaced by what is expected there, where that is known; and what was replaced.

    The second table has the standard deviations about what was replaced, and 0 elsewhere; without a scale it is None.
    The third, of positions in MARKS, has 1 where an outlier and 2 where a hole was replaced, and 2 where a hole stays,
    too.

    Attributes
    ----------
    left, right : factors of the expected values, NaN in lines of which nothing is known
    S, columns : the outliers, and which columns of these are meant: positions that follow each other
    scale : EntryScale or None
    """

    PAIRS = (("left", "right"), ("S", "columns"))
    left: Any
    right: Any
    S: Any
    columns: Any
    scale: EntryScale | None = None
    maps: ColumnMaps | None = None

    def answer(self, M: Any) -> tuple[Any, ...]:
        xp, latent = array_namespace(M), self.left @ self.right.T
        expected = latent if self.maps is None else self.maps.expected(latent, held=True)
        outlier, missing, known = self._outliers(M), xp.isnan(M), xp.isfinite(expected)
        marks = xp.where(outlier, cast(known, np.int8), 2 * cast(missing, np.int8))
        made = xp.where((outlier | missing) & known, expected, M)
        std = None if self.scale is None else self.scale.std_table()
        if std is not None and self.maps is not None:
            std = width(self.maps, latent, std)
        return made, None if std is None else xp.where(marks > 0, std, xp.zeros_like(std)), marks

    def _outliers(self, M: Any) -> Any:
        """Where S has entries."""
        found = array_namespace(M).zeros_like(M, dtype=array_namespace(M).bool)
        rows, cols = places(self.S)
        cols = cols - self.columns[0]
        inside = (cols >= 0) & (cols < len(self.columns))
        found[rows[inside], cols[inside]] = True
        return found


def in_memory(table: Any, dtypes: tuple[Any, ...], M: Array | None = None) -> list[Any]:
    """What a table answers for all rows and columns, in these types; None for what is not wanted."""
    return [dtype and cast(made, dtype) for made, dtype in zip(table.answer(M), dtypes, strict=True)]


def refuse_large(shape: tuple[int, int], what: str) -> None:
    if shape[0] * shape[1] > MOST_CELLS:
        raise ValueError(
            f"a table of {shape[0]} × {shape[1]} {what} values does not fit into memory; take some cells, with "
            "low_rank_.entries(rows, columns), some rows of low_rank_.thin(), or the cells of outliers(). Fitted to a "
            "dask array, it is one that is computed chunk by chunk"
        )
