"""Conjugate gradients against a dense solution."""

import numpy as np

from irpca.regression import conjugate_gradients


def problem(n=12, k=3, seed=0):
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((n, n))
    return B @ B.T + np.eye(n), rng.standard_normal((n, k))


def test_the_solution_is_that_of_a_dense_solve():
    A, G = problem()
    X = conjugate_gradients(G, lambda P: A @ P, 1e-12, 200)
    np.testing.assert_allclose(X, np.linalg.solve(A, G), rtol=1e-9, atol=1e-12)


def test_fewer_digits_take_fewer_steps():
    A, G = problem()
    steps = []
    for tol in (1e-1, 1e-10):
        asked = []
        X = conjugate_gradients(G, lambda P, asked=asked: asked.append(1) or A @ P, tol, 200)
        assert np.linalg.norm(A @ X - G) <= tol * np.linalg.norm(G)
        steps.append(len(asked))
    assert steps[0] < steps[1]


def test_nothing_to_explain_takes_no_step():
    X = conjugate_gradients(np.zeros((4, 2)), lambda P: 1 / 0, 1e-8, 10)
    assert not X.any()
