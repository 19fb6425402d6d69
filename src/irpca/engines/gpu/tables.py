"""Tables as large as M, and lists of its outliers, as tensors: made on the device of M, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ...arrays import for_torch, is_sparse, is_tensor
from ...lowrank import Array
from ..base import Engine

if TYPE_CHECKING:
    from ..sparse_part import Sparse

TABLE_ENTRIES = 1 << 24  # made together, in double precision
LISTED_ENTRIES = 1 << 24  # outliers that are looked at together


class DeviceTables:
    """What makes tensors on a device.

    Parameters
    ----------
    device : str
        As torch calls it, such as "cuda:0".
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def tensor(self, values: Any) -> Any:
        """NumPy's values, or a tensor, on the device."""
        return torch.as_tensor(for_torch(values), device=self.device)

    def product(self, A: Array, B: Array, dtype: np.dtype) -> Any:
        """``A @ B.T``, computed in double precision."""
        left, right = self.tensor(A), self.tensor(B)
        return self.made((len(A), len(B)), dtype, lambda rows: left[rows] @ right.T)

    def std(self, scale: Any, dtype: np.dtype, known: tuple[Array, Array] | None = None) -> Any:
        """The standard deviation of clean measurements everywhere; NaN in rows and columns that are not ``known``."""
        scale, unknown = scale.converted(self.tensor), None
        if known is not None:
            unknown = [self.tensor(~lines) for lines in known]

        def part(rows: slice) -> Any:
            std = scale.std_table(rows)
            return std if unknown is None else std.masked_fill_(unknown[0][rows, None] | unknown[1], torch.nan)

        return self.made((len(scale.rows), len(scale.cols)), dtype, part)

    def repaired(
        self, values: Callable[[slice], Any], S: Sparse | Compressed, A: Array, B: Array, dtype: np.dtype
    ) -> tuple[Any, Callable[[slice], Any]]:
        """A table with what is wrong replaced by ``A @ B.T``, where that is known; and marks, some rows at a time.

        These are 1 where an outlier and 2 where a hole was replaced, and 2 where a hole stays, too; elsewhere 0.
        """
        left, right = self.tensor(A), self.tensor(B)
        flags = _Flags(self, S)

        def wrong(rows: slice, piece: Any) -> Any:
            return torch.where(flags(rows), 1, torch.where(piece.isnan(), 2, 0)).to(torch.int8)

        def part(rows: slice) -> Any:
            piece = values(rows).double()
            expected = left[rows] @ right.T
            return torch.where((wrong(rows, piece) > 0) & expected.isfinite(), expected, piece)

        def marks(rows: slice) -> Any:
            found = wrong(rows, values(rows))
            return torch.where((left[rows] @ right.T).isfinite() | (found == 2), found, 0).to(torch.int8)

        return self.made(flags.shape, dtype, part), marks

    def made(self, shape: tuple[int, int], dtype: np.dtype, part: Callable[[slice], Any]) -> Any:
        """A table of what is made for some rows at a time."""
        with self.fitting(f"a table of {shape[0]} × {shape[1]} values", "take some cells, with low_rank_.entries"):
            made = torch.empty(shape, dtype=_torch_type(dtype), device=self.device)
            for rows in _batches(shape[0], max(1, TABLE_ENTRIES // shape[1])):
                made[rows] = part(rows)
            return made

    @contextmanager
    def fitting(self, what: str, advice: str) -> Iterator[None]:
        """Say what does not fit into the memory of the device, and what to do."""
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(f"{what} does not fit into the memory that is free on {self.device}: {advice}") from error

    def rows_of(self, M: Any, engine: Callable[[], Engine]) -> Callable[[slice], Any]:
        """What answers some rows of M, NaN where it is not observed: M itself if it is a tensor, else its engine."""
        if not is_tensor(M):
            owner = engine()
            cols = np.arange(owner.shape[1])
            return lambda rows: self.tensor(owner.block(np.arange(rows.start, rows.stop), cols))
        return _Stored(self, M) if is_sparse(M) else lambda rows: M[rows].to(self.device)

    def entries_of(self, M: Any, engine: Callable[[], Engine], rows: Any, cols: Any) -> Any:
        """M at scattered entries, whose places are tensors."""
        if is_tensor(M) and not is_sparse(M):
            return M[rows, cols]
        return self.tensor(engine().entries(rows.cpu().numpy(), cols.cpu().numpy()))

    def products_at(self, A: Array, B: Array, rows: Any, cols: Any) -> Any:
        """``A @ B.T`` at scattered entries."""
        left, right = self.tensor(A), self.tensor(B)
        found = torch.empty(len(rows), dtype=left.dtype, device=self.device)
        for some in _batches(len(rows), LISTED_ENTRIES):
            found[some] = (left[rows[some]] * right[cols[some]]).sum(dim=1)
        return found


class Compressed(NamedTuple):
    """Places in compressed rows."""

    shape: tuple[int, int]
    indptr: Any
    indices: Any


class DeviceList:
    """The outliers of an S on a device: how large and how probable they are, the most certain first.

    Parameters
    ----------
    tables : DeviceTables
    S : SparseOnDevice
    judge : Judge
        How probable an outlier is.
    scale : EntryScale
        The standard deviations of clean measurements.
    dtype : NumPy's, of these
    """

    def __init__(self, tables: DeviceTables, S: Any, judge: Any, scale: Any, dtype: np.dtype) -> None:
        self.shape, self.tables, self.dtype = S.shape, tables, _torch_type(dtype)
        self.indptr, self.indices, self.data = map(tables.tensor, (S.indptr, S.indices, S.data))
        self.judge, self.scale = judge.converted(tables.tensor), scale.converted(tables.tensor)

    def chosen(self, fdr: float | None, probability: float | None, threshold: float | None, most: int | None) -> Any:
        """Positions in S of the outliers by a criterion, the most certain first, and only the first ``most``."""
        with self.fitting():
            found = [torch.empty(0, dtype=torch.int64, device=self.tables.device)]
            for some in _batches(len(self.data), LISTED_ENTRIES):
                at = torch.arange(some.start, some.stop, device=self.tables.device)
                if threshold is not None:
                    at = at[self.data[some].abs() > threshold]
                elif probability is not None:
                    at = at[self.probability(at) >= probability]
                found.append(at)
                if most is not None and fdr is None:
                    found = [self._sorted(torch.cat(found), self.score)[:most]]
            at = torch.cat(found)
            if fdr is not None:
                at = self._discovered(at, fdr)
            return self._sorted(at, self.score)[:most]

    def fitting(self) -> AbstractContextManager[None]:
        """Say that the list does not fit into the memory of the device."""
        advice = "ask for fewer with most=, or write them to files, with irpca.solve(…, outliers_to=…)"
        return self.tables.fitting(f"a list of {len(self.data):,} outliers", advice)

    def places(self, at: Any) -> tuple[Any, Any]:
        """Rows and columns."""
        rows = torch.searchsorted(self.indptr, at, right=True) - 1
        return rows, self.indices[at].long()

    def only(self, at: Any) -> Compressed:
        """The places of some of them, in compressed rows."""
        at = torch.sort(at).values
        return Compressed(self.shape, torch.searchsorted(at, self.indptr), self.indices[at])

    def size(self, at: Any) -> Any:
        """The sizes of the residuals in units of their uncertainty."""
        return self.judge.standardised(self.data[at].double(), *self.places(at)).abs()

    def std(self, at: Any) -> Any:
        """The standard deviation of clean measurements."""
        return self.scale.std_at(*self.places(at)).to(self.dtype)

    def score(self, at: Any) -> Any:
        """The sizes in standard deviations; without a noise model those in units."""
        return self.size(at) if self.judge.scale is None else self.data[at].abs() / self.std(at)

    def probability(self, at: Any) -> Any:
        """That of an outlier; NaN where there is no model to tell."""
        return self.judge.probability(self.data[at].double(), *self.places(at))

    def _sorted(self, at: Any, second: Callable[[Any], Any]) -> Any:
        """By probability, and by another number where that is the same."""
        at = at[torch.argsort(second(at), descending=True, stable=True)]
        return at[torch.argsort(self.probability(at).nan_to_num(), descending=True, stable=True)]

    def _discovered(self, at: Any, fdr: float) -> Any:
        """The largest set with an expected share of false alarms of at most ``fdr``: irpca.model.calibration."""
        at = self._sorted(at, self.size)
        false = torch.cumsum(1 - self.probability(at), 0)
        good = torch.nonzero(false <= fdr * torch.arange(1, len(at) + 1, device=at.device))
        return at[: int(good[-1]) + 1 if len(good) else 0]


class _Flags:
    """Where S has entries, for some rows at a time."""

    def __init__(self, tables: DeviceTables, S: Sparse | Compressed) -> None:
        self.shape = S.shape
        self._ends, self._cols = tables.tensor(S.indptr), tables.tensor(S.indices)

    def __call__(self, rows: slice) -> Any:
        found = torch.zeros((rows.stop - rows.start, self.shape[1]), dtype=torch.bool, device=self._cols.device)
        found[_places(self._ends, self._cols, rows)[:2]] = True
        return found


class _Stored:
    """Some rows of a tensor in compressed rows at a time: NaN where nothing is stored."""

    def __init__(self, tables: DeviceTables, M: Any) -> None:
        self._ends, self._cols, self._values = M.crow_indices(), M.col_indices(), M.values()
        self.n2 = M.shape[1]

    def __call__(self, rows: slice) -> Any:
        i, j, some = _places(self._ends, self._cols, rows)
        values = self._values[some]
        found = torch.full((rows.stop - rows.start, self.n2), torch.nan, dtype=values.dtype, device=values.device)
        found[i, j] = values
        return found


def _places(ends: Any, cols: Any, rows: slice) -> tuple[Any, Any, slice]:
    """Rows, from the first of some on, and columns of the entries in compressed rows; and which entries they are."""
    some = slice(int(ends[rows.start]), int(ends[rows.stop]))
    counts = ends[rows.start + 1 : rows.stop + 1] - ends[rows.start : rows.stop]
    i = torch.repeat_interleave(torch.arange(len(counts), device=cols.device), counts)
    return i, cols[some].long(), some


def _batches(n: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _torch_type(dtype: np.dtype) -> Any:
    return torch.from_numpy(np.empty(0, dtype)).dtype
