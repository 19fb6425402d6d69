"""A CSR matrix whose three arrays are tensors: S on the device, or the observed entries of M."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...arrays import for_torch
from ...cached import cached_property
from ...lowrank import Array
from ..holes import LONGEST, compressed

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class DeviceSparse:
    """The outliers of a matrix on a GPU, where they are.

    Attributes
    ----------
    shape : (n1, n2)
    indptr : tensor of int64, of shape (n1 + 1,)
    indices : tensor of int32 or int64, of shape (nnz,)
        Columns, sorted in each row.
    data : tensor of shape (nnz,)
    counts : pair of NumPy arrays, or None
        How many entries each row, and each column, has, if that is known.

    Notes
    -----
    A kernel may still be writing the entries when this is made; whoever reads them on the device waits for it.

    Examples
    --------
    >>> S = DeviceSparse((2, 3), torch.tensor([0, 1, 2]), torch.tensor([2, 0]), torch.tensor([5.0, -4.0]))
    >>> S.nnz, S.flagged(1), S.only(S.data > 0).nnz
    (2, array([1, 0, 1]), 1)
    """

    shape: tuple[int, int]
    indptr: Tensor
    indices: Tensor
    data: Tensor
    counts: tuple[Array, Array] | None = None

    @classmethod
    def of(cls, S: Any, device: Any) -> DeviceSparse:
        """A CSR array of SciPy, a sparse CSR tensor, or one of these; not copied if it is there."""
        if isinstance(S, Tensor):
            parts = S.crow_indices(), S.col_indices(), S.values()
        else:
            parts = S.indptr, S.indices, S.data
        ends, indices, data = (device_tensor(part, device) for part in parts)
        return cls(tuple(S.shape), ends.long(), indices, data, getattr(S, "counts", None))

    @classmethod
    def stacked(cls, parts: Sequence[DeviceSparse]) -> DeviceSparse:
        """One below the other."""
        if len(parts) == 1:
            return parts[0]
        ends = ends_of(torch.cat([part.indptr.diff() for part in parts]))
        indices, data = (torch.cat([getattr(part, name) for part in parts]) for name in ("indices", "data"))
        shape = len(ends) - 1, parts[0].shape[1]
        known = [part.counts for part in parts if part.counts is not None]
        if len(known) < len(parts):
            return cls(shape, ends, indices, data)
        rows, cols = zip(*known, strict=True)
        return cls(shape, ends, indices, data, (np.concatenate(rows), np.sum(cols, axis=0)))

    def __getitem__(self, rows: slice) -> DeviceSparse:
        """Some rows."""
        ends = self.indptr[rows.start : rows.stop + 1]
        some = slice(int(ends[0]), int(ends[-1]))
        return DeviceSparse((len(ends) - 1, self.shape[1]), ends - ends[0], self.indices[some], self.data[some])

    def with_data(self, data: Tensor) -> DeviceSparse:
        """Other values in the same places."""
        return DeviceSparse(self.shape, self.indptr, self.indices, data, self.counts)

    @property
    def nnz(self) -> int:
        return len(self.data)

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_type(self.data.dtype)

    @property
    def device(self) -> torch.device:
        return self.data.device

    @cached_property
    def rows(self) -> Tensor:
        """The row of each entry."""
        return torch.repeat_interleave(torch.arange(self.shape[0], device=self.device), self.indptr.diff())

    @cached_property
    def by_column(self) -> tuple[Tensor, Tensor]:
        """The order of the entries by columns, and where those of each column end, with a 0 before them."""
        ends = ends_of(torch.bincount(self.indices, minlength=self.shape[1]))
        return torch.argsort(self.indices, stable=True), ends

    def flagged(self, axis: int) -> Array:
        """How many entries each row (0), or column, has."""
        if self.counts is not None:
            return self.counts[axis]
        counts = self.indptr.diff() if axis == 0 else torch.bincount(self.indices, minlength=self.shape[1])
        return host_array(counts)

    def only(self, kept: Tensor) -> DeviceSparse:
        """The entries that a boolean tensor keeps."""
        return DeviceSparse(self.shape, ends_of(kept)[self.indptr], self.indices[kept], self.data[kept])

    def tensor_of(self, values: Array) -> Tensor:
        """A NumPy array as a tensor on the device."""
        return device_tensor(values, self.device)

    @property
    def T(self) -> DeviceSparse:
        """Transposed, in compressed rows again."""
        order, ends = self.by_column
        counts = None if self.counts is None else self.counts[::-1]
        return DeviceSparse(self.shape[::-1], ends, self.rows[order].to(self.indices.dtype), self.data[order], counts)

    def dense(self) -> Tensor:
        """All entries, NaN for what is not here."""
        full = torch.full(self.shape, torch.nan, dtype=self.data.dtype, device=self.device)
        full[self.rows, self.indices.long()] = self.data
        return full

    def tensor(self) -> Tensor:
        """As a sparse CSR tensor of torch; of fewer than 2³¹ entries nothing is copied but the ends of rows."""
        index = self.indices.dtype if self.nnz <= LONGEST else torch.int64
        return csr_tensor(self.indptr.to(index), self.indices.to(index), self.data, self.shape)

    def to_scipy(self) -> csr_array:
        """In host memory, as a CSR array of SciPy."""
        data, indices, ends = map(host_array, (self.data, self.indices, self.indptr))
        S = compressed(data, indices, ends, self.shape)
        S.has_canonical_format = True
        return S

    def __repr__(self) -> str:
        return f"DeviceSparse(shape={self.shape}, nnz={self.nnz}, dtype={self.dtype}, device={self.device})"


def ends_of(counts: Tensor) -> Tensor:
    """Where lines with so many entries end, with a 0 before them."""
    return torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0, dtype=torch.int64)])


def sparse_product(ends: Tensor, indices: Tensor, values: Tensor, B: Tensor) -> Tensor:
    if not len(values) or not B.shape[1]:
        return B.new_zeros((len(ends) - 1, B.shape[1]))
    return csr_tensor(ends, indices, values, (len(ends) - 1, len(B))) @ B.contiguous()


def csr_tensor(ends: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """As torch has it; that such tensors are in beta state is nothing a user could act upon."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state|Sparse invariant checks")
        return torch.sparse_csr_tensor(ends, indices, values, shape, check_invariants=False)


def device_tensor(values: Any, device: Any) -> Tensor:
    """NumPy's values, or a tensor, on a device."""
    return torch.as_tensor(for_torch(values), device=device)


def host_array(values: Tensor) -> Array:
    """A tensor in host memory, in a precision that NumPy has."""
    array: Array = (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).cpu().numpy()
    return array


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(str(dtype).removeprefix("torch."))
