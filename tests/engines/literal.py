"""The regressions of rows and columns by their formulas, typed literally: what every engine must equal."""

from dataclasses import replace

import numpy as np

from irpca.engines.base import Lines, Sums


def solve_both(M, case):
    """The regressions of the rows, and those of the columns, of a LinesCase."""
    noise = case.noise
    M = M.astype(float) if noise.units is None else M / noise.units
    rows = solve_literally(M, ~np.isnan(M), case.U, case.V, noise, case.priors[0])
    cols = solve_literally(M.T, ~np.isnan(M.T), case.V, case.U, noise.T, case.priors[1])
    return rows, replace(cols, sums=cols.sums.T)


def solve_literally(M, observed, U, V, noise, prior):
    """The regression of every row of M on V, one after the other."""
    R = np.where(observed, M, 0.0) - U.astype(float) @ V.T
    omega, sums = weighed(np.where(observed, R, 0.0), observed, noise)
    n, K = U.shape
    H, b, C, T = np.zeros((n, K, K)), np.zeros((n, K)), np.zeros((n, K, K)), np.zeros((n, K, K))
    target = np.zeros((n, K))
    for i in range(n):
        data, kappa = np.zeros((K, K)), 0.0
        for j in np.flatnonzero(observed[i]):
            data += omega[i, j] * np.outer(V[j], V[j])
            b[i] += omega[i, j] * R[i, j] * V[j]
            kappa += omega[i, j] * prior.other_spread[j]
        b[i] += data @ U[i]
        H[i] = data + kappa * prior.other_covariance
        D = np.diag(np.sqrt(prior.scale[i] * prior.variance))
        C[i] = D @ np.linalg.inv(np.eye(K) + D @ H[i] @ D) @ D
        T[i] = H[i] - H[i] @ C[i] @ H[i]
        target[i] = b[i] - H[i] @ C[i] @ b[i]
    if prior.basis is None:
        coefficients, precision, expected = None, np.zeros(K), prior.mean
    else:
        coefficients, precision = _coefficients(T, target, prior), _precision(H.mean(axis=0), prior)
        expected = prior.basis @ coefficients
    mean, variance, spread = np.zeros((n, K)), np.zeros((n, K)), np.zeros(n)
    for i in range(n):
        mean[i] = expected[i] + C[i] @ (b[i] - H[i] @ expected[i])
        variance[i], spread[i] = np.diag(C[i]), np.trace(prior.weigh @ C[i])
    return Lines(mean, expected, variance, spread, C.mean(axis=0), coefficients, precision, sums)


def weighed(R, observed, noise):
    """The precision ω of every entry, and what rides along; see :class:`~irpca.engines.base.Noise`."""
    s2 = np.outer(noise.rows, noise.cols)
    var = np.minimum(noise.row_spread @ noise.col_spread.T, 9 * s2)
    gross, b = noise.gross, noise.broad
    half = b * 0.6744897501960817  # of the Cauchy density: its median is that of a Gaussian of deviation b
    f1 = (1 - gross) * noise.shares[0] * np.exp(-(R**2) / (2 * (s2 + var))) / np.sqrt(s2 + var)
    f2 = (1 - gross) * noise.shares[1] * np.exp(-(R**2) / (2 * (4 * s2 + var))) / np.sqrt(4 * s2 + var)
    f3 = (1 - gross) * noise.shares[2] * np.exp(-(R**2) / (2 * (16 * s2 + var))) / np.sqrt(16 * s2 + var)
    light = gross * (1 - noise.heavy) * np.exp(-(R**2) / (2 * b**2)) / b
    tails = gross * noise.heavy * np.sqrt(2 * np.pi) / (np.pi * half * (1 + (R / half) ** 2)) + 1e-300
    f = light + tails + f1 + f2 + f3
    p1, p2, p3, P, heavy = f1 / f, f2 / f, f3 / f, (light + tails) / f, tails / f
    energies = light / f * R**2 + heavy * 2 / (1 + (R / half) ** 2) * R**2 * (b / half) ** 2
    w = p1 + p2 / 4 + p3 / 16
    log_density = np.log(f) - np.log(2 * np.pi) / 2
    omega = np.where(observed, w / s2, 0.0)
    energy, trust = omega * (R**2 + var), np.where(observed, 1 - P, 0.0)
    totals = [float(x[observed].sum()) for x in (p1, p2, p3, P, energies, log_density, heavy)]
    rows, cols = (np.column_stack([energy.sum(axis=axis), trust.sum(axis=axis)]) for axis in (1, 0))
    return omega, Sums(rows, cols, np.array(totals))


def _coefficients(T, target, prior):
    """A of the prior mean Q A: one dense system."""
    Q, ridge = prior.basis, prior.ridge
    d, K = Q.shape[1], T.shape[1]
    left, right = np.kron(np.eye(d), np.diag(ridge)), np.zeros((d, K))
    for q, t, x in zip(Q, T, target, strict=True):
        left += np.kron(np.outer(q, q), t)
        right += np.outer(q, x)
    return np.linalg.solve(left, right.ravel()).reshape(d, K)


def _precision(H, prior):
    """``(Σ Q² / d) · diag(H − H C H)`` for a line with the average H and the average prior variance."""
    D = np.diag(np.sqrt(prior.scale.mean() * prior.variance))
    C = D @ np.linalg.inv(np.eye(len(H)) + D @ H @ D) @ D
    size = (prior.basis**2).sum() / prior.basis.shape[1]
    return np.maximum(size * np.diag(H - H @ C @ H), 0.0)
