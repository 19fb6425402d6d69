"""The work on one tile of M: compiled by numba where it is installed, plain NumPy elsewhere.

numba is imported when one of the kernels is first asked for; a kernel is compiled, or fetched from
the cache on disk, when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..lowrank import Array

Counts = tuple[int, int, float, float]

trim: Callable[..., Counts]
flag: Callable[..., Counts]
ascend: Callable[..., Counts]


def _trim_numpy(
    M: Array,
    i: int,
    j: int,
    P: Array,
    A: Array | None,
    K: Array | None,
    zeta: Any,
    cut_rows: Array | None = None,
    cut_cols: Array | None = None,
) -> Counts:
    """Turn the tile P of L into the tile of T that starts at ``M[i, j]``, in place.

    A is the tile of ``about``, which decides what is kept; None lets P decide. K, if given, receives ones
    where an entry is kept. Thresholds of all rows and columns, if given, take the place of zeta: the larger of
    the two decides. Returns the kept count, the count of entries that are not finite, ‖T‖² and ‖T‖∞.
    """
    tile = M[i : i + P.shape[0], j : j + P.shape[1]]
    size = np.abs(tile - (P if A is None else A))
    finite = size < np.inf
    if cut_rows is not None and cut_cols is not None:
        zeta = np.maximum.outer(cut_rows[i : i + P.shape[0]], cut_cols[j : j + P.shape[1]])
    kept = finite & (size <= zeta)
    np.subtract(tile, P, out=P)
    P[~kept] = 0.0
    if K is not None:
        K[:] = kept
    return int(kept.sum()), P.size - int(finite.sum()), _energy(P), float(np.abs(P).max())


def _flag_numpy(M: Array, i: int, P: Array, zeta: Any, cols: Array, values: Array, counts: Array) -> Counts:
    """List the entries of the whole rows that start at row i of M and differ from P by more than zeta.

    Their columns and differences go to ``cols`` and ``values``, row by row, their number per row to
    ``counts``. Returns what :func:`trim` returns.
    """
    residual = M[i : i + P.shape[0]] - P
    size = np.abs(residual)
    bad = P.size - int((size < np.inf).sum())
    flagged = size > zeta
    counts[:] = flagged.sum(axis=1)
    n = int(counts.sum())
    cols[:n] = np.nonzero(flagged)[1]
    values[:n] = residual[flagged]
    size[flagged] = 0.0
    return P.size - n, bad, _energy(size), float(size.max())


def _ascend_numpy(M: Array, i: int, j: int, B: Array, Y: Array, penalty: Any, bound: Any, box: Any) -> Counts:
    """Move the tile Y of a dual variable on, in place; B is the tile of the low-rank part that starts at ``M[i, j]``.

    See :class:`~irpca.engines.base.Ascent`. Returns the count of entries where S is zero, of those that are not
    finite, and ‖T‖² and ‖T‖∞ of T = M − B − S.
    """
    tile = M[i : i + B.shape[0], j : j + B.shape[1]]
    raised = Y + penalty * (tile - B)
    new = np.clip(raised, -bound, bound)
    S = (raised - new) / penalty
    with np.errstate(invalid="ignore"):  # what is infinite is counted below
        inside = np.clip(S, tile - box, tile + box)
        new += penalty * (S - inside)
    T = (new - Y) / penalty
    Y[:] = new
    finite = np.isfinite(raised)
    return int((inside == 0).sum()), raised.size - int(finite.sum()), _energy(T), float(np.abs(T).max())


def _energy(P: Array) -> float:
    return float(np.einsum("ij,ij->", P, P, dtype=np.float64))


# The loops are shaped so that LLVM turns them into vector instructions, which is four to seven times as fast:
# rows are taken out of the matrix first (no index can be negative then), P is not passed a second time as A
# (the two might overlap), and the largest entry is kept per column (no maximum that minds NaN crosses lanes).


def _trim_loops(
    M: Array,
    i: int,
    j: int,
    P: Array,
    A: Array | None,
    K: Array | None,
    zeta: Any,
    cut_rows: Array | None = None,
    cut_cols: Array | None = None,
) -> Counts:
    kept, bad, energy, largest = 0, 0, 0.0, 0.0
    zero, width = P.dtype.type(0), P.shape[1]
    peak = np.zeros(width, P.dtype)
    for p in range(P.shape[0]):
        row_kept, row_bad, row_energy = 0, 0, 0.0
        m, t = M[i + p][j : j + width], P[p]
        judge = t if A is None else A[p]  # decided when it is compiled, as is the question about K
        if K is not None:
            k = K[p]
        if cut_rows is not None and cut_cols is not None:
            row_limit, col_limits = cut_rows[i + p], cut_cols[j : j + width]
        for q in range(width):
            value = m[q] - t[q]
            size = abs(m[q] - judge[q])
            finite = size < np.inf
            if cut_rows is None:
                keep = finite & (size <= zeta)
            else:
                keep = finite & ((size <= row_limit) | (size <= col_limits[q]))
            value = value if keep else zero
            t[q] = value
            if K is not None:
                k[q] = keep
            row_kept += keep
            row_bad += not finite
            row_energy += np.float64(value) * np.float64(value)
            size = abs(value)
            peak[q] = size if size > peak[q] else peak[q]
        kept += row_kept
        bad += row_bad
        energy += row_energy
    for q in range(width):
        largest = max(largest, peak[q])
    return kept, bad, energy, largest


def _flag_loops(M: Array, i: int, P: Array, zeta: Any, cols: Array, values: Array, counts: Array) -> Counts:
    n, bad, energy, largest = 0, 0, 0.0, 0.0
    zero, width = P.dtype.type(0), P.shape[1]
    peak = np.zeros(width, P.dtype)
    for p in range(P.shape[0]):
        start, row_bad, row_energy = n, 0, 0.0
        m, r = M[i + p], P[p]
        for q in range(width):
            value = m[q] - r[q]
            r[q] = value
            size = abs(value)
            row_bad += not (size < np.inf)
            size = size if size <= zeta else zero
            row_energy += np.float64(size) * np.float64(size)
            peak[q] = size if size > peak[q] else peak[q]
        for q in range(width):
            # Written without a branch: the slot is overwritten unless the entry counts.
            cols[n] = q
            values[n] = r[q]
            n += abs(r[q]) > zeta
        counts[p] = n - start
        energy += row_energy
        bad += row_bad
    for q in range(width):
        largest = max(largest, peak[q])
    return P.size - n, bad, energy, largest


def _ascend_loops(M: Array, i: int, j: int, B: Array, Y: Array, penalty: Any, bound: Any, box: Any) -> Counts:
    kept, bad, energy, largest = 0, 0, 0.0, 0.0
    zero, width = B.dtype.type(0), B.shape[1]
    peak = np.zeros(width, B.dtype)
    for p in range(B.shape[0]):
        row_kept, row_bad, row_energy = 0, 0, 0.0
        m, b, y = M[i + p][j : j + width], B[p], Y[p]
        for q in range(width):
            raised = y[q] + penalty * (m[q] - b[q])
            row_bad += not (abs(raised) < np.inf)
            new = min(max(raised, -bound), bound)
            s = (raised - new) / penalty
            inside = min(max(s, m[q] - box), m[q] + box)
            new += penalty * (s - inside)
            row_kept += inside == zero
            t = (new - y[q]) / penalty
            y[q] = new
            row_energy += np.float64(t) * np.float64(t)
            size = abs(t)
            peak[q] = size if size > peak[q] else peak[q]
        kept += row_kept
        bad += row_bad
        energy += row_energy
    for q in range(width):
        largest = max(largest, peak[q])
    return kept, bad, energy, largest


KERNELS: dict[str, tuple[Callable[..., Counts], Callable[..., Counts]]] = {  # plain, and to be compiled
    "trim": (_trim_numpy, _trim_loops),
    "flag": (_flag_numpy, _flag_loops),
    "ascend": (_ascend_numpy, _ascend_loops),
}


def __getattr__(name: str) -> Any:
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _compiled(*KERNELS[name])
    return globals()[name]


def _compiled(plain: Callable[..., Counts], loops: Callable[..., Counts]) -> Callable[..., Counts]:
    try:
        from numba import njit
    except ImportError:
        return plain
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return njit(cache=True, **options)(loops)
    except RuntimeError:  # nowhere to write the cache
        return njit(**options)(loops)
