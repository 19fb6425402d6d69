"""S on the device: a CSR matrix whose three arrays are tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...arrays import for_torch
from ...lowrank import Array
from ..holes import LONGEST, compressed
from ..sparse_part import places
from .slabs import csr_tensor

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
    indptr: torch.Tensor
    indices: torch.Tensor
    data: torch.Tensor
    counts: tuple[Array, Array] | None = None

    @classmethod
    def of(cls, S: Any, device: Any) -> DeviceSparse:
        """A CSR array of SciPy, a sparse CSR tensor, or one of these; not copied if it is there."""
        if isinstance(S, torch.Tensor):
            parts = S.crow_indices(), S.col_indices(), S.values()
        else:
            parts = S.indptr, S.indices, S.data
        ends, indices, data = (torch.as_tensor(for_torch(part), device=device) for part in parts)
        return cls(tuple(S.shape), ends.long(), indices, data, getattr(S, "counts", None))

    def __getitem__(self, rows: slice) -> DeviceSparse:
        """Some rows."""
        ends = self.indptr[rows.start : rows.stop + 1]
        some = slice(int(ends[0]), int(ends[-1]))
        return DeviceSparse((len(ends) - 1, self.shape[1]), ends - ends[0], self.indices[some], self.data[some])

    def dense(self) -> torch.Tensor:
        """All entries, NaN for what is not here."""
        full = torch.full(self.shape, torch.nan, dtype=self.data.dtype, device=self.device)
        full[places(self)] = self.data
        return full

    @property
    def nnz(self) -> int:
        return len(self.data)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.data.dtype).removeprefix("torch."))

    @property
    def device(self) -> torch.device:
        return self.data.device

    def flagged(self, axis: int) -> Array:
        """How many entries each row (0), or column, has."""
        if self.counts is not None:
            return self.counts[axis]
        counts = self.indptr.diff() if axis == 0 else torch.bincount(self.indices, minlength=self.shape[1])
        return counts.cpu().numpy()

    def only(self, kept: torch.Tensor) -> DeviceSparse:
        """The entries that a boolean tensor keeps."""
        before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        return DeviceSparse(self.shape, before[self.indptr], self.indices[kept], self.data[kept])

    def tensor_of(self, values: Array) -> torch.Tensor:
        """A NumPy array as a tensor on the device."""
        return torch.as_tensor(np.ascontiguousarray(values), device=self.device)

    @property
    def T(self) -> DeviceSparse:
        """Transposed, in compressed rows again."""
        n1, n2 = self.shape
        rows, _ = places(self)
        order = torch.argsort(self.indices, stable=True)
        ends = torch.bincount(self.indices, minlength=n2).cumsum(0)
        ends = torch.cat([ends.new_zeros(1), ends])
        counts = None if self.counts is None else (self.counts[1], self.counts[0])
        return DeviceSparse((n2, n1), ends, rows[order].to(self.indices.dtype), self.data[order], counts)

    def tensor(self) -> torch.Tensor:
        """As a sparse CSR tensor of torch; of fewer than 2³¹ entries nothing is copied but the ends of rows."""
        index = self.indices.dtype if self.nnz <= LONGEST else torch.int64
        return csr_tensor(self.indptr.to(index), self.indices.to(index), self.data, self.shape)

    def to_scipy(self) -> csr_array:
        """In host memory, as a CSR array of SciPy."""
        data, indices, ends = (part.cpu().numpy() for part in (self.data, self.indices, self.indptr))
        S = compressed(data, indices, ends, self.shape)
        S.has_canonical_format = True
        return S

    def __repr__(self) -> str:
        return f"DeviceSparse(shape={self.shape}, nnz={self.nnz}, dtype={self.dtype}, device={self.device})"
