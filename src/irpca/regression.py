"""Least squares: by conjugate gradients, and of every row on the same columns, at the entries that count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .lowrank import Array

ROUNDING = 1e-14  # of the trace: so much is added to the diagonal of normal equations


def regress_rows(R: Array, kept: Array, V: Array) -> Array:
    """Coefficients of every row of R on V, by least squares at the entries kept.

    Where these do not determine them, the ones closest to zero, nearly.
    """
    r = V.shape[1]
    H = (kept @ np.einsum("ja,jb->jab", V, V).reshape(len(V), r * r)).reshape(-1, r, r)
    H += (ROUNDING * np.einsum("iaa->i", H)[:, None, None] + np.finfo(float).tiny) * np.eye(r)
    found: Array = np.linalg.solve(H, (np.where(kept, R, 0.0) @ V)[:, :, None])[:, :, 0]
    return found


def conjugate_gradients(G: Array, operator: Callable[[Array], Array], tol: float, most: int) -> Array:
    """X with ``operator(X) ≈ G``, the operator symmetric and not negative, until what is left of G is ``tol`` of it."""
    X, P = np.zeros_like(G), G
    first = power = float(np.vdot(G, G))
    for _ in range(most):
        if power <= tol * tol * first or power == 0:
            break
        AP = operator(P)
        curvature = float(np.vdot(P, AP))
        if curvature <= 0:
            break
        X = X + (power / curvature) * P
        G = G - (power / curvature) * AP
        power, previous = float(np.vdot(G, G)), power
        P = G + (power / previous) * P
    return X
