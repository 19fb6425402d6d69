"""Conjugate gradients against a dense solution."""

import numpy as np

from irpca.regression import conjugate_gradients


def problem(n=12, k=3, seed=0):
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((n, n))
    return B @ B.T + np.eye(n), rng.standard_normal((n, k))


def test_fewer_digits_take_fewer_steps():
    A, G = problem()
    steps = []
    for tol in (1e-1, 1e-12):
        asked = []
        X = conjugate_gradients(G, lambda P, asked=asked: asked.append(1) or A @ P, tol, 200)
        assert np.linalg.norm(A @ X - G) <= tol * np.linalg.norm(G)
        steps.append(len(asked))
    assert steps[0] < steps[1]
