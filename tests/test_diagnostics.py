import tracemalloc

import numpy as np
import pytest
from oracle import incoherence as oracle_incoherence
from scipy.sparse import csr_array

import irpca
from irpca import LowRank, diagnostics
from irpca.datasets import make_problem
from irpca.diagnostics import (
    check_assumptions,
    energy_outside,
    leverage_scores,
    relative_error,
    support_scores,
)
from irpca.engines import MemoryEngine
from irpca.features import FeatureWarning


def decompose(problem, F1="own", F2="own", **options):
    F1 = problem.F1 if isinstance(F1, str) else F1
    F2 = problem.F2 if isinstance(F2, str) else F2
    options = {"rank": 2, "solver": "irpca_iht", **options}
    return F1, F2, irpca.solve(problem.M, F1, F2, **options)


def projected(A, F1, F2):
    """What of A the features span, with n×n projections."""
    P1 = np.eye(len(A)) if F1 is None else F1 @ np.linalg.pinv(F1)
    P2 = np.eye(A.shape[1]) if F2 is None else F2 @ np.linalg.pinv(F2)
    return P1 @ A @ P2


# Energy outside the span


@pytest.mark.parametrize("given, order", [((True, True), "C"), ((True, False), "F"), ((False, False), "C")])
def test_energy_outside_is_that_of_the_formula(given, order):
    rng = np.random.default_rng(0)
    M = np.asarray(rng.standard_normal((50, 40)), order=order)
    F1 = rng.standard_normal((50, 6)) if given[0] else None
    F2 = rng.standard_normal((40, 5)) if given[1] else None
    expected = np.sum((M - projected(M, F1, F2)) ** 2) / np.sum(M**2)
    assert energy_outside(M, F1, F2) == pytest.approx(expected, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("given", [(True, True), (True, False)])
def test_energy_outside_leaves_gross_errors_out_and_sees_a_free_part(given):
    problem = make_problem(60, 50, 5, 4, rank=2, corruption=0.1, noise=1e-3, features="conditioned")
    F1, F2 = problem.F1 if given[0] else None, problem.F2 if given[1] else None
    _, _, result = decompose(problem, F1, F2, nu=6e-3)
    rng = np.random.default_rng(0)
    # As of a solver that lets L leave the span.
    free = LowRank.from_product(rng.standard_normal((60, 1)) / 60, rng.standard_normal((50, 1)) / 50)
    L = LowRank.from_product(np.hstack([result.L.thin()[0], free.thin()[0]]), np.hstack([result.L.right, free.right]))
    moved = type(result)(**{**vars(result), "L": L})
    residual = problem.M - L.dense()
    clean = L.dense() + np.where(np.abs(residual) <= result.zeta, residual, 0.0)  # M − S
    X = clean - projected(clean, F1, F2)
    assert energy_outside(problem.M, F1, F2, moved) == pytest.approx(np.sum(X**2) / np.sum(clean**2), rel=1e-8)


def test_nothing_as_large_as_M_is_made():
    problem = make_problem(2000, 1500, 3, 2, rank=2, corruption=0.001, noise=1e-3, features="conditioned")
    F1, F2, result = decompose(problem, nu=6e-3)
    engine = MemoryEngine(problem.M, threads=1)
    tracemalloc.start()
    check_assumptions(engine, F1, F2, result)
    relative_error(result.L, result.L)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < problem.M.nbytes / 2  # some tiles
    assert engine.reads <= 6


# The assumptions


@pytest.mark.parametrize(("sides", "noise"), [((True, True), 1e-4), ((True, False), 1e-3), ((False, True), 1e-4)])
def test_noise_is_not_taken_for_bad_features(sides, noise):
    problem = make_problem(300, 200, 5, 4, rank=2, noise=noise, features="conditioned")
    F1, F2 = (F if given else None for F, given in zip((problem.F1, problem.F2), sides, strict=True))
    _, _, result = decompose(problem, F1, F2, nu=5 * noise)
    check = check_assumptions(problem.M, F1, F2, result)["feasibility"]
    assert check.verdict == "holds"
    assert check.value > 1e-8  # noise is there, and counted


@pytest.mark.parametrize(("sides", "corruption"), [((True, True), 0.05), ((False, True), 0.0)])
def test_missing_features_are_told_from_noise(sides, corruption):
    problem = make_problem(300, 200, 5, 4, rank=2, corruption=corruption, noise=1e-4, features="conditioned")
    cut = [F[:, 1:] if given else None for F, given in zip((problem.F1, problem.F2), sides, strict=True)]
    missing = problem.L - projected(problem.L, *cut)
    _, _, result = decompose(problem, *cut, nu=0.02)  # so that what is missing does not go to S
    check = check_assumptions(problem.M, *cut, result)["feasibility"]
    assert (
        check.verdict == "fails"
        and "stronger than noise: 0" not in check.meaning
        and "stronger than noise: " in check.meaning
    )
    assert "extra_rank='auto'" in check.advice
    structured = (check.value - check.limit) * np.sum(np.where(problem.corrupted, 0, problem.M) ** 2)
    assert structured == pytest.approx(np.sum(missing**2), rel=0.3)


def test_too_low_a_rank_is_not_taken_for_bad_features():
    # What is left of L stands out of noise, but it lies within the features.
    problem = make_problem(300, 200, 5, 4, rank=3, corruption=0.0, noise=1e-5, features="conditioned")
    F1, F2, result = decompose(problem, rank=1, nu=0.1)
    assert problem.relative_error(result.L) > 0.1
    assert check_assumptions(problem.M, F1, F2, result)["feasibility"].verdict == "holds"


def test_feasibility_cannot_be_told_without_M_or_when_S_is_full():
    problem = make_problem(100, 80, 4, 3, rank=2, features="conditioned")
    F1, F2, result = decompose(problem)
    assert check_assumptions(None, F1, F2, result)["feasibility"].verdict == "cannot tell"
    F1, F2, result = decompose(problem, F1=np.random.default_rng(0).standard_normal((100, 4)))
    assert result.corruption > 0.5
    assert check_assumptions(problem.M, F1, F2, result)["feasibility"].verdict == "cannot tell"


def test_features_of_neither_side_are_feasible():
    problem = make_problem(60, 50, 4, 3, rank=2, noise=1e-3, features="conditioned")
    _, _, result = decompose(problem, nu=6e-3)
    found = check_assumptions(problem.M, None, None, result)
    assert found["feasibility"].verdict == "holds" and found["feasibility"].value == 0
    assert found["row sparsity, printed"].limit == pytest.approx(1 / 20)  # identity features: no outlier at all


def test_sparsity_limits_are_those_of_the_paper_and_of_its_proof():
    problem = make_problem(300, 200, 4, 3, rank=2, corruption=0.01)
    F1, F2, result = decompose(problem)
    found = check_assumptions(None, F1, F2, result)
    mu1, mu2 = oracle_incoherence(F1), oracle_incoherence(F2)
    kappa1, kappa2 = np.linalg.cond(F1), np.linalg.cond(F2)
    mu, kappa = max(mu1, mu2), max(kappa1, kappa2)
    assert kappa > 2
    rows, cols = problem.corrupted.sum(axis=1).max(), problem.corrupted.sum(axis=0).max()
    expected = {
        "row sparsity, printed": (rows, 300 / (20 * mu**2 * 4 * kappa)),
        "column sparsity, printed": (cols, 200 / (20 * mu**2 * 3 * kappa)),
        "joint sparsity, proved": (
            np.sqrt(rows * cols),
            np.sqrt(300 * 200 / 12) / (20 * mu1 * mu2 * kappa1 * kappa2),
        ),
        "joint sparsity, whitened": (np.sqrt(rows * cols), np.sqrt(300 * 200 / 12) / (20 * mu1 * mu2)),
    }
    for name, (value, limit) in expected.items():
        check = found[name]
        assert check.value == pytest.approx(value, rel=1e-12)
        assert check.limit == pytest.approx(limit, rel=1e-9)
        assert check.verdict == ("holds" if value <= limit else "fails")
    for name, value, n, d in ("F1", mu1, 300, 4), ("F2", mu2, 200, 3):
        assert found[f"incoherence of {name}"].value == pytest.approx(value, rel=1e-10)
        assert found[f"incoherence of {name}"].limit == pytest.approx(np.sqrt(n / d / 20), rel=1e-12)


def test_sparsity_is_counted_from_M_where_the_result_has_no_S():
    problem = make_problem(100, 80, 4, 3, rank=2, corruption=0.05)
    F1, F2, result = decompose(problem, sparse=False)
    assert result.S is None
    assert check_assumptions(None, F1, F2, result)["row sparsity, printed"].verdict == "cannot tell"
    rows = problem.corrupted.sum(axis=1).max()
    assert check_assumptions(problem.M, F1, F2, result)["row sparsity, printed"].value == rows


def test_bound_on_W_against_the_c_W_that_was_chosen():
    problem = make_problem(100, 80, 4, 3, rank=2)
    F1, F2, result = decompose(problem)
    check = check_assumptions(None, F1, F2, result)["bounded W"]
    least = np.linalg.norm(problem.L, 2) / np.linalg.norm(F1, 2) / np.linalg.norm(F2, 2)
    assert check.value == pytest.approx(least, rel=1e-8)
    assert check.limit == result.choices[0].value and check.verdict == "holds"
    assert f"{np.linalg.norm(problem.W, 2):.3g}" in check.meaning
    F1, F2, result = decompose(problem, c_W=10.0)
    assert check_assumptions(None, F1, F2, result)["bounded W"].verdict == "cannot tell"


def test_noise_check_does_not_depend_on_units():
    problem = make_problem(150, 120, 3, 2, rank=2, noise=1e-4)
    values = []
    for scale in (1.0, 1e6):
        scaled = type(problem)(**{name: scale * part for name, part in vars(problem).items()})
        result = irpca.solve(scaled.M, problem.F1, problem.F2, rank=2, solver="irpca_iht", nu=6e-4 * scale)
        found = check_assumptions(scaled.M, problem.F1, problem.F2, result)
        values.append((found["noise"].value, found["noise"].limit, found["noise, whitened"].limit))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-6)
    mu2 = oracle_incoherence(problem.F1) * oracle_incoherence(problem.F2)
    kappa2 = np.linalg.cond(problem.F1) * np.linalg.cond(problem.F2)
    assert values[0][1] == pytest.approx(1 / (40 * mu2 * np.sqrt(6) * kappa2), rel=1e-9)
    assert values[0][2] == pytest.approx(1 / (40 * mu2 * np.sqrt(6)), rel=1e-9)
    assert values[0][0] == pytest.approx(np.abs(problem.N).max() / np.abs(problem.L).max(), rel=0.1)


def test_iteration_bound():
    """A factor 5 of c_W is one iteration more, also beyond the range of floats."""
    problem, bound = make_problem(150, 120, 3, 2, rank=2), diagnostics.iteration_bound
    F1, F2 = problem.F1, problem.F2
    mu, sigma = (f(F1) * f(F2) for f in (oracle_incoherence, lambda F: np.linalg.norm(F, 2)))
    for epsilon in (10.0, 1e-3):
        T = np.ceil(np.log(2 * mu * sigma * np.sqrt(6 / (150 * 120)) * 3.0 / epsilon) / np.log(5)) + 1
        assert bound(F1, F2, 3.0, epsilon) == max(1, T + 1)  # the first > T
    assert bound(F1, F2, 5.0**440, 1e-3) == bound(F1, F2, 1.0, 1e-3) + 440
    with pytest.raises(ValueError, match="positive"):
        bound(F1, F2, 3.0, 0.0)


def test_a_provable_problem_passes_and_the_text_explains():
    problem = make_problem(600, 600, 2, 2, rank=2, corruption=1e-5, features="conditioned")
    F1, F2, result = decompose(problem)
    assert 0 < problem.corrupted.sum() == result.S.nnz
    found = check_assumptions(problem.M, F1, F2, result)
    assert repr(found) == "Assumptions(10 of 10 sufficient conditions hold; print() explains them)"
    first, counts, *explained = str(found).split("\n\n")
    assert first.startswith(
        "These are sufficient conditions of the paper's theorems, not necessary ones: recovery usually"
    )
    assert counts == "Conditions that hold: 10 of 10; beyond the limit: 0."
    assert [part.partition(":")[0] for part in explained] == [check.name for check in found.checks]
    assert explained[0].splitlines() == [
        f"feasibility: {found['feasibility'].value:.3g}, limit 1e-12, holds",
        "    The features explain all cells that are not outliers, up to rounding.",
    ]
    with pytest.raises(KeyError):
        found["nonsense"]


# Leverage


def test_leverage_of_redundant_features():
    """With a few rows of large leverage, and units that differ by 10 orders of magnitude."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((2000, 5))
    F[:10] *= np.linspace(40, 10, 10)[:, None]
    F = F @ rng.standard_normal((5, 5)) * np.logspace(-5, 5, 5)
    padded = np.hstack([F, F[:, :2] @ [[1.0], [1e3]], np.zeros((2000, 1))])
    with pytest.warns(FeatureWarning):
        scores, mu = leverage_scores(padded), diagnostics.incoherence(padded)
    np.testing.assert_allclose(scores, leverage_scores(F), rtol=1e-8)
    assert scores.sum() == pytest.approx(5) and mu == pytest.approx(oracle_incoherence(F))


# Recovery


def test_relative_error():
    rng = np.random.default_rng(0)
    L = LowRank.from_product(rng.standard_normal((70, 2)), rng.standard_normal((60, 2)))
    A = rng.standard_normal((70, 60))
    expected = np.linalg.norm(L.dense() - A) / np.linalg.norm(A)
    assert relative_error(L, A) == pytest.approx(expected, rel=1e-12)
    assert relative_error(A, L) == pytest.approx(np.linalg.norm(L.dense() - A) / np.linalg.norm(L.dense()), rel=1e-12)
    assert relative_error(L, L) == 0
    assert relative_error(L, 0 * A) == np.inf and relative_error(0 * A, 0 * A) == 0
    with pytest.raises(ValueError, match=r"L has the shape \(70, 60\) and L_true \(60, 70\); compare"):
        relative_error(L, A.T)


@pytest.mark.parametrize("kind", [np.array, csr_array])
def test_support_scores(kind):
    S, S_true = np.zeros((6, 5)), np.zeros((6, 5))
    S[0, :4] = -2.0
    S_true[0, 1:] = 7.0
    S_true[3, 3] = 1.0
    scores = support_scores(kind(S), kind(S_true))
    assert scores == (3 / 4, 3 / 5)
    assert scores.precision == 3 / 4 and scores.recall == 3 / 5
    stored_zero = csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    assert support_scores(stored_zero, kind([[0.0, 1.0]])) == (1.0, 1.0)
    nothing = kind(np.zeros((6, 5)))
    assert support_scores(nothing, kind(S_true)) == (1.0, 0.0)
    assert support_scores(kind(S), nothing) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"S has the shape \(6, 5\) and S_true \(5, 6\); compare"):
        support_scores(kind(S), kind(S_true.T))
