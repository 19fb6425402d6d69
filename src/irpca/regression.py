"""Rows of M explained by known directions, each row on its own and robustly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .lowrank import Array
from .threshold import rounding_floor

Starts = tuple[tuple[float, float], ...]

# (q, k) as in threshold.STARTS, but for one row at a time: a row has few entries, so no very low quantile.
ROW_STARTS = ((0.5, 8.0), (0.5, 2.0), (0.2, 5.0), (0.3, 8.0), (0.1, 15.0))
HARD_STARTS = (
    *ROW_STARTS,
    (0.2, 10.0),
    (0.2, 20.0),
    (0.05, 15.0),
    (0.05, 40.0),
)  # for rows that resist those
ROUNDS = 25
CHUNK_ENTRIES = 1 << 21


def row_scores(M: Array, V: Array, zeta: float | None = None, starts: Starts = ROW_STARTS, floor: float = 0.0) -> Array:
    """Robust least squares of every row of M on the columns of V: U with ``M ≈ U @ V.T``.

    Every row has a threshold of its own, from the quantiles of its own residuals; of several starts the one with the
    smallest mean log residual is kept, row by row.

    Parameters
    ----------
    M : array of shape (m, n)
        NaN where it is not observed.
    V : array of shape (n, r), full column rank
    zeta : float or None
        If given, the rows are finished with least squares on the entries within ±zeta.
    starts : pairs (q, k)
        Each is tried from zero with the threshold k · quantile_q(|residual|) of the row.
    floor : float
        Size below which a residual of M means nothing, beside that of rounding in the arithmetic.

    Returns
    -------
    array of shape (m, r)
    """
    if V.shape[1] == 0:
        return np.zeros((len(M), 0))
    step = max(1, CHUNK_ENTRIES // max(M.shape[1], 1))
    pieces = [
        _chunk(np.asarray(M[first : first + step], dtype=float), V, M.dtype, zeta, starts, floor)
        for first in range(0, len(M), step)
    ]
    return np.concatenate(pieces)


def moment_columns(V: Array) -> Array:
    """All products ``V[:, a] · V[:, b]``, each once, and a column of ones: what :func:`row_steps` wants summed."""
    n, r = V.shape
    columns = np.ones((n, r * (r + 1) // 2 + 1))
    for column, (a, b) in enumerate(zip(*np.triu_indices(r), strict=True)):
        np.multiply(V[:, a], V[:, b], out=columns[:, column])
    return columns


def _moments(sums: Array, r: int) -> Array:
    """Sums of :func:`moment_columns` as symmetric r×r matrices."""
    a, b = np.triu_indices(r)
    moments = np.empty((len(sums), r, r))
    moments[:, a, b] = moments[:, b, a] = sums[:, :-1]
    return moments


def row_steps(sums: Array, products: Array, ridge: float = 0.0, scores: Array | None = None) -> Array:
    """The least-squares step of every row; none for rows with too few kept entries to tell, unless there is a ridge.

    Parameters
    ----------
    sums : array of shape (m, r (r + 1) / 2 + 1)
        :func:`moment_columns` summed over the kept entries of each row.
    products : array of shape (m, r)
        ``V[j] · residual`` summed over the same entries.
    ridge, scores : float, array of shape (m, r)
        Penalty on the squared length of the scores after the step, and what they are before it.
    """
    m, r = products.shape
    moments, kept = _moments(sums, r), sums[:, -1]
    size = np.trace(moments, axis1=1, axis2=2) / r
    wanted = products.astype(float)
    if ridge > 0 and scores is not None:
        wanted = wanted - ridge * scores
    ok = (kept >= (1 if ridge > 0 else r + 1)) & (size > 0)
    steps = np.zeros((m, r))
    if ok.any():
        # The least ridge only keeps rows solvable whose kept entries miss a direction.
        penalty = (ridge + 1e-13 * size[ok, None, None]) * np.eye(r)
        steps[ok] = np.linalg.solve(moments[ok] + penalty, wanted[ok, :, None])[:, :, 0]
    return steps


def natural_ridge(scores: Array, noise: float) -> float:
    """The penalty on scores that noise asks for, if they are Gaussian and the directions orthonormal."""
    size = float(np.mean(scores**2)) if scores.size else 0.0
    return noise**2 / size if size > 0 else 0.0


def span_step(Q: Array, sums: Array, products: Array, tol: float = 1e-12) -> Array:
    """The least-squares step D of all rows together when row i is ``Q[i] @ D``: by conjugate gradients.

    ``sums`` and ``products`` are as in :func:`row_steps`; nothing else of M is needed.
    """
    moments = _moments(sums, products.shape[1])
    G = Q.T @ products.astype(float)
    return conjugate_gradients(G, lambda P: Q.T @ np.einsum("iab,ib->ia", moments, Q @ P), tol, 10 * G.size)


def conjugate_gradients(G: Array, operator: Callable[[Array], Array], tol: float, most: int) -> Array:
    """X with ``operator(X) ≈ G``, the operator symmetric and not negative, until what is left of G is ``tol`` of it."""
    X, P = np.zeros_like(G), G
    first = power = float((G * G).sum())
    for _ in range(most):
        if power <= tol * tol * first or power == 0:
            break
        AP = operator(P)
        curvature = float((P * AP).sum())
        if curvature <= 0:
            break
        X = X + (power / curvature) * P
        G = G - (power / curvature) * AP
        power, previous = float((G * G).sum()), power
        P = G + (power / previous) * P
    return X


def _chunk(M: Array, V: Array, dtype: np.dtype, zeta: float | None, starts: Starts, least: float) -> Array:
    columns = moment_columns(V)
    best = np.zeros((len(M), V.shape[1]))
    best_score = np.full(len(M), np.inf)
    counts = np.count_nonzero(~np.isnan(M), axis=1)
    # One floor for all starts: under a floor of its own, a fit of zero would win by any few zeros in the row.
    floor = rounding_floor(dtype, 1.0) * _of_sorted(np.abs(M), counts, 0.5)[:, None]
    floor = np.maximum(floor, max(least, float(np.finfo(float).tiny)))
    for q, k in starts:
        U = _descend(M, V, columns, counts, dtype, q, k, least)
        logs = np.log(np.maximum(np.abs(M - U @ V.T), floor))
        score = np.where(np.isnan(logs), 0.0, logs).sum(axis=1) / np.maximum(counts, 1)
        better = score < best_score - 1e-9
        best[better], best_score[better] = U[better], score[better]
    if zeta is not None:
        for _ in range(ROUNDS):
            step = _step(M, V, columns, best, np.full(len(M), zeta))
            best = best + step
            if np.abs(step).max() <= 1e-12 * np.abs(best).max():
                break
    return best


def _of_sorted(sizes: Array, counts: Array, q: float) -> Array:
    """The q-quantile of every row's ``counts`` numbers, the others being NaN; 0 of none."""
    n = sizes.shape[1]
    if (counts == n).all():
        which = min(n - 1, int(q * n))
        return np.partition(sizes, which, axis=1)[:, which]
    which = np.minimum(np.maximum(counts - 1, 0), (q * counts).astype(int))
    return np.nan_to_num(np.take_along_axis(np.sort(sizes, axis=1), which[:, None], axis=1)[:, 0])  # NaN comes last


def _descend(
    M: Array, V: Array, columns: Array, counts: Array, dtype: np.dtype, q: float, k: float, least: float
) -> Array:
    """From zero, with ζ = k · quantile_q of each row's residuals; rows at rest are left alone."""
    active = np.arange(len(M))
    U = np.zeros((len(M), V.shape[1]))
    for _ in range(ROUNDS):
        fitted = U[active] @ V.T
        quantile = _of_sorted(np.abs(M[active] - fitted), counts[active], q)
        zeta = np.maximum(k * np.maximum(quantile, least), _row_floors(dtype, fitted))
        step = _step(M[active], V, columns, U[active], zeta)
        U[active] += step
        active = active[np.abs(step).max(axis=1) > 1e-13 * np.abs(U[active]).max(axis=1)]
        if not len(active):
            break
    return U


def _row_floors(dtype: np.dtype, fitted: Array) -> Array:
    return rounding_floor(dtype, 1.0) * np.abs(fitted).max(axis=1)


def _step(M: Array, V: Array, columns: Array, U: Array, zeta: Array) -> Array:
    residual = M - U @ V.T
    kept = np.abs(residual) <= zeta[:, None]
    return row_steps(kept.astype(float) @ columns, np.where(kept, residual, 0.0) @ V)
