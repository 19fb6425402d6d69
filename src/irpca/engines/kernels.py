"""The work on one tile of M: compiled by numba where it is installed, plain NumPy elsewhere.

numba is imported when :data:`trim` or :data:`flag` is first asked for; a kernel is compiled, or fetched from
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


def _trim_numpy(M: Array, i: int, j: int, P: Array, A: Array | None, K: Array | None, zeta: Any) -> Counts:
    """Turn the tile P of L into the tile of T that starts at ``M[i, j]``, in place.

    A is the tile of ``about``, which decides what is kept; None lets P decide. K, if given, receives ones
    where an entry is kept. Returns the kept count, the count of entries that are not finite, ‖T‖² and ‖T‖∞.
    """
    tile = M[i : i + P.shape[0], j : j + P.shape[1]]
    size = np.abs(tile - (P if A is None else A))
    finite = size < np.inf
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


def _energy(P: Array) -> float:
    return float(np.einsum("ij,ij->", P, P, dtype=np.float64))


# The loops are shaped so that LLVM turns them into vector instructions, which is four to seven times as fast:
# rows are taken out of the matrix first (no index can be negative then), P is not passed a second time as A
# (the two might overlap), and the largest entry is kept per column (no maximum that minds NaN crosses lanes).


def _trim_loops(M: Array, i: int, j: int, P: Array, A: Array | None, K: Array | None, zeta: Any) -> Counts:
    kept, bad, energy, largest = 0, 0, 0.0, 0.0
    zero, width = P.dtype.type(0), P.shape[1]
    peak = np.zeros(width, P.dtype)
    for p in range(P.shape[0]):
        row_kept, row_bad, row_energy = 0, 0, 0.0
        m, t = M[i + p][j : j + width], P[p]
        judge = t if A is None else A[p]  # decided when it is compiled, as is the question about K
        if K is not None:
            k = K[p]
        for q in range(width):
            value = m[q] - t[q]
            size = abs(m[q] - judge[q])
            finite = size < np.inf
            keep = finite & (size <= zeta)
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


def __getattr__(name: str) -> Any:
    if name not in ("trim", "flag"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(zip(("trim", "flag"), _compiled(), strict=True))
    return globals()[name]


def _compiled() -> tuple[Callable[..., Counts], Callable[..., Counts]]:
    try:
        from numba import njit
    except ImportError:
        return _trim_numpy, _flag_numpy
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return njit(cache=True, **options)(_trim_loops), njit(cache=True, **options)(_flag_loops)
    except RuntimeError:  # nowhere to write the cache
        return njit(**options)(_trim_loops), njit(**options)(_flag_loops)
