"""The work on one tile of M: compiled by numba where it is installed, plain NumPy elsewhere.

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


def _energy(P: Array) -> float:
    return float(np.einsum("ij,ij->", P, P, dtype=np.float64))


PLAIN: dict[str, Callable[..., Any]] = {"trim": _trim, "flag": _flag, "turn": _turn, "mask": _mask, "ascend": _ascend}


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
