"""Principal component pursuit with features: both programs, their optima, and what ties them to PCP."""

import numpy as np
import pytest
import transcriptions
from solvers.field import conditioned, distance, gaussian, recovers

import irpca
from irpca.datasets import make_problem


def objective(M, L, core, lam=None):
    """‖core‖_* + λ ‖M − L‖₁; the core is H, of which L = F1 H F2ᵀ is made."""
    lam = max(M.shape) ** -0.5 if lam is None else lam
    return np.linalg.norm(core, "nuc") + lam * np.abs(M - L).sum()


def orthonormal(F):
    return np.linalg.qr(F)[0]


def test_features_survive_more_than_none():
    problem = gaussian(100, 100, corruption=0.5)
    with_features = irpca.solve(problem.M, problem.F1, problem.F2, solver="pcpf", max_iter=300)
    recovers(problem, with_features, error=1e-6)
    assert problem.relative_error(irpca.solve(problem.M, solver="pcp", max_iter=300).L) > 0.1


def test_W_is_in_the_coordinates_of_the_features():
    problem = make_problem(120, 90, 8, 6, rank=2, corruption=0.05)  # κ(F) far from 1
    result = irpca.solve(problem.M, problem.F1, problem.F2, solver="pcpf")
    np.testing.assert_allclose(problem.F1 @ result.W @ problem.F2.T, result.L.dense(), atol=1e-12)
    assert result.rank == 2


def test_units_and_mixtures_of_features_do_not_matter():
    problem = conditioned(100, 80, corruption=0.2)
    rng = np.random.default_rng(1)
    mixed = problem.F1 @ rng.standard_normal((12, 12)), 1e3 * problem.F2 @ rng.standard_normal((10, 10))
    one, other = (irpca.solve(problem.M, *F, solver="pcpf") for F in ((problem.F1, problem.F2), mixed))
    assert distance(other.L.dense(), one.L.dense()) <= 1e-8


# The optimum


@pytest.mark.parametrize(
    ("shape", "corruption", "lam"),
    [((60, 60), 0.1, 0.2), ((80, 50), 0.6, None), ((50, 80), 0.6, 0.2)],
)
def test_the_optimum_of_the_transcription(shape, corruption, lam):
    problem = gaussian(*shape, corruption=corruption)
    M, X, Y = problem.M, orthonormal(problem.F1), orthonormal(problem.F2)
    result = irpca.solve(M, problem.F1, problem.F2, solver="pcpf", lam=lam, max_iter=1000)
    H, _ = transcriptions.pcpf(M, X, Y, lam, growth=1.02, steps=5000, tol=1e-10)
    mine, theirs = result.L.dense(), X @ H @ Y.T
    assert objective(M, mine, mine, lam) <= objective(M, theirs, H, lam) * (1 + 1e-7)
    assert distance(mine, theirs) <= 1e-4


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_a_side_without_features_has_the_identity(side):
    problem = gaussian(60, 50, rank=2)
    F1, F2 = (problem.F1, None) if side == "rows" else (None, problem.F2)
    result = irpca.solve(problem.M, F1, F2, solver="pcpf", max_iter=500)
    X = np.eye(60) if F1 is None else orthonormal(F1)
    Y = np.eye(50) if F2 is None else orthonormal(F2)
    H, _ = transcriptions.pcpf(problem.M, X, Y, growth=1.05, tol=1e-10)
    assert distance(result.L.dense(), X @ H @ Y.T) <= 1e-6
    recovers(problem, result, error=1e-6)


# The raw program


@pytest.mark.parametrize(("shape", "condition"), [((30, 40), 3.0), ((40, 30), 10.0)])
def test_the_raw_program_has_the_optimum_of_the_transcription(shape, condition):
    problem = make_problem(*shape, 5, 4, rank=2, corruption=0.1, features="conditioned", condition=condition)
    M, F1, F2 = problem.M, problem.F1, problem.F2
    result = irpca.solve(M, F1, F2, solver="pcpf", program="raw", max_iter=5000)
    H, _ = transcriptions.pcpf_raw(M, F1, F2)
    theirs = objective(M, F1 @ H @ F2.T, H)
    assert objective(M, result.L.dense(), result.W) == pytest.approx(theirs, rel=1e-6)
    assert distance(result.W, H) <= 1e-3


def test_with_orthonormal_features_both_programs_are_one():
    problem = gaussian(60, 50, corruption=0.3)
    X, Y = orthonormal(problem.F1), orthonormal(problem.F2)
    raw, whitened = (
        irpca.solve(problem.M, X, Y, solver="pcpf", program=name, max_iter=500) for name in ("raw", "whitened")
    )
    assert raw.converged and distance(raw.L.dense(), whitened.L.dense()) <= 1e-6
    np.testing.assert_allclose(raw.W, whitened.W, atol=1e-6 * np.abs(whitened.W).max())


def test_the_raw_program_is_another_one():
    """Units of a feature count: what is measured in large ones is cheap."""
    problem = gaussian(60, 50, rank=2)
    stretched = problem.F1 * np.geomspace(1, 100, problem.F1.shape[1])
    raw, whitened = (
        irpca.solve(problem.M, stretched, problem.F2, solver="pcpf", program=name, max_iter=2000)
        for name in ("raw", "whitened")
    )
    assert problem.relative_error(whitened.L) <= 1e-6
    assert distance(raw.L.dense(), whitened.L.dense()) > 1e-3


def test_an_unfinished_run_is_not_called_saturated():
    problem = make_problem(120, 100, 10, 8, rank=3, corruption=0.1)
    result = irpca.solve(problem.M, problem.F1, problem.F2, solver="pcpf", program="raw", max_iter=50)
    assert result.status.name == "MAX_ITER"


def test_features_too_large_for_the_raw_program():
    problem = make_problem(60, 50, 4, 3, rank=2, corruption=0.1)
    with pytest.raises(ValueError, match=r"features are of size .* rescale them"):
        irpca.solve(problem.M, 1e80 * problem.F1, 1e80 * problem.F2, solver="pcpf", program="raw")
