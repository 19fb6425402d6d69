"""The work on one tile of M, or on a list of its entries: compiled by numba where it is installed, NumPy elsewhere.

The functions below say what each kernel does; :mod:`irpca.engines.compiled` does the same in loops. It is imported when
a kernel is first asked for; a kernel is compiled, or fetched from the cache on disk, when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import lgamma
from typing import Any

import numpy as np

from ..lowrank import Array
from .base import CAUCHY, COMPONENTS, MEDIAN, MOST_SPREAD

# How many entries are kept, whether all that are observed are finite, ‖T‖², ‖T‖∞, and how many are not observed.
Counts = tuple[int, bool, float, float, int]

trim: Callable[..., Counts]
flag: Callable[..., Counts]
flag_scaled: Callable[..., Counts]
turn: Callable[..., None]
mask: Callable[..., None]
low_rank: Callable[..., None]
along: Callable[..., None]
across: Callable[..., None]
weigh_tile: Callable[..., None]
weigh_list: Callable[..., None]
pairs: Callable[..., None]
sum_along: Callable[..., None]
sum_across: Callable[..., None]
prepare: Callable[..., None]
reduce: Callable[..., None]
reduce_target: Callable[..., None]
posterior: Callable[..., None]
coefficients: Callable[..., None] | None

LANES = 8  # lines that are solved side by side: a vector of the processor, or two
TINY = 1e-300  # added to a density, so that what is beyond all is a gross error and no division by zero
LOG_2PI = float(np.log(2 * np.pi))


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
    tile = M[i : i + P.shape[0], j : j + P.shape[1]]
    residual = tile - P
    kept = np.abs(residual) <= zeta
    P[:] = np.where(kept, residual, 0)
    if K is not None:
        K[:] = kept
    finite, missing = _finite(residual, tile, holes)
    return int(kept.sum()), finite, _energy(P), float(np.abs(P).max()), missing


def _finite(residual: Array, tile: Array, holes: bool | None) -> tuple[bool, int]:
    """Whether all that are observed are finite, and how many are not observed."""
    if holes is None:
        return bool(np.isfinite(residual).all()), 0
    missing = np.isnan(tile)
    return bool(np.isfinite(residual[~missing]).all()), int(missing.sum())


def _flag(
    M: Array,
    i: int,
    j: int,
    P: Array,
    zeta: Any,
    where: Array,
    values: Array,
    counts: Array,
    holes: bool | None = None,
) -> Counts:
    """List the entries of the tile at ``M[i, j]`` that differ from P by more than zeta; P is lost.

    Their columns within the tile and their differences go to ``where`` and ``values``, row by row, their number per row
    to ``counts``. Returns what :func:`trim` returns.
    """
    tile = M[i : i + P.shape[0], j : j + P.shape[1]]
    np.subtract(tile, P, out=P)
    flagged = ~(np.abs(P) <= zeta) if holes is None else np.abs(P) > zeta
    counts[:] = flagged.sum(axis=1)
    n = int(counts.sum())
    where[:n] = np.nonzero(flagged)[1]
    values[:n] = P[flagged]
    finite, missing = _finite(P, tile, holes)
    P[flagged | np.isnan(P)] = 0
    return P.size - n - missing, finite, _energy(P), float(np.abs(P).max()), missing


flag_each = _flag  # with a limit for each entry in the place of zeta


def _flag_scaled(
    M: Array,
    i: int,
    j: int,
    P: Array,
    limit: float,
    rows: Array,
    cols: Array,
    where: Array,
    values: Array,
    counts: Array,
    holes: bool | None = None,
) -> Counts:
    """As :func:`flag`, with the limit of a :class:`~irpca.engines.base.Standardised` for each entry."""
    scales = np.multiply.outer(rows[i : i + P.shape[0]], cols[j : j + P.shape[1]])
    return _flag(M, i, j, P, limit * np.sqrt(scales), where, values, counts, holes)


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
    seen = ~np.isnan(M)
    R = np.where(seen, M - P, 0.0)
    s2 = np.multiply.outer(rows, cols)
    with np.errstate(invalid="ignore", over="ignore"):  # what is infinite is told by the sums
        P[:], W[:] = _weighed(R, s2, row_spread @ col_spread.T, parameters, seen, sums, _tile_sums)


def _tile_sums(out: Array, axis: int, values: Array) -> None:
    out += values.sum(axis=1 - axis)


def _weighed(
    R: Array, s2: Array, var: Array, parameters: Array, seen: Any, sums: tuple[Array, Array, Array], add: Any
) -> tuple[Array, Array]:
    """``ω R`` and ω at some entries, and the sums that ride along."""
    row_sums, col_sums, totals = sums
    *shares, gross, broad, nu, zeta, heavy = parameters
    square, var = R * R, np.minimum(var, MOST_SPREAD * s2)
    if np.isfinite(zeta):
        w = (np.abs(R) <= zeta).astype(float)
        parts, P, log_density = [w, 0 * w, 0 * w], 1 - w, 0 * w
        energy, heavy_parts = P * square, 0 * w
    elif np.isfinite(nu):
        relative = (square + var) / s2
        w = (nu + 1) / (nu + relative)
        constant = lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * np.log(np.pi * nu)
        log_density = constant - 0.5 * np.log(s2) - 0.5 * (nu + 1) * np.log1p(relative / nu)
        parts, P = [np.ones_like(w), 0 * w, 0 * w], 0 * w
        energy, heavy_parts = P, P
    else:
        densities = []
        for share, c in zip(shares, COMPONENTS, strict=True):
            total = c * c * s2 + var
            densities.append((1 - gross) * share * np.exp(-0.5 * square / total) / np.sqrt(total))
        inner = 1 / (1 + square / (MEDIAN * broad) ** 2)
        light = (1 - heavy) * gross * np.exp(-0.5 * square / broad**2) / broad
        tails = heavy * gross * CAUCHY * inner / broad + TINY
        total = sum(densities) + light + tails
        parts, P, heavy_parts = [density / total for density in densities], (light + tails) / total, tails / total
        energy = (light + tails * 2 / MEDIAN**2 * inner) * square / total
        w = sum(part / (c * c) for part, c in zip(parts, COMPONENTS, strict=True))
        log_density = np.log(total) - 0.5 * LOG_2PI
    omega = np.where(seen, w / s2, 0.0)
    for axis, out in ((0, row_sums), (1, col_sums)):
        add(out[:, 0], axis, omega * (square + var))
        add(out[:, 1], axis, np.where(seen, 1 - P, 0.0))
    for k, values in enumerate([*parts, P, energy, log_density, heavy_parts]):
        totals[k] += np.where(seen, values, 0.0).sum()
    return omega * R, omega


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

    def add(out: Array, axis: int, values: Array) -> None:
        out += np.bincount((at, indices)[axis], values, len(out))

    var = np.einsum("kq,kq->k", row_spread[at], col_spread[indices])
    s2 = rows[at] * cols[indices]
    P[:], W[:] = _weighed(values - P, s2, var, parameters, True, sums, add)


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


def _triangles(H: Array, n: int, K: int) -> Array:
    """Lower triangles that lie side by side, (blocks, places, LANES), as n matrices."""
    found = np.zeros((n, K, K))
    p, q = _lower(K)
    found[:, p, q] = H.transpose(0, 2, 1).reshape(H.shape[0] * H.shape[2], H.shape[1])[:n]
    return found


def _side_by_side(matrices: Array, H: Array) -> None:
    n, K = matrices.shape[:2]
    p, q = _lower(K)
    packed = np.zeros((len(H) * LANES, len(p)))
    packed[:n] = matrices[:, p, q]
    H[:] = packed.reshape(len(H), LANES, len(p)).transpose(0, 2, 1)


def symmetric(triangle: Array, K: int) -> Array:
    """The matrix whose lower triangle lies in a row."""
    whole = np.empty((K, K))
    p, q = _lower(K)
    whole[p, q] = whole[q, p] = triangle
    return whole


def full(H: Array, n: int, K: int) -> Array:
    """Of what is side by side: n symmetric matrices."""
    lower = _triangles(H, n, K)
    return lower + np.tril(lower, -1).transpose(0, 2, 1)


def _factors(factor: Array, n: int, K: int) -> Array:
    lower, at = _triangles(factor, n, K), np.arange(K)
    lower[:, at, at] = 1 / lower[:, at, at]
    return lower


def _prepare(
    packed: Array, g: Array, kappa: Array, mean: Array, covariance: Array, D: Array, H: Array, factor: Array, b: Array
) -> None:
    """H with the other side's uncertainty, Cholesky factors of I + D H D, their diagonals inverted, and b, of lines.

    ``packed`` has the lower triangle of a line in a row; H and ``factor`` receive LANES of them side by side, in
    arrays of shape (blocks, places, LANES): what is at the same place of as many triangles lies together. A ``factor``
    without blocks is not made: lines are tied to what is expected of them, D is nothing.
    """
    K = mean.shape[1]
    p, q = _lower(K)
    whole = np.zeros((len(mean), K, K))
    whole[:, p, q] = whole[:, q, p] = packed
    b[:] = np.einsum("iab,ib->ia", whole, mean) + g
    whole += kappa[:, None, None] * covariance
    _side_by_side(whole, H)
    if not len(factor):
        return
    inner = D[:, :, None] * whole * D[:, None, :] + np.eye(K)
    # With next to no noise rounding may leave less than the prior's 1.
    lower = np.linalg.cholesky(inner + 1e-14 * np.einsum("iaa->i", inner)[:, None, None] * np.eye(K))
    at = np.arange(K)
    lower[:, at, at] = 1 / lower[:, at, at]
    _side_by_side(lower, factor)


def _within(factor: Array, D: Array, X: Array) -> Array:
    """``C x`` of every line: C = D (I + D H D)⁻¹ D is the posterior covariance."""
    triangles = _factors(factor, *X.shape)
    lower = np.linalg.solve(triangles, (D * X)[:, :, None])
    solved: Array = D * np.linalg.solve(triangles.transpose(0, 2, 1), lower)[:, :, 0]
    return solved


def _reduce(H: Array, factor: Array, D: Array, X: Array, out: Array) -> None:
    """``T x = H x − H C H x`` of every line, as ``D⁻² C H x``: nothing cancels. Without factors C is nothing."""
    out[:] = np.einsum("iab,ib->ia", full(H, *X.shape), X)
    if len(factor):
        out[:] = _within(factor, D, out) / D**2


def _reduce_target(H: Array, factor: Array, D: Array, b: Array, out: Array) -> None:
    """``b − H C b`` of every line, in the same way."""
    out[:] = _within(factor, D, b) / D**2


def _posterior(
    H: Array,
    factor: Array,
    b: Array,
    D: Array,
    expected: Array,
    weigh: Array,
    mean: Array,
    variance: Array,
    spread: Array,
    covariance: Array,
) -> None:
    """Posterior means ``p + C (b − H p)``, the diagonals of C and its traces with ``weigh``; C is added up."""
    mean[:] = expected + _within(factor, D, b - np.einsum("iab,ib->ia", full(H, *b.shape), expected))
    half = np.linalg.solve(_factors(factor, *b.shape), D[:, :, None] * np.eye(D.shape[1]))
    C = half.transpose(0, 2, 1) @ half
    variance[:] = np.einsum("iaa->ia", C)
    spread[:] = np.einsum("iab,ab->i", C, weigh)
    covariance += C.sum(axis=0)


def _rows(starts: Array) -> Array:
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def _energy(P: Array) -> float:
    return float(np.einsum("ij,ij->", P, P, dtype=np.float64))


PLAIN: dict[str, Callable[..., Any] | None] = {
    "trim": _trim,
    "flag": _flag,
    "flag_scaled": _flag_scaled,
    "turn": _turn,
    "mask": _mask,
    "low_rank": _low_rank,
    "along": _along,
    "across": _across,
    "weigh_tile": _weigh_tile,
    "weigh_list": _weigh_list,
    "pairs": _pairs,
    "sum_along": _sum_along,
    "sum_across": _sum_across,
    "prepare": _prepare,
    "reduce": _reduce,
    "reduce_target": _reduce_target,
    "posterior": _posterior,
    "coefficients": None,  # of few lines in one call: saves time only where it is compiled
}


LINES = {
    "weigh_tile",
    "weigh_list",
    "pairs",
    "sum_along",
    "sum_across",
    "prepare",
    "reduce",
    "reduce_target",
    "posterior",
    "coefficients",
}


def __getattr__(name: str) -> Any:
    if name not in PLAIN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(".compiled_lines" if name in LINES else ".compiled", __package__)
    except ImportError:  # no numba
        globals()[name] = PLAIN[name]
    else:
        globals()[name] = getattr(module, name)
    return globals()[name]
