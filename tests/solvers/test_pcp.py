"""Principal component pursuit: recovery, the optimum and its proof, and the bound of Hsu, Kakade and Zhang."""

import numpy as np
import pytest
import transcriptions
from sklearn.exceptions import ConvergenceWarning
from solvers.field import conditioned, distance, gaussian

import irpca
from irpca import Status
from irpca.solvers.dense import DenseMatrix


def objective(M, L, lam=None):
    """‖L‖_* + λ ‖M − L‖₁, S being all that L leaves."""
    lam = max(M.shape) ** -0.5 if lam is None else lam
    return np.linalg.norm(L, "nuc") + lam * np.abs(M - L).sum()


def test_one_huge_error_hides_nothing():
    problem = conditioned(200, 160, corruption=0.05)
    M = problem.M.copy()
    M[3, 4] += 1e8
    result = irpca.solve(M, solver="pcp")
    assert result.converged and problem.relative_error(result.L) <= 1e-6
    expected = problem.corrupted.copy()
    expected[3, 4] = True
    np.testing.assert_array_equal(result.S.toarray() != 0, expected)


# The optimum


@pytest.mark.parametrize(("shape", "lam"), [((60, 60), None), ((80, 50), 0.2), ((50, 80), 0.1)])
def test_the_optimum_of_the_transcription(shape, lam):
    M = gaussian(*shape, rank=2).M
    result = irpca.solve(M, solver="pcp", lam=lam, max_iter=1000)
    L, _ = transcriptions.pcp(M, lam, growth=1.02, steps=5000, tol=1e-10)
    assert objective(M, result.L.dense(), lam) <= objective(M, L, lam) * (1 + 1e-7)
    assert distance(result.L.dense(), L) <= 1e-4


@pytest.mark.parametrize(("shape", "corruption"), [((30, 40), 0.3), ((40, 30), 0.6)])
def test_hard_problems_do_not_freeze_it(shape, corruption):
    """No answer is known here but the optimum, which a penalty that only grows, by 1.5 a step, does not reach."""
    M = gaussian(*shape, corruption=corruption, seed=2).M
    result = irpca.solve(M, solver="pcp", max_iter=1000)
    mine = objective(M, result.L.dense())
    patient = objective(M, transcriptions.pcp(M, growth=1.02, steps=5000, tol=1e-10)[0])
    usual = objective(M, transcriptions.pcp(M)[0])
    assert mine <= patient * (1 + 1e-6)
    assert usual > mine * (1 + 1e-4)


@pytest.mark.parametrize(("make", "corruption"), [(gaussian, 0.3), (conditioned, 0.1)])
def test_the_multiplier_proves_the_optimum(monkeypatch, make, corruption):
    M = make(90, 70, rank=2, corruption=corruption).M
    Y = np.zeros(M.shape)
    monkeypatch.setattr(DenseMatrix, "zeros", lambda _: Y)
    result = irpca.solve(M, solver="pcp", max_iter=2000)
    assert result.converged
    lam, L = 90**-0.5, result.L.dense()
    # Y is a subgradient of λ ‖S‖₁ at S …
    assert np.abs(Y).max() <= lam * (1 + 1e-12)
    S = result.S.toarray()
    np.testing.assert_allclose(Y[S != 0], lam * np.sign(S[S != 0]), rtol=1e-12)
    # … and of ‖L‖_* at L: U Vᵀ on the tangent space, no longer than 1 beyond it.
    U, _, Vt = np.linalg.svd(L)
    U, Vt = U[:, : result.rank], Vt[: result.rank]
    np.testing.assert_allclose(U.T @ Y, Vt, atol=1e-5)
    np.testing.assert_allclose(Y @ Vt.T, U, atol=1e-5)
    assert np.linalg.norm(Y - U @ (U.T @ Y), 2) <= 1 + 1e-5
    # So ⟨Y, M⟩, which no feasible pair falls below once Y is feasible, is attained.
    lower = np.sum(Y * M) / max(1, np.linalg.norm(Y, 2))
    assert objective(M, L) == pytest.approx(lower, rel=1e-5)


def test_a_heavy_lam_keeps_all_in_L_and_a_light_one_nothing():
    problem = gaussian(60, 50, rank=2)
    heavy = irpca.solve(problem.M, solver="pcp", lam=2.0)  # λ > 1: an entry costs less in L
    assert heavy.S.nnz == 0 and distance(heavy.L.dense(), problem.M) <= 1e-6
    light = irpca.solve(problem.M, solver="pcp", lam=1e-3)
    assert light.rank == 0 and light.status is Status.SATURATED


# The bound


@pytest.fixture(scope="module")
def bounded():
    """A problem, its plain optimum, and a bound that the plain optimum breaks."""
    problem = gaussian(30, 25, rank=1, corruption=0.15, seed=1)
    L = irpca.solve(problem.M, solver="pcp", max_iter=1000).L.dense()
    return problem, L, 0.7 * np.abs(L).max()


def test_the_bound_is_kept_and_the_optimum_is_that_of_the_transcription(bounded):
    problem, plain, bound = bounded
    M = problem.M
    result = irpca.solve(M, solver="pcp", linf_bound=bound, max_iter=5000)
    assert result.converged
    mine = result.L.dense()
    assert np.abs(mine).max() <= bound * (1 + 1e-6) < np.abs(plain).max()
    assert np.abs(M - result.S.toarray()).max() <= bound * (1 + 1e-6)
    L, _ = transcriptions.pcp(M, bound=bound, growth=1.01, steps=20_000, tol=1e-8)
    assert np.abs(L).max() <= bound * (1 + 1e-6)
    assert objective(M, mine) == pytest.approx(objective(M, L), rel=1e-6)
    assert distance(mine, L) <= 1e-3
    assert objective(M, mine) > objective(M, plain) * (1 + 1e-3)  # it costs something


def test_a_loose_tol_ends_sooner():
    M = conditioned(120, 100).M
    runs = [irpca.solve(M, solver="pcp", tol=tol) for tol in (1e-3, 1e-10)]
    assert runs[0].n_iter < runs[1].n_iter
    assert all(run.history.step[-1] <= tol for run, tol in zip(runs, (1e-3, 1e-8), strict=True))


def test_an_unfinished_run_with_a_full_S_is_doubted():
    problem = conditioned(60, 50)
    result = irpca.solve(problem.M, solver="pcp", lam=0.04, max_iter=20)
    assert result.status.name == "MAX_ITER"
    assert any("count as outliers (S)" in doubt.text for doubt in result.doubts)


def test_an_L_of_rank_zero_has_no_scores():
    M = conditioned(60, 50).M
    with pytest.warns(ConvergenceWarning):
        model = irpca.InductiveRobustPCA(solver="pcp", solver_options={"lam": 1e-4}).fit(M)
    assert model.rank_ == 0
    assert model.transform(M).shape == (60, 0)
