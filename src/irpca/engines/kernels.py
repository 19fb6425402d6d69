"""The work on one tile of M, or on a list of its entries: compiled by numba where it is installed, NumPy elsewhere.

The functions below say what each kernel does; :mod:`irpca.engines.compiled` does the same in loops. It is imported when
a kernel is first asked for; a kernel is compiled, or fetched from the cache on disk, when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..lowrank import Array

Counts = tuple[int, bool, float, float]

trim: Callable[..., Counts]
flag: Callable[..., Counts]
turn: Callable[..., None]
mask: Callable[..., None]
ascend: Callable[..., Counts]
low_rank: Callable[..., None]
along: Callable[..., None]
across: Callable[..., None]
next_largest: Callable[..., None]
weigh: Callable[..., Counts]


def _trim(
    M: Array, i: int, j: int, P: Array, K: Array | None, zeta: Any, cut_rows: Array | None, cut_cols: Array | None
) -> Counts:
    """Turn the tile P of L into the tile of T that starts at ``M[i, j]``, in place.

    K, if given, receives ones where an entry is kept. Thresholds of all rows and columns, if given, take the place of
    zeta: the larger of the two decides. Returns the kept count, whether all entries are finite, ‖T‖² and ‖T‖∞.
    """
    residual = M[i : i + P.shape[0], j : j + P.shape[1]] - P
    if cut_rows is not None and cut_cols is not None:
        zeta = np.maximum.outer(cut_rows[i : i + P.shape[0]], cut_cols[j : j + P.shape[1]])
    kept = np.abs(residual) <= zeta
    P[:] = np.where(kept, residual, 0)
    if K is not None:
        K[:] = kept
    return int(kept.sum()), bool(np.isfinite(residual).all()), _energy(P), float(np.abs(P).max())


def _flag(M: Array, i: int, j: int, P: Array, zeta: Any, where: Array, values: Array, counts: Array) -> Counts:
    """List the entries of the tile at ``M[i, j]`` that differ from P by more than zeta; P is lost.

    Their columns within the tile and their differences go to ``where`` and ``values``, row by row, their number per row
    to ``counts``. Returns what :func:`trim` returns.
    """
    np.subtract(M[i : i + P.shape[0], j : j + P.shape[1]], P, out=P)
    flagged = ~(np.abs(P) <= zeta)
    counts[:] = flagged.sum(axis=1)
    n = int(counts.sum())
    where[:n] = np.nonzero(flagged)[1]
    values[:n] = P[flagged]
    finite = bool(np.isfinite(P).all())
    P[flagged] = 0
    return P.size - n, finite, _energy(P), float(np.abs(P).max())


def _turn(where: Array, values: Array, counts: Array, cols: Array, turned: Array, row_counts: Array) -> None:
    """What :func:`flag` listed along columns, sorted by rows.

    ``counts`` entries of every column are at the rows ``where``; columns and values go to ``cols`` and ``turned``, row
    by row, their number per row to ``row_counts``.
    """
    from scipy.sparse import csr_array

    listed = csr_array((values, where, np.r_[0, np.cumsum(counts)]), shape=(len(counts), len(row_counts))).tocsc()
    cols[:], turned[:], row_counts[:] = listed.indices, listed.data, np.diff(listed.indptr)


def _mask(P: Array, K: Array) -> None:
    """Keep the entries of P where K is one, and put zeros elsewhere."""
    P *= K


def _ascend(M: Array, i: int, j: int, B: Array, Y: Array, penalty: Any, bound: Any, box: Any) -> Counts:
    """Move the tile Y of a dual variable on, in place; B is the tile of the low-rank part that starts at ``M[i, j]``.

    See :class:`~irpca.engines.base.Ascent`. Returns the count of entries where S is zero, whether all are finite, and
    ‖T‖² and ‖T‖∞ of T = M − B − S.
    """
    tile = M[i : i + B.shape[0], j : j + B.shape[1]]
    raised = Y + penalty * (tile - B)
    new = np.clip(raised, -bound, bound)
    S = (raised - new) / penalty
    with np.errstate(invalid="ignore"):  # what is infinite is told below
        inside = np.clip(S, tile - box, tile + box)
        new += penalty * (S - inside)
    T = (new - Y) / penalty
    Y[:] = new
    return int((inside == 0).sum()), bool(np.isfinite(raised).all()), _energy(T), float(np.abs(T).max())


def _low_rank(starts: Array, indices: Array, U: Array, V: Array, P: Array) -> None:
    """``U @ V.T`` at some entries, listed row by row.

    Those of row i are from ``starts[i]`` to ``starts[i + 1]``, in the columns that ``indices`` tells; so below.
    """
    np.einsum("kr,kr->k", U[_rows(starts)], V[indices], out=P)


def _along(starts: Array, indices: Array, T: Array, X: Array, out: Array) -> None:
    """Add ``T @ X`` to ``out``, for a matrix of which some entries are listed and the others are zero."""
    from scipy.sparse import csr_array

    out += csr_array((T.astype(float), indices, starts), shape=(len(out), len(X))) @ X


def _across(starts: Array, indices: Array, T: Array, Y: Array, out: Array) -> None:
    """Add ``T.T @ Y`` to ``out``."""
    from scipy.sparse import csr_array

    cols, at = np.unique(indices, return_inverse=True)
    out[cols] += csr_array((T.astype(float), at, starts), shape=(len(Y), len(cols))).T @ Y


def _next_largest(starts: Array, sizes: Array, largest: int, found: Array) -> None:
    """The size next below the ``largest`` largest in every row of listed sizes; 0 where there is none."""
    order = np.lexsort((sizes, _rows(starts)))
    long = np.diff(starts) > largest
    found[:] = 0
    found[long] = sizes[order[starts[1:][long] - 1 - largest]]


def _weigh(
    starts: Array, indices: Array, values: Array, P: Array, K: Array | None, rows: Array, cols: Array, tail: float
) -> Counts:
    """Turn P, which is L at some entries, into T = w · (M − L) there, in place; K, if given, receives the weights w.

    ``w = (1 + tail) / (1 + tail · (M − L)² / (rows · cols))``. Returns how many entries there are, whether all are
    finite, Σ w (M − L)² and ‖T‖∞.
    """
    residual = values - P
    squares = np.square(residual, dtype=np.float64)
    w = (1 + tail) / (1 + tail * squares / (rows[_rows(starts)] * cols[indices]))
    P[:] = w * residual
    if K is not None:
        K[:] = w
    return len(P), bool(np.isfinite(residual).all()), float(w @ squares), float(np.abs(P).max())


def _rows(starts: Array) -> Array:
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def _energy(P: Array) -> float:
    return float(np.einsum("ij,ij->", P, P, dtype=np.float64))


PLAIN: dict[str, Callable[..., Any]] = {
    "trim": _trim,
    "flag": _flag,
    "turn": _turn,
    "mask": _mask,
    "ascend": _ascend,
    "low_rank": _low_rank,
    "along": _along,
    "across": _across,
    "next_largest": _next_largest,
    "weigh": _weigh,
}


def __getattr__(name: str) -> Any:
    if name not in PLAIN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import compiled as kernels
    except ImportError:  # no numba
        globals()[name] = PLAIN[name]
    else:
        globals()[name] = getattr(kernels, name)
    return globals()[name]
