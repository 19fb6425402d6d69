"""The regressions of all rows, or of all columns, of M on the factors of the other side: solved where M is.

``m_ij ≈ u_i · v_j``, each entry with the precision ω_ij that the noise model gives it. For every row the moments
``H = Σ_j ω v vᵀ`` and ``g = Σ_j ω (m − u·v) v`` are summed over its entries; the posterior of ``u = p + δ`` under the
prior ``δ ~ N(0, Λ)`` follows from them, and so do the coefficients A of the prior mean ``p = Q A``. Nothing that has
K² numbers for every row leaves this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..lowrank import Array
from . import kernels
from .base import Lines, Noise, Prior, Sums, blamed, not_finite
from .chunks import Entries
from .threads import in_order

TILE = 1 << 15  # entries whose weights are made at a time: they stay in cache
LINES_AT_ONCE = 1 << 12  # lines that are solved together, so that no more than their K² numbers are in memory
PARALLEL = 1 << 15  # entries, or lines times K², below which a second thread costs more than it brings
NO_VARIANCE = 1e-200  # of a prior that ties lines to what is expected of them
CG_STEPS = 12  # of conjugate gradients for the coefficients; preconditioned and from the last ones, a few are enough
CG_DIGITS = 1e-3  # of what is left at first


def half(V: Array) -> Array:
    """The upper triangle of ``v vᵀ`` for every row v, diagonal included."""
    a, b = np.triu_indices(V.shape[1])
    return np.ascontiguousarray(V[:, a] * V[:, b])


@dataclass(eq=False)
class Moments:
    """H (upper triangles), g, and Σ_j ω_ij κ_j of every line; κ is how uncertain the factors of the other side are."""

    H: Array
    g: Array
    kappa: Array

    @classmethod
    def zero(cls, n: int, K: int) -> Moments:
        return cls(np.zeros((n, K * (K + 1) // 2)), np.zeros((n, K)), np.zeros(n))

    def add(self, other: Moments) -> None:
        self.H += other.H
        self.g += other.g
        self.kappa += other.kappa


def solve_dense(A: Array, axis: int, U: Array, V: Array, noise: Noise, prior: Prior, threads: int) -> Lines:
    """The regressions of the rows (``axis=0``) or columns of a dense array; NaN is not observed."""
    n1, n2 = A.shape
    K = U.shape[1]
    V, U = np.ascontiguousarray(V), np.ascontiguousarray(U)
    Vt = np.ascontiguousarray(V.T)
    moments_of = half(V if axis == 0 else U)
    height = max(1, TILE // n2)
    parts = 1 if A.size < PARALLEL else min(threads, n1)
    edges = [n1 * part // parts for part in range(parts + 1)]
    found = Moments.zero(A.shape[axis], K) if axis == 0 else None

    def work(part: int) -> tuple[Moments, Sums]:
        mine = found if found is not None else Moments.zero(n2, K)
        sums = Sums.zero(A.shape)
        T, W = np.empty((2, height, n2))
        for first in range(edges[part], edges[part + 1], height):
            rows = slice(first, min(first + height, edges[part + 1]))
            t, w = T[: rows.stop - first], W[: rows.stop - first]
            np.matmul(U[rows], Vt, out=t)
            kernels.weigh_tile(A[rows], t, w, noise.part(rows), sums.part(rows))
            if axis == 0:
                mine.H[rows], mine.g[rows], mine.kappa[rows] = w @ moments_of, t @ V, w @ prior.other_spread
            else:
                mine.H += w.T @ moments_of[rows]
                mine.g += t.T @ U[rows]
                mine.kappa += w.T @ prior.other_spread[rows]
        return mine, sums

    moments, sums = _gathered(in_order(work, range(parts), parts, ahead=parts), shared=axis == 0)
    if not sums.finite:
        raise blamed(A)
    return _solved(moments, U if axis == 0 else V, prior, threads, sums)


def solve_listed(
    M: Entries, axis: int, U: Array, V: Array, noise: Noise, prior: Prior, shares: list[range], threads: int
) -> Lines:
    """The same for entries listed row by row."""
    n1, n2 = M.shape
    K = U.shape[1]
    V, U = np.ascontiguousarray(V), np.ascontiguousarray(U)
    found = Moments.zero(n1, K) if axis == 0 else None
    spread = np.ascontiguousarray(prior.other_spread)

    def work(rows: range) -> tuple[Moments, Sums]:
        mine = found if found is not None else Moments.zero(n2, K)
        sums = Sums.zero(M.shape)
        for chunk in M.chunks(rows):
            values = M.values[chunk.at]
            T, W = np.empty((2, len(values)))
            u = U[chunk.rows]
            kernels.low_rank(chunk.starts, chunk.indices, u, V, T)
            kernels.weigh_list(chunk.starts, chunk.indices, values, T, W, noise.part(chunk.rows), sums.part(chunk.rows))
            if axis == 0:
                at = chunk.rows
                kernels.sum_along(chunk.starts, chunk.indices, T, W, V, spread, mine.H[at], mine.g[at], mine.kappa[at])
            else:
                kernels.sum_across(chunk.starts, chunk.indices, T, W, u, spread[chunk.rows], mine.H, mine.g, mine.kappa)
        return mine, sums

    pieces = in_order(work, shares, threads if len(shares) > 1 else 1, ahead=len(shares))
    moments, sums = _gathered(pieces, shared=axis == 0)
    if not sums.finite:
        raise not_finite(0, 0)  # M was looked at when it came
    return _solved(moments, U if axis == 0 else V, prior, threads, sums)


def _gathered(pieces: Iterable[tuple[Moments, Sums]], shared: bool) -> tuple[Moments, Sums]:
    """One sum of all; what threads share has been filled by each in its own rows."""
    total: tuple[Moments, Sums] | None = None
    for moments, sums in pieces:
        if total is None:
            total = moments, sums
            continue
        if not shared:
            total[0].add(moments)
        total[1].add(sums)
    assert total is not None
    return total


def _solved(moments: Moments, mean: Array, prior: Prior, threads: int, sums: Sums) -> Lines:
    """Posterior means of all lines, and how uncertain they are."""
    n, K = mean.shape
    deviation = np.sqrt(np.maximum(np.multiply.outer(prior.scale, prior.variance), NO_VARIANCE))
    if prior.basis is None:
        coefficients, precision, expected = None, np.zeros(K), prior.mean
        assert expected is not None
        ready: Callable[[slice], tuple[Array, Array, Array]] | None = None
    else:
        whole = _prepared(moments, mean, prior, deviation, slice(0, n), threads)
        coefficients, precision = _coefficients(whole, deviation, prior)
        expected = prior.basis @ coefficients
        ready = lambda lines: tuple(part[lines] for part in whole)  # type: ignore[assignment,return-value]  # noqa: E731
    new, variance, spread = np.empty((n, K)), np.empty((n, K)), np.empty(n)
    covariance = np.zeros((K, K))
    step = min(LINES_AT_ONCE, -(-n // threads))

    def work(first: int) -> Array:
        lines = slice(first, min(first + step, n))
        prepared = ready(lines) if ready else _prepared(moments, mean, prior, deviation, lines, 1)
        total = np.zeros((K, K))
        kernels.posterior(
            *prepared, deviation[lines], expected[lines], prior.weigh, new[lines], variance[lines], spread[lines], total
        )
        return total

    firsts = range(0, n, step)
    for total in in_order(work, firsts, threads if n * K * K > PARALLEL else 1, ahead=len(firsts)):
        covariance += total
    return Lines(new, expected, variance, spread, covariance / n, coefficients, precision, sums)


def _prepared(
    moments: Moments, mean: Array, prior: Prior, deviation: Array, lines: slice, threads: int
) -> tuple[Array, Array, Array]:
    """H of some lines as full matrices, the Cholesky factors of I + D H D, and b = Σ ω m v."""
    n, K = lines.stop - lines.start, mean.shape[1]
    H, factor, b = np.empty((n, K, K)), np.empty((n, K, K)), np.empty((n, K))

    def work(first: int) -> None:
        at = slice(first, min(first + step, n))
        of = slice(lines.start + at.start, lines.start + at.stop)
        kernels.prepare(
            moments.H[of], moments.g[of], moments.kappa[of], mean[of], prior.other_covariance, deviation[of],
            H[at], factor[at], b[at],
        )  # fmt: skip

    step = max(1, -(-n // threads))
    for _ in in_order(work, range(0, n, step), threads if n * K * K > PARALLEL else 1):
        pass
    return H, factor, b


def _coefficients(prepared: tuple[Array, Array, Array], deviation: Array, prior: Prior) -> tuple[Array, Array]:
    """A of the prior mean Q A, δ integrated out, by conjugate gradients; and how precisely each direction is known.

    The precision of what a line says of ``Q A`` is ``T = H − H C H`` with C the posterior covariance of δ.
    """
    H, factor, b = prepared
    Q, ridge = prior.basis, prior.ridge
    assert Q is not None and ridge is not None
    reduced = np.empty_like(b)

    def through(X: Array) -> Array:
        """T x of every line."""
        kernels.reduce(H, factor, deviation, X, reduced)
        return reduced

    kernels.reduce_target(H, factor, deviation, b, reduced)
    right = Q.T @ reduced
    K = b.shape[1]
    mean, scale = H.mean(axis=0), np.sqrt((deviation**2).mean(axis=0))
    # T of an average line
    average = np.linalg.solve(np.eye(K) + scale[:, None] * mean * scale, scale[:, None] * mean) / scale[:, None]
    average = 0.5 * (average + average.T)
    size = float((Q * Q).sum() / Q.shape[1])  # of a column of the basis, squared
    precision = size * np.maximum(np.diag(average), 0.0)
    floor = 1e-12 * float(precision.max(initial=1e-300))
    inverse = np.linalg.inv(size * average + np.diag(ridge + floor))

    def operator(A: Array) -> Array:
        return Q.T @ through(Q @ A) + ridge * A

    A = prior.coefficients if prior.coefficients is not None else np.zeros((Q.shape[1], K))
    residual = right - operator(A)
    z = residual @ inverse
    p, rz = z, float((residual * z).sum())
    target = max(CG_DIGITS**2 * rz, 1e-32 * float((right * (right @ inverse)).sum()))
    for _ in range(CG_STEPS):
        if rz <= target or rz <= 0:
            break
        Ap = operator(p)
        curvature = float((p * Ap).sum())
        if curvature <= 0:
            break
        step = rz / curvature
        A, residual = A + step * p, residual - step * Ap
        z = residual @ inverse
        last, rz = rz, float((residual * z).sum())
        p = z + rz / last * p
    return A, precision
