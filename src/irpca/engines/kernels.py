"""The work on one tile of M: compiled by numba where it is installed, plain NumPy elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lowrank import Array

try:
    from numba import njit

    COMPILED = True
except ImportError:
    COMPILED = False


def _trim_numpy(
    M: Array, i: int, j: int, P: Array, A: Array, K: Array, zeta: float
) -> tuple[int, int, float, float]:
    """Turn the tile P of L into the tile of T that starts at ``M[i, j]``, in place.

    A is the tile that decides what is kept (P itself, or that of ``about``). K, unless empty, receives ones where
    an entry is kept. Returns the kept count, the count of entries that are not finite, ‖T‖² and ‖T‖∞.
    """
    tile = M[i : i + P.shape[0], j : j + P.shape[1]]
    judged = np.abs(tile - A)
    kept = judged <= zeta
    bad = P.size - int(np.isfinite(judged).sum())
    np.subtract(tile, P, out=P)
    P[~kept] = 0.0
    if K.size:
        K[:] = kept
    flat = P.ravel()
    return int(kept.sum()), bad, float(flat @ flat), float(np.abs(P).max(initial=0.0))


def _flag_numpy(M: Array, i: int, P: Array, zeta: float, cols: Array, values: Array, counts: Array) -> Any:
    """List the entries of the tile of whole rows that starts at row i and differs from P by more than zeta.

    Their columns and differences go to ``cols`` and ``values``, row by row, their number per row to ``counts``.
    Returns what :func:`trim` returns.
    """
    residual = M[i : i + P.shape[0]] - P
    size = np.abs(residual)
    kept = size <= zeta
    flagged = ~kept
    counts[:] = flagged.sum(axis=1)
    n = int(counts.sum())
    cols[:n] = np.nonzero(flagged)[1]
    values[:n] = residual[flagged]
    size[flagged] = 0.0
    bad = P.size - int(np.isfinite(residual).sum())
    flat = size.ravel()
    return P.size - n, bad, float(flat @ flat), float(size.max(initial=0.0))


def _trim_loops(
    M: Array, i: int, j: int, P: Array, A: Array, K: Array, zeta: float
) -> tuple[int, int, float, float]:
    kept, bad, energy, largest = 0, 0, 0.0, 0.0
    want_kept = K.size > 0
    for p in range(P.shape[0]):
        row_kept, row_bad, row_energy, row_largest = 0, 0, P.dtype.type(0), P.dtype.type(0)
        for q in range(P.shape[1]):
            m = M[i + p, j + q]
            judged = abs(m - A[p, q])
            keep = judged <= zeta
            t = m - P[p, q] if keep else P.dtype.type(0)
            P[p, q] = t
            if want_kept:
                K[p, q] = keep
            row_kept += keep
            row_bad += not (judged < np.inf)
            row_energy += t * t
            row_largest = max(row_largest, abs(t))
        kept += row_kept
        bad += row_bad
        energy += row_energy
        largest = max(largest, row_largest)
    return kept, bad, energy, largest


def _flag_loops(M: Array, i: int, P: Array, zeta: float, cols: Array, values: Array, counts: Array) -> Any:
    n, bad, energy, largest = 0, 0, 0.0, 0.0
    for p in range(P.shape[0]):
        start, row_energy, row_largest, row_bad = n, P.dtype.type(0), P.dtype.type(0), 0
        for q in range(P.shape[1]):
            r = M[i + p, q] - P[p, q]
            size = abs(r)
            P[p, q] = r
            t = size if size <= zeta else P.dtype.type(0)
            row_energy += t * t
            row_largest = max(row_largest, t)
            row_bad += not (size < np.inf)
        for q in range(P.shape[1]):
            # Written without a branch: the slot is overwritten unless the entry counts.
            r = P[p, q]
            cols[n] = q
            values[n] = r
            n += abs(r) > zeta
        counts[p] = n - start
        energy += row_energy
        largest = max(largest, row_largest)
        bad += row_bad
    return P.size - n, bad, energy, largest


if COMPILED:
    _options = {"nogil": True, "cache": True, "fastmath": {"reassoc", "contract", "nsz"}}
    trim = njit(**_options)(_trim_loops)
    flag = njit(**_options)(_flag_loops)
else:
    trim, flag = _trim_numpy, _flag_numpy
