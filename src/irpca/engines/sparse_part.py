"""S, the outliers of M: a CSR array of SciPy in host memory, or on the device of M; and what is asked of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from ..lowrank import Array
from .memory import machine_memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

COUNTED_ENTRIES = 1 << 18  # of S at a time: bincount makes a copy of what it counts
SUMMED_ENTRIES = 1 << 24  # of S on a device at a time, in double precision
LARGEST_SHARE = 0.25  # of the memory of the host that S may take there: what is made of it takes about as much thrice


class SparseOnDevice(Protocol):
    """Outliers that stay where M is, in compressed rows; :class:`irpca.engines.gpu.DeviceSparse` is one.

    Attributes
    ----------
    shape, nnz, dtype : as of a CSR array of SciPy; the type is NumPy's
    indptr, indices, data : tensors on the device
    """

    shape: tuple[int, int]
    nnz: int
    dtype: np.dtype
    indptr: Any
    indices: Any
    data: Any

    def flagged(self, axis: int) -> Array:
        """How many entries each row (axis 0) or column has, as a NumPy array."""
        ...

    def places(self, some: slice) -> tuple[Any, Any]:
        """Rows and columns of some entries, as tensors."""
        ...

    def only(self, kept: Any) -> SparseOnDevice:
        """The entries that a boolean tensor keeps."""
        ...

    def tensor_of(self, values: Array) -> Any:
        """A NumPy array as a tensor on the device."""
        ...

    def to_scipy(self) -> csr_array:
        """A copy in host memory."""
        ...


if TYPE_CHECKING:
    Sparse: TypeAlias = csr_array | SparseOnDevice


def on_device(S: Sparse | None) -> TypeGuard[SparseOnDevice]:
    """Whether S is kept on the device of M."""
    return hasattr(type(S), "to_scipy")


def places(S: Any, some: slice | None = None) -> tuple[Any, Any]:
    """Rows and columns of the entries of S, or of some of them; as tensors, if S is on a device."""
    if on_device(S):
        return S.places(some or slice(0, S.nnz))
    if some is None:
        return np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices
    at = np.arange(some.start, min(some.stop, S.nnz))
    return np.searchsorted(S.indptr, at, side="right") - 1, S.indices[some]


def flagged(S: Sparse, axis: int) -> Array:
    """How many entries S has in each row (axis 0) or column."""
    if on_device(S):
        return S.flagged(axis)
    if axis == 0:
        return np.diff(S.indptr)
    counts = np.zeros(S.shape[1], np.int64)
    for first in range(0, S.nnz, COUNTED_ENTRIES):
        counts += np.bincount(S.indices[first : first + COUNTED_ENTRIES], minlength=S.shape[1])
    return counts


def only(S: Any, kept: Any) -> Any:
    """S with some of its entries, where it was."""
    if kept.all():
        return S
    if on_device(S):
        return S.only(kept)
    from scipy.sparse import csr_array

    rows, cols = places(S)
    return csr_array((S.data[kept], (rows[kept], cols[kept])), shape=S.shape)


def root_mean_square(S: Sparse) -> float:
    """Of the entries of S; 0 if there are none."""
    if not S.nnz:
        return 0.0
    if not on_device(S):
        return float(np.sqrt(np.mean(S.data.astype(float) ** 2)))
    total = 0.0
    for first in range(0, S.nnz, SUMMED_ENTRIES):
        some = S.data[first : first + SUMMED_ENTRIES].double()
        total += float(some @ some)
    return float(np.sqrt(total / S.nnz))


def to_host(S: Sparse, what: str) -> csr_array:
    """S in host memory, for what is made there; refused where it would take too much of that.

    Parameters
    ----------
    S : csr_array or SparseOnDevice
        A CSR array is returned as it is.
    what : str
        What is asked for, as messages call it.
    """
    if not on_device(S):
        return S
    index = 4 if max(S.nnz, S.shape[1]) <= np.iinfo(np.int32).max else 8
    size, memory = S.nnz * (S.dtype.itemsize + index) + (S.shape[0] + 1) * index, machine_memory()
    if size > LARGEST_SHARE * memory:
        raise MemoryError(
            f"{what} needs the {S.nnz:,} outliers in host memory: {size / 1e9:.3g} GB, and this machine has "
            f"{memory / 1e9:.3g} GB, of which a quarter may be taken. They are on the device, as result_.S (of a "
            'model) or S (of a result); or write them to files, with irpca.solve(…, outliers_to="S.parquet")'
        )
    return S.to_scipy()
