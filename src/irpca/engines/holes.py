"""What is observed of M, whatever kind of thing M is: its entries row by row, as a canonical ``csr_array``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import as_numpy, in_host_memory, is_sparse, is_tensor
from ..lowrank import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROWS_AT_ONCE = 1 << 20  # entries of a dense matrix that are looked at together
LONGEST = np.iinfo(np.int32).max  # line with short indices
LOOK = 1 << 13  # entries that are looked at to see whether there are holes in a dense matrix: a solver sees more
GOLDEN = (5**0.5 - 1) / 2  # its multiples, modulo 1, are spread evenly however many are taken


def kind_of_holes(M: Any) -> str | None:
    """What makes M a matrix with holes, if that can be told without reading it."""
    if hasattr(M, "__irpca_observed__"):
        return "a list of observed entries"
    if hasattr(M, "tocsr") or (is_tensor(M) and is_sparse(M)):
        return "sparse, its stored entries being the observed ones"
    if isinstance(M, np.ma.MaskedArray) and np.ma.is_masked(M):
        return "a masked array"
    return None


def dense(M: Any, name: str) -> Array:
    """M as a two-dimensional float array; float32 and float64 are not copied, and what is NA becomes NaN."""
    frame, M = M, in_host_memory(M, name) if is_tensor(M) else as_numpy(M, name)
    if M.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {M.shape}")
    if M.size == 0:
        raise ValueError(f"{name} is empty: its shape is {M.shape}")
    if M.dtype == object and hasattr(frame, "to_numpy"):  # pandas: its own kinds of numbers, with its own NA
        for dtype in getattr(frame, "dtypes", ()):
            _check_kind(dtype, name)
        return _as_numbers(lambda: frame.to_numpy(dtype=float, na_value=np.nan), M.dtype, name)
    return floats(M, name)


def floats(values: Array, name: str) -> Array:
    """float32 and float64 as they are, other numbers as float64."""
    _check_kind(values.dtype, name)
    if values.dtype in (np.float32, np.float64):
        return values
    return _as_numbers(lambda: values.astype(np.float64), values.dtype, name)


def _check_kind(dtype: Any, name: str) -> None:
    """Refuse what NumPy would convert: complex numbers without their imaginary parts, dates as counts of their unit."""
    kind = getattr(dtype, "kind", "O")
    if kind == "c":
        raise ValueError(f"{name} is complex; only real matrices can be decomposed")
    if kind in "mM":
        raise ValueError(f"{name} holds dates or durations ({dtype}); real numbers are needed")


def _as_numbers(convert: Any, dtype: Any, name: str) -> Array:
    try:
        return convert()
    except (TypeError, ValueError):
        raise ValueError(f"{name} has dtype {dtype} and does not convert to numbers; real numbers are needed") from None


def seem_there(M: Array) -> float:
    """The share of NaN among a few entries of a dense matrix: to read all of it costs more than a fit may."""
    if M.size <= 32 * LOOK:  # to look for a few takes longer
        return float(np.isnan(M).mean())
    # One of each stretch, in the order of memory: a memory-mapped page is read once. Where in its stretch follows the
    # golden ratio, so that no period of M is the period of the look.
    at = np.linspace(0, M.size, LOOK, endpoint=False).astype(np.int64)
    at += (np.arange(LOOK) * GOLDEN % 1 * (M.size // LOOK)).astype(np.int64)
    return float(np.isnan(M[np.divmod(at, M.shape[1])]).mean())


def observed_entries(M: Any, name: str = "M") -> csr_array:
    """The observed entries of M in canonical format, refused with what is wrong with them."""
    if hasattr(M, "__irpca_observed__"):
        rows, cols, values, shape = M.__irpca_observed__()
        listed = _by_rows(rows, cols, values, shape, name)
    elif is_tensor(M):
        return observed_entries(in_host_memory(M, name), name)
    elif hasattr(M, "tocsr"):
        listed = _stored(M, name)
    else:
        listed = _not_missing(M, name)
    if not listed.nnz:
        raise ValueError(f"every cell of {name} is missing")
    return listed


def _not_missing(M: Any, name: str) -> csr_array:
    """The entries of a dense matrix that are neither NaN nor masked, in two reads: one counts, one copies."""
    mask = np.ma.getmask(M)
    A = dense(np.ma.getdata(M) if isinstance(M, np.ma.MaskedArray) else M, name)
    n1, n2 = A.shape
    step = max(1, ROWS_AT_ONCE // n2)
    pieces = [slice(first, min(first + step, n1)) for first in range(0, n1, step)]
    counts, infinite = np.zeros(n1 + 1, np.int64), 0

    def there(piece: slice) -> Array:
        missing = np.isnan(A[piece])
        return ~missing if mask is np.ma.nomask else ~(missing | mask[piece])

    for piece in pieces:
        seen = there(piece)
        counts[1:][piece] = seen.sum(axis=1)
        infinite += int((seen & np.isinf(A[piece])).sum())
    _refuse_infinite(infinite, name)
    ends = np.cumsum(counts)
    indices, values = np.empty(ends[-1], np.int32 if n2 <= LONGEST else np.int64), np.empty(ends[-1], A.dtype)
    for piece in pieces:
        seen, to = there(piece), slice(ends[piece.start], ends[piece.stop])
        indices[to], values[to] = np.nonzero(seen)[1], A[piece][seen]
    listed = compressed(values, indices, ends, A.shape)
    listed.has_canonical_format = True
    return listed


def _stored(M: Any, name: str) -> csr_array:
    """The stored entries of a sparse matrix, zeros too; those of a CSR array are not copied if they are in order."""
    if len(M.shape) != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {M.shape}")
    if 0 in M.shape:
        raise ValueError(f"{name} is empty: its shape is {M.shape}")
    if M.format == "dia":
        return _by_rows(*_diagonals(M), M.shape, name)
    if M.format not in ("csr", "csc", "lil"):
        M = M.tocoo()  # tocsr would add up what is there twice
        return _by_rows(M.row, M.col, M.data, M.shape, name)
    M = M.tocsr()
    ends = M.indptr
    return _checked(compressed(floats(M.data[: ends[-1]], name), M.indices[: ends[-1]], ends, M.shape), name)


def _diagonals(M: Any) -> tuple[Array, Array, Array]:
    """SciPy would leave out the zeros."""
    length = min(M.shape[1], M.data.shape[1])
    cols = np.broadcast_to(np.arange(length), (len(M.offsets), length))
    rows = cols - M.offsets[:, None]
    inside = (rows >= 0) & (rows < M.shape[0])
    return rows[inside], cols[inside], M.data[:, :length][inside]


def _by_rows(rows: Any, cols: Any, values: Any, shape: tuple[int, int], name: str) -> csr_array:
    """Entries in any order, sorted by rows."""
    rows, cols, values = np.asarray(rows), np.asarray(cols), floats(np.asarray(values), name)
    for what, places, n in (("rows", rows, shape[0]), ("columns", cols, shape[1])):
        if len(places) and not (places.min() >= 0 and places.max() < n):
            raise ValueError(f"{what} of {name} must be from 0 to {n - 1}, got {places.min()} to {places.max()}")
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows, kind="stable")
        cols, values = cols[order], values[order]
    ends = np.append(0, np.cumsum(np.bincount(rows, minlength=shape[0])))
    return _checked(compressed(values, cols, ends, shape), name)


def _checked(M: csr_array, name: str) -> csr_array:
    """With sorted columns, none twice, and every number finite; SciPy is not asked to add up anything."""
    M.check_format(full_check=True)
    bad = M.data[~np.isfinite(M.data)]
    _refuse_infinite(int(np.isinf(bad).sum()), name)
    if bad.size:
        raise ValueError(f"{bad.size} entries that {name} stores are NaN; leave out what was not observed")
    if not M.has_sorted_indices:
        M = M.sorted_indices()
    if not M.has_canonical_format:
        _refuse_twice(M, name)
    return M


def _refuse_twice(M: csr_array, name: str) -> None:
    rows = np.repeat(np.arange(M.shape[0]), np.diff(M.indptr))
    again = np.flatnonzero((rows[1:] == rows[:-1]) & (M.indices[1:] == M.indices[:-1]))
    row, col = rows[again[0]], M.indices[again[0]]
    raise ValueError(
        f"{name} holds {again.size} values too many: some entries are there more than once, such as the one in row "
        f"{row}, column {col}; keep one value of each"
    )


def _refuse_infinite(infinite: int, name: str) -> None:
    if infinite:
        raise ValueError(
            f"{name} holds infinite values; replace them, or make them NaN, which stands for a missing cell"
        )


def compressed(values: Array, indices: Array, ends: Array, shape: tuple[int, int]) -> csr_array:
    """A CSR array with indices that are as short as they can be: SciPy takes the longer kind of the two for both."""
    from scipy.sparse import csr_array

    index = np.int32 if max(shape[1], len(values)) <= LONGEST else np.int64
    return csr_array((values, indices.astype(index, copy=False), ends.astype(index, copy=False)), shape=shape)


def stack_entries(
    parts: list[tuple[Array, Array]], counts: Array, shape: tuple[int, int], dtype: np.dtype
) -> csr_array:
    """A CSR array of the columns and values of its entries, run by run, and how many each row has.

    The runs are taken out of the list, so that nothing is in memory twice.
    """
    ends = np.append(0, np.cumsum(counts))
    indices, values = np.empty(ends[-1], np.int32 if shape[1] <= LONGEST else np.int64), np.empty(ends[-1], dtype)
    last = len(values)
    while parts:
        columns, found = parts.pop()
        first = last - len(found)
        indices[first:last], values[first:last], last = columns, found, first
    S = compressed(values, indices, ends, shape)
    S.has_canonical_format = True  # in order, nothing twice: to find that out would be another read of S
    return S
