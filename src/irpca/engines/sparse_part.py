"""S, the outliers of M: a CSR array of SciPy in host memory, or on the device of M; and what is asked of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from array_api_compat import array_namespace, device

from ..lowrank import Array
from .holes import compressed
from .memory import machine_memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .gpu.sparse import DeviceSparse

    Sparse: TypeAlias = csr_array | DeviceSparse

COUNTED_ENTRIES = 1 << 18  # of S at a time: bincount makes a copy of what it counts
SUMMED_ENTRIES = 1 << 24  # of S at a time, in double precision
LARGEST_SHARE = 0.25  # of the memory of the host that S may take there: what is made of it takes about as much thrice


def on_device(S: Sparse | None) -> TypeGuard[DeviceSparse]:
    """Whether S is kept on the device of M."""
    return hasattr(type(S), "to_scipy")


def places(S: Any, some: Any = None) -> tuple[Any, Any]:
    """Rows and columns of the entries of S, or of some, a slice or positions; as tensors, if S is on a device."""
    if some is None and not on_device(S):
        return np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices
    xp = array_namespace(S.indices)
    if some is None or isinstance(some, slice):
        first, last, _ = (some or slice(None)).indices(S.nnz)
        some = xp.arange(first, last, device=device(S.indices))
    return xp.searchsorted(S.indptr, some, side="right") - 1, xp.astype(S.indices[some], xp.int64)


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
    ends = np.append(0, np.cumsum(kept))[S.indptr]
    return compressed(S.data[kept], S.indices[kept], ends, S.shape)


def with_data(S: Any, data: Any) -> Any:
    """S with other values in the same places."""
    xp = array_namespace(S.data)
    data = xp.astype(data, S.data.dtype, copy=False)
    return S.with_data(data) if on_device(S) else compressed(data, S.indices, S.indptr, S.shape)


def root_mean_square(S: Sparse) -> float:
    """Of the entries of S; 0 if there are none."""
    if not S.nnz:
        return 0.0
    xp, total = array_namespace(S.data), 0.0
    for first in range(0, S.nnz, SUMMED_ENTRIES):
        total += float(xp.sum(xp.astype(S.data[first : first + SUMMED_ENTRIES], xp.float64) ** 2))
    return float(np.sqrt(total / S.nnz))


def to_host(S: Sparse, what: str) -> csr_array:
    """S in host memory, for what is made there; refused where it would take too much of that.

    Parameters
    ----------
    S : csr_array or DeviceSparse
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
