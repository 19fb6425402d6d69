"""Singular triplets of matrices of which only products are at hand."""

import numpy as np
import pytest

from irpca.engines import MemoryEngine
from irpca.solvers.subspace import SPARE, first_look, leading, random_block


class Counted:
    """A dense matrix that counts the products asked of it."""

    def __init__(self, A):
        self.A, self.products = A, 0

    def times(self, X):
        self.products += 1
        return self.A @ X

    def t_times(self, X):
        self.products += 1
        return self.A.T @ X


def with_spectrum(n1, n2, values, seed=0):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((n, len(values))))[0] for n in (n1, n2))
    return (U * values) @ V.T


@pytest.mark.parametrize("shape", [(60, 25), (25, 60)])
def test_leading_finds_the_singular_triplets(shape):
    A = with_spectrum(*shape, 0.5 ** np.arange(20.0))
    U, s, V = leading(Counted(A), random_block(shape[1], 4 + SPARE, np.random.default_rng(1)), 4, tol=1e-13, most=100)
    np.testing.assert_allclose(s[:4], 0.5 ** np.arange(4), rtol=1e-12)
    np.testing.assert_allclose(A @ V[:, :4], U[:, :4] * s[:4], atol=1e-12)
    np.testing.assert_allclose(A.T @ U[:, :4], V[:, :4] * s[:4], atol=1e-12)
    for Q in (U, V):
        np.testing.assert_allclose(Q.T @ Q, np.eye(4 + SPARE), atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 50), (50, 3)])
def test_no_more_triplets_than_there_are(shape):
    A = np.random.default_rng(0).standard_normal(shape)
    U, s, V = leading(Counted(A), random_block(shape[1], 2 + SPARE, np.random.default_rng(1)), 2, tol=1e-14, most=500)
    assert U.shape == (shape[0], min(shape)) and V.shape == (shape[1], min(shape))
    np.testing.assert_allclose((U * s) @ V.T, A, atol=1e-12)


def test_first_look():
    M = with_spectrum(60, 50, 0.8 ** np.arange(30.0))
    engine = MemoryEngine(M)
    sigma_1, V, trim = first_look(engine, 2 + SPARE, np.random.default_rng(0))
    assert sigma_1 == pytest.approx(1, rel=0.01)
    assert V.shape == (50, 2 + SPARE)
    assert trim.largest == np.abs(M).max()
    assert trim.energy == pytest.approx(np.linalg.norm(M) ** 2, rel=1e-12)
    assert trim.trimmed == 0


@pytest.mark.parametrize("scale", [1e-110, 1e110])
def test_first_look_refuses_entries_that_cannot_be_squared(scale):
    engine = MemoryEngine(scale * np.random.default_rng(0).standard_normal((20, 10)))
    with pytest.raises(ValueError, match="to square in double precision; rescale M"):
        first_look(engine, 3, np.random.default_rng(0))
