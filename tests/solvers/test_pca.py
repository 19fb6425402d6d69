"""The non-robust floor: NumPy's truncated SVD, by subspace iteration."""

import numpy as np
import pytest
from solvers.field import conditioned, distance, gaussian
from transcriptions import best

import irpca
from irpca import Status


@pytest.mark.parametrize(("shape", "make"), [((200, 150), gaussian), ((150, 200), conditioned)])
def test_it_is_the_truncated_svd(shape, make):
    M = make(*shape).M
    result = irpca.solve(M, rank=3, solver="pca", max_iter=500)
    assert result.status is Status.CONVERGED
    # The step of a subspace iteration is smaller than its error by the gap between singular values.
    assert distance(result.L.dense(), best(M, 3)) <= 1e-8
    np.testing.assert_allclose(result.L.singular_values, np.linalg.svd(M, compute_uv=False)[:3], rtol=1e-10)


def test_nothing_is_a_gross_error():
    problem = gaussian(100, 80)
    result = irpca.solve(problem.M, rank=3, solver="pca", max_iter=500)
    assert result.S.nnz == 0 and result.corruption == 0 and result.zeta == np.inf
    assert not any("S is empty" in doubt.text for doubt in result.doubts)  # by design, not by what M holds
    left = np.linalg.norm(problem.M - result.L.dense())
    assert result.history.residual[-1] == pytest.approx(left / problem.M.size**0.5, rel=1e-6)
    thin = irpca.solve(problem.M, rank=3, solver="pca", max_iter=500, sparse=False)
    assert thin.explained == pytest.approx(result.explained, rel=1e-6)
    assert problem.relative_error(result.L) > 0.05  # gross errors pull it, which is what it is here to show


def test_converges_where_the_spectrum_is_flat():
    M = np.random.default_rng(0).standard_normal((300, 200))
    result = irpca.solve(M, rank=3, solver="pca")
    assert result.converged
    s = np.linalg.svd(M, compute_uv=False)
    np.testing.assert_allclose(result.L.singular_values, s[:3], rtol=1e-10)


def test_scores_of_the_fitted_rows_give_L_where_there_is_no_noise():
    problem = gaussian(100, 80, corruption=0.0)
    model = irpca.InductiveRobustPCA(rank=3, solver="pca").fit(problem.M)
    L = model.low_rank_.dense()
    assert np.linalg.norm(model.inverse_transform(model.transform(problem.M)) - L) <= 1e-7 * np.linalg.norm(L)
