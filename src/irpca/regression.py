"""Least squares by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .lowrank import Array


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
