"""The work on one tile of M, or on a list of its entries: compiled by numba where it is installed, NumPy elsewhere.

The functions below say what each kernel does, and :class:`.arithmetic.Posteriors` what the last four do;
:mod:`irpca.engines.compiled` and, for regressions of lines, :mod:`irpca.engines.compiled_lines` do the same in loops.
They are imported when a kernel is first asked for; a kernel is compiled, or fetched from the cache on disk, when it is
first called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..lowrank import Array
from . import arithmetic
from .arithmetic import Counts

LANES = 64  # lines that are solved side by side: so many that LLVM makes vectors of a loop, and does not unroll it


def _trim(
    M: Array,
    i: int,
    j: int,
    P: Array,
    K: Array | None,
    zeta: Any,
    holes: bool | None = None,
) -> Counts:
    """Turn the tile P of L into the tile of T that starts at ``M[i, j]``, in place.

    K, if given, receives ones where an entry is kept. NaN in M is not finite, unless there may be ``holes``: then it is
    not observed.
    """
    with np.errstate(over="ignore"):
        _, T, kept, along = arithmetic.trim(M[i : i + P.shape[0], j : j + P.shape[1]], P, zeta)
    P[:] = T
    if K is not None:
        K[:] = kept
    return _counts(along, P.size, holes)


def _flag(
    M: Array,
    i: int,
    j: int,
    P: Array,
    rows: Array,
    cols: Array,
    where: Array,
    values: Array,
    counts: Array,
    holes: bool | None = None,
) -> Counts:
    """List the entries of the tile at ``M[i, j]`` that differ from P by more than ``rows · cols``; P is lost.

    Their columns within the tile and their differences go to ``where`` and ``values``, row by row, their number per row
    to ``counts``. Returns what :func:`trim` returns.
    """
    height, width = P.shape
    limit = np.multiply.outer(rows[i : i + height], cols[j : j + width])
    with np.errstate(over="ignore"):
        R, _, kept, along = arithmetic.trim(M[i : i + height, j : j + width], P, limit)
    flagged = ~kept & ~np.isnan(R)
    counts[:] = flagged.sum(axis=1)
    n = int(counts.sum())
    where[:n], values[:n] = np.nonzero(flagged)[1], R[flagged]
    return _counts(along, P.size, holes)


def _counts(along: Array, size: int, holes: bool | None) -> Counts:
    kept, finite, energy, largest, missing = arithmetic.counts_of(along, size)
    return kept, finite and (holes is not None or not missing), energy, largest, missing


def _mask(P: Array, K: Array) -> None:
    """Keep the entries of P where K is one, and put zeros elsewhere."""
    P *= K


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


def _weigh_tile(M: Array, P: Array, W: Array, noise: tuple[Array, ...], sums: tuple[Array, Array, Array]) -> None:
    """Turn the tile P of L into ω (M − L), in place, and W into the precisions ω; both are 0 where M is NaN.

    ``noise`` is what :meth:`Noise.part` gives for the rows of the tile; ``sums``, from :meth:`Sums.part`, are added to.
    """
    rows, cols, row_spread, col_spread, parameters = noise
    s2, seen = np.multiply.outer(rows, cols), ~np.isnan(M)
    energy, trust = _weighed(M, P, W, seen, s2, row_spread @ col_spread.T, parameters, sums[2])
    for axis, out in ((1, sums[0]), (0, sums[1])):
        out[:, 0] += energy.sum(axis=axis)
        out[:, 1] += trust.sum(axis=axis)


def _weigh_list(
    starts: Array,
    indices: Array,
    values: Array,
    P: Array,
    W: Array,
    noise: tuple[Array, ...],
    sums: tuple[Array, Array, Array],
) -> None:
    """As :func:`weigh_tile`, for listed entries."""
    rows, cols, row_spread, col_spread, parameters = noise
    at = _rows(starts)
    s2, var = rows[at] * cols[indices], np.einsum("kq,kq->k", row_spread[at], col_spread[indices])
    energy, trust = _weighed(values, P, W, np.ones(len(P), bool), s2, var, parameters, sums[2])
    for lines, out in ((at, sums[0]), (indices, sums[1])):
        out[:, 0] += np.bincount(lines, energy, len(out))
        out[:, 1] += np.bincount(lines, trust, len(out))


def _weighed(
    M: Array, P: Array, W: Array, seen: Array, s2: Array, var: Array, parameters: Array, totals: Array
) -> tuple[Array, Array]:
    """``ω R`` to P and ω to W, in place, and the totals; returns ω (R² + var L) and 1 − P of the entries."""
    R = np.where(seen, M - P, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):  # what is infinite is told by the sums
        omega, energy, trust, found = arithmetic.weigh(R, seen, s2, var, parameters)
        P[:], W[:] = omega * R, omega
    totals += found
    return energy, trust


def _pairs(V: Array, out: Array) -> None:
    """The lower triangle of ``v vᵀ`` for every row v, diagonal included."""
    a, b = _lower(V.shape[1])
    np.multiply(V[:, a], V[:, b], out=out)


def _sum_along(
    starts: Array, indices: Array, T: Array, W: Array, V: Array, spread: Array, H: Array, g: Array, kappa: Array
) -> None:
    """Add the moments Σ ω v vᵀ (lower triangle), Σ T v and Σ ω κ of every row to H, g and kappa."""
    a, b = _lower(V.shape[1])
    _along(starts, indices, W, V[:, a] * V[:, b], H)
    _along(starts, indices, T, V, g)
    kappa += np.bincount(_rows(starts), W * spread[indices], len(kappa))


def _sum_across(
    starts: Array, indices: Array, T: Array, W: Array, U: Array, spread: Array, H: Array, g: Array, kappa: Array
) -> None:
    """The same of every column."""
    a, b = _lower(U.shape[1])
    _across(starts, indices, W, U[:, a] * U[:, b], H)
    _across(starts, indices, T, U, g)
    kappa += np.bincount(indices, W * spread[_rows(starts)], len(kappa))


@cache
def _lower(K: int) -> tuple[Array, Array]:
    """Places of the lower triangle, diagonal included."""
    return np.tril_indices(K)


def symmetric(triangle: Array, K: int) -> Array:
    """The matrix whose lower triangle lies in a row."""
    whole = np.empty((K, K))
    p, q = _lower(K)
    whole[p, q] = whole[q, p] = triangle
    return whole


def _rows(starts: Array) -> Array:
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


NAMES = (
    *("trim", "flag", "mask", "low_rank", "along", "across"),
    *("weigh_tile", "weigh_list", "pairs", "sum_along", "sum_across"),
    *("prepare", "reduce", "posterior", "coefficients"),  # what arithmetic.Posteriors does where numba is not installed
)
PLAIN: dict[str, Callable[..., Any] | None] = {name: globals().get(f"_{name}") for name in NAMES}


def __getattr__(name: str) -> Any:
    if name not in PLAIN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import compiled, compiled_lines
    except ImportError:  # no numba
        globals()[name] = PLAIN[name]
    else:
        globals()[name] = vars(compiled).get(name) or vars(compiled_lines)[name]
    return globals()[name]
