"""The default solver: what it must recover, how accurately, and when it must admit that it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import irpca
from irpca import Status, constants
from irpca.datasets import make_problem


def kinds(result):
    return {doubt.kind for doubt in result.doubts}


def recovers(problem, result, error=1e-8):
    """L to ``error``, the support to the entry, and a run that says so."""
    assert result.status is Status.CONVERGED, result.summary()
    assert problem.relative_error(result.L) <= error
    assert np.array_equal(result.S.toarray() != 0, problem.corrupted)
    np.testing.assert_allclose(result.S.toarray(), problem.S, atol=error * np.abs(problem.S).max())


def test_a_row_of_a_single_cell_in_a_column_of_two():
    """Nothing of either is left beside the lines that are fitted badly."""
    rng = np.random.default_rng(13)
    M = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))
    M[rng.random(M.shape) < 0.1] += 20
    M[rng.random(M.shape) < 0.6] = np.nan
    M[3], M[:, 5] = np.nan, np.nan
    M[[0, 3], 5] = 1.0
    assert np.isfinite(irpca.solve(M, rank=2).L.dense()).all()


# Its two halves ----------------------------------------------------------------------------------------------------


def test_exact_data_are_fitted_by_trimmed_alone():
    p = make_problem(100, 90, d1=4, d2=4, rank=2, corruption=0.1)
    default, trimmed = (irpca.solve(p.M, p.F1, p.F2, solver=solver) for solver in ("irpca", "trimmed"))
    np.testing.assert_array_equal(default.L.dense(), trimmed.L.dense())
    assert default.choices == trimmed.choices and default.n_iter == trimmed.n_iter and default.reads == trimmed.reads


@pytest.mark.parametrize("sides", ["both", "none"])
def test_data_that_cannot_be_exact_are_fitted_by_bayes_alone(sides):
    """Without features, or with noise that is known, no exact fit is looked for."""
    p = make_problem(100, 90, d1=4, d2=4, rank=2, corruption=0.1, noise=0.01)
    features, options = ((p.F1, p.F2), {"noise": 0.01}) if sides == "both" else ((), {})
    default, bayes = (irpca.solve(p.M, *features, solver=solver, **options) for solver in ("irpca", "bayes"))
    np.testing.assert_array_equal(default.L.dense(), bayes.L.dense())
    assert default.history.stage == bayes.history.stage and default.reads == bayes.reads


def test_noisy_data_with_features_are_fitted_by_one_after_the_other():
    """Of the trimmed fit, which is not exact, the start is left of one candidate among others."""
    p = make_problem(100, 90, d1=4, d2=4, rank=2, corruption=0.1, noise=0.01)
    default, bayes = (irpca.solve(p.M, p.F1, p.F2, solver=solver) for solver in ("irpca", "bayes"))
    assert default.history.stage[0] == "looking for an exact fit" not in bayes.history.stage
    names = [{name for name, *_ in result.certificate.candidates} for result in (default, bayes)]
    assert "features only, from earlier" in names[0] - names[1]
    assert p.relative_error(default.L) == pytest.approx(p.relative_error(bayes.L), rel=0.05)


# The paper's literal generator ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("corruption", "d", "rank", "outlier_scale", "condition"),
    [(0.05, 20, 20, 1.0, 10.0), (0.45, 50, 10, 1000.0, 1.0), (0.25, 100, 20, 1.0, 100.0), (0.45, 20, 5, 1000.0, 100.0)],
)
def test_recovers_the_papers_generator(corruption, d, rank, outlier_scale, condition):
    p = make_problem(
        d1=d,
        d2=d,
        rank=rank,
        corruption=corruption,
        outlier_scale=outlier_scale,
        condition=condition,
        random_state=rank,
    )
    recovers(p, irpca.solve(p.M, p.F1, p.F2, rank=rank))


@pytest.mark.parametrize(
    ("pattern", "sign", "corruption"), [("block", "positive", 0.3), ("rows", "both", 0.3), ("random", "positive", 0.45)]
)
def test_recovers_rectangles_from_patterns(pattern, sign, corruption):
    p = make_problem(600, 900, d1=20, d2=35, rank=5, pattern=pattern, sign=sign, corruption=corruption)
    recovers(p, irpca.solve(p.M, p.F1, p.F2, rank=5))


def test_recovers_the_symmetric_case():
    p = make_problem(400, 400, d1=10, d2=10, rank=3, corruption=0.2, symmetric=True)
    result = irpca.solve(p.M, p.F1, p.F2, rank=3)
    recovers(p, result)
    np.testing.assert_allclose(result.W, result.W.T, atol=1e-8 * np.abs(result.W).max())


def test_float32_keeps_the_support():
    p = make_problem(corruption=0.45, outlier_scale=1000.0, dtype=np.float32)
    result = irpca.solve(p.M, p.F1, p.F2, rank=5)
    assert result.S.dtype == np.float32
    recovers(p, result, error=1e-4)


def test_one_huge_outlier_hides_nothing():
    p = make_problem(300, 300, d1=10, d2=10, rank=3, corruption=0.1)
    M, S = p.M.copy(), p.S.copy()
    M[3, 4] += 1e12
    S[3, 4] = M[3, 4] - p.L[3, 4]
    result = irpca.solve(M, p.F1, p.F2, rank=3)
    assert p.relative_error(result.L) <= 1e-8
    assert np.array_equal(result.S.toarray() != 0, S != 0)


# Most entries corrupted -------------------------------------------------------------------------------------------


def test_recovers_from_eighty_percent_all_positive_without_a_gap():
    p = make_problem(corruption=0.8, outliers="uniform", sign="positive")
    result = irpca.solve(p.M, p.F1, p.F2, rank=5)
    assert result.status is Status.CONVERGED
    assert p.relative_error(result.L) <= 1e-8


def test_gives_up_openly():
    p = make_problem(80, 80, d1=10, d2=10, corruption=0.99)  # fewer clean entries than unknowns
    result = irpca.solve(p.M, p.F1, p.F2, rank=5)
    assert p.relative_error(result.L) > 0.01  # otherwise the case is not hopeless enough
    assert result.usable != "usable"


# Noise ------------------------------------------------------------------------------------------------------------


def oracle(p, rank):
    """Rank-r least squares on the truly clean entries."""
    Q1, Q2 = np.linalg.qr(p.F1)[0], np.linalg.qr(p.F2)[0]
    clean = ~p.corrupted
    C = Q1.T @ p.L @ Q2
    for _ in range(60):
        u, s, vt = np.linalg.svd(C + Q1.T @ np.where(clean, p.M - Q1 @ C @ Q2.T, 0) @ Q2 / clean.mean())
        C = (u[:, :rank] * s[:rank]) @ vt[:rank]
    return p.relative_error(Q1 @ C @ Q2.T)


@pytest.mark.parametrize(
    ("sigmas", "corruption", "bar", "seed"), [(8, 0.3, 1.05, 1), (4, 0.05, 1.15, 2), (8, 0.0, 1.01, 0)]
)
def test_noise_costs_little_more_than_the_oracle_pays(sigmas, corruption, bar, seed):
    noise = 5 * 5 / 400 / sigmas  # the paper's outliers start at 5r/n
    p = make_problem(400, 400, corruption=corruption, noise=noise, random_state=seed)
    result = irpca.solve(p.M, p.F1, p.F2)
    assert result.status is Status.CONVERGED and result.rank == 5
    assert p.relative_error(result.L) <= bar * oracle(p, 5)
    assert result.noise == pytest.approx(noise, rel=0.05)
    assert result.corruption == pytest.approx(p.corrupted.mean(), rel=0.05, abs=1e-4)


def test_noise_with_long_tails_is_not_called_corruption():
    p = make_problem(300, 250, corruption=0.0)
    draw = np.random.default_rng(0).standard_t(3, size=p.M.shape)
    result = irpca.solve(p.M + 0.003 * draw, p.F1, p.F2, rank=5)
    assert result.status is Status.CONVERGED
    assert result.corruption < 0.03
    assert p.relative_error(result.L) < 0.02


# Rank -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "rank"), [(20, 1), (20, 20), (100, 20)])
def test_finds_the_rank_without_noise(d, rank):
    p = make_problem(d1=d, d2=d, rank=rank, corruption=0.3)
    result = irpca.solve(p.M, p.F1, p.F2)
    assert result.rank == rank
    recovers(p, result)
    assert "rank" in {choice.name for choice in result.choices}


# Sides without features -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", ["rows", "columns", "none"])
def test_recovers_with_features_on_one_side_and_without(sides):
    p = make_problem(300, 250, corruption=0.5)
    recovers(p, irpca.solve(p.M, *given_sides(p, sides), rank=5), error=1e-10)


def test_wholly_corrupted_rows_are_pointed_out():
    p = make_problem(100, 80, d1=5, d2=5, rank=3, corruption=0.1, pattern="rows")
    result = irpca.solve(p.M, None, p.F2, rank=3)
    good = ~p.corrupted.any(axis=1)
    assert np.linalg.norm((result.L.dense() - p.L)[good]) <= 1e-8 * np.linalg.norm(p.L)
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "broken-lines")
    assert doubt.rows == tuple(np.flatnonzero(~good))


# Features that do not fit -----------------------------------------------------------------------------------------


def test_random_features_never_end_in_success():
    p = make_problem(150, 150)
    rng = np.random.default_rng(0)
    result = irpca.solve(p.M, rng.standard_normal((150, 10)), rng.standard_normal((150, 10)), extra_rank=0)
    assert result.usable != "usable"
    assert kinds(result) & {"structure-left", "not-predicted", "no-pattern"}


def test_features_that_leave_energy_outside_are_no_success():
    p = make_problem(200, 200, corruption=0.02, features="conditioned", random_state=2)
    left, _, _ = np.linalg.svd(p.L, full_matrices=False)
    halved = np.linalg.qr(p.F1 - left[:, :1] @ (left[:, :1].T @ p.F1))[0][:, :19]  # the strongest direction is gone
    result = irpca.solve(p.M, halved, p.F2, rank=5, extra_rank=0)
    assert result.explained < 0.5
    assert result.usable != "usable"


# Tables as they come ----------------------------------------------------------------------------------------------


def table():
    return make_problem(200, 150, d1=8, d2=6, rank=3, corruption=0.1, noise=1e-3, features="conditioned")


def given_sides(p, sides):
    return p.F1 if sides in ("both", "rows") else None, p.F2 if sides in ("both", "columns") else None


@pytest.mark.parametrize("sides", ["both", "none"])
def test_rows_of_zeros_are_no_evidence(sides):
    """A dead sensor fits L = 0 exactly; nothing else must be held to that standard."""
    p = table()
    M, alive = p.M.copy(), np.arange(200) % 12 != 0
    M[~alive] = 0
    result = irpca.solve(M, *given_sides(p, sides), rank=3)
    assert result.status is Status.CONVERGED
    assert np.linalg.norm((result.L.dense() - p.L)[alive]) < 0.03 * np.linalg.norm(p.L)


def test_values_in_steps_are_known_to_half_a_step():
    p = table()
    result = irpca.solve(np.round(p.M, 2), p.F1, p.F2, rank=3)  # 30 different values, four in ten are zero
    assert result.status is Status.CONVERGED
    assert result.corruption == pytest.approx(0.1, rel=0.05)
    assert p.relative_error(result.L) < 0.06


def test_counts():
    rng = np.random.default_rng(0)
    rate = np.exp(rng.normal(1.5, 0.5, (300, 1)) + rng.normal(0, 0.3, (1, 200)))
    M = rng.poisson(rate)
    wrong = rng.random(M.shape) < 0.05
    result = irpca.solve(np.where(wrong, 500, M), rank=1)
    assert result.status is Status.CONVERGED
    assert np.linalg.norm(result.L.dense() - rate) < 0.1 * np.linalg.norm(rate)
    assert (result.S.toarray()[wrong] != 0).all()


# Blocks -----------------------------------------------------------------------------------------------------------


def test_w_alone_hardly_reads_m():
    p = make_problem(2000, 2000, d1=40, d2=40, corruption=0.2)
    result = irpca.solve(p.M, p.F1, p.F2, sparse=False)
    assert result.S is None and result.rank == 5
    assert result.reads < 0.1
    assert p.relative_error(result.L) < 1e-10
    np.testing.assert_allclose(result.W, p.W, atol=1e-8)


def test_coherent_features_are_sampled_by_leverage():
    rng = np.random.default_rng(0)
    rare = np.zeros((2000, 6))
    rare[rng.permutation(2000)[:18], np.arange(18) % 6] = 1  # each of six features says something about three rows
    F1 = np.column_stack([rng.standard_normal((2000, 4)), rare])
    F2 = rng.standard_normal((1500, 8))
    W = rng.standard_normal((10, 8))
    L = F1 @ W @ F2.T
    corrupted = rng.random(L.shape) < 0.2
    result = irpca.solve(L + 50 * corrupted * rng.standard_normal(L.shape), F1, F2, rank=8)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.W, W, atol=1e-8)


def test_indicators_on_both_sides():
    """Every coefficient is seen in one cell of M only, and strong cells must not be taken for corruption."""
    rng = np.random.default_rng(1)
    F = np.repeat(np.eye(10), 40, axis=0)
    L = F @ np.outer(rng.standard_normal(10), rng.standard_normal(10)) @ F.T
    corrupted = rng.random(L.shape) < 0.05
    M = L + corrupted * rng.uniform(2, 10, L.shape) * rng.choice((-1, 1), L.shape)
    result = irpca.solve(M, F, F)
    assert result.status is Status.CONVERGED and result.rank == 1
    assert np.linalg.norm(result.L.dense() - L) <= 1e-10 * np.linalg.norm(L)
    assert np.array_equal(result.S.toarray() != 0, corrupted)


def test_an_intercept_does_not_follow_one_sided_outliers():
    rng = np.random.default_rng(0)
    t = 2 * np.pi * np.arange(200) / 200
    F2 = np.column_stack([np.ones(200), np.sin(t), np.cos(t)])
    L = rng.standard_normal((200, 3)) @ F2.T
    corrupted = rng.random(L.shape) < 0.3
    result = irpca.solve(L + corrupted * rng.uniform(2, 5, L.shape), None, F2)
    np.testing.assert_allclose(result.L.dense(), L, atol=1e-10)
    assert np.array_equal(result.S.toarray() != 0, corrupted)


@pytest.mark.parametrize("sides", ["both", "none"])
def test_values_once_stored_in_single_precision(sides):
    p = make_problem(200, 150, d1=6, d2=5, rank=2, corruption=0.1)
    result = irpca.solve(p.M.astype(np.float32).astype(float), *given_sides(p, sides), rank=2)
    assert np.array_equal(result.S.toarray() != 0, p.corrupted)


def test_a_rank_too_high_for_the_table_is_told():
    p = make_problem(100, 100, d1=10, d2=10, rank=2, corruption=0.1)
    result = irpca.solve(p.M, rank=5)
    assert result.usable != "usable" or p.relative_error(result.L) < 1e-6


def test_a_direction_that_few_rows_speak_for_is_not_lost_in_S():
    """Thirty rows of 3000: a block that misses them is exact nearly everywhere, and they are whole in S."""
    rng = np.random.default_rng(6)
    F1, F2 = rng.uniform(-1, 1, (3000, 16)), rng.uniform(-1, 1, (1500, 16))
    F1[:, 0] = rng.random(3000) < 0.01
    L = F1 @ rng.standard_normal((16, 4)) @ rng.standard_normal((4, 16)) @ F2.T
    M = np.where(rng.random(L.shape) < 0.7, L + 10 * L.std() * rng.choice([-1, 1], L.shape), L)
    result = irpca.solve(M, F1, F2, rank=4)
    assert result.converged
    assert np.abs(result.L.dense() - L).max() <= 1e-10 * np.abs(L).max()


def test_rows_of_a_rare_feature_that_are_all_wrong_are_doubted():
    rng = np.random.default_rng(0)
    F1, F2 = rng.uniform(-1, 1, (1200, 6)), rng.uniform(-1, 1, (900, 5))
    F1[:, 0] = np.arange(1200) < 8
    L = F1 @ rng.standard_normal((6, 2)) @ rng.standard_normal((2, 5)) @ F2.T
    M = np.where(rng.random(L.shape) < 0.1, L + 10 * L.std(), L)
    right = irpca.solve(M, F1, F2, rank=2)
    assert not right.doubts and np.abs(right.L.dense() - L).max() <= 1e-10 * np.abs(L).max()
    M[:8] = 20 * rng.standard_normal((8, 900))
    result = irpca.solve(M, F1, F2, rank=2)
    assert np.abs((result.L.dense() - L)[8:]).max() <= 1e-8 * np.abs(L).max()
    assert result.usable == "use with care"
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "broken-lines")
    assert doubt.rows == tuple(range(8))


def test_one_row_that_breaks_a_tie_between_features():
    rng = np.random.default_rng(1)
    F1, F2 = rng.uniform(-1, 1, (2, 1200, 12))
    F1[:, 1] = F1[:, 0] + 5e-3 * F1[:, 1]
    F1[7, 1] += 5
    Q = np.linalg.qr(F1)[0]
    L = Q @ rng.standard_normal((12, 3)) @ rng.standard_normal((3, 12)) @ F2.T
    L /= L.std()
    M = L + 0.1 * rng.standard_normal(L.shape) + 9 * (rng.random(L.shape) < 0.05)
    result = irpca.solve(M, F1, F2, rank=3)
    assert result.converged and result.reads < 20  # few sweeps: two steps of least squares do not see that row
    assert np.linalg.norm(result.L.dense() - L) <= 1e-3 * np.linalg.norm(L)


def test_a_noise_far_too_small_is_not_a_success():
    p = make_problem(300, 200, d1=8, d2=6, rank=2, corruption=0.1, noise=0.1, random_state=1)
    result = irpca.solve(p.M, p.F1, p.F2, rank=2, noise=1e-6)
    assert result.usable != "usable" and "many-outliers" in kinds(result)


# Invariance -------------------------------------------------------------------------------------------------------


def small(seed):
    return make_problem(150, 120, d1=6, d2=5, rank=2, corruption=0.15, random_state=seed)


def test_what_does_not_matter():
    """Units, the order of lines, mixtures of features, which side is which, and rows that hold nothing."""
    p, rng = small(3), np.random.default_rng(0)

    def same(L, S, M, F1, F2):
        result = irpca.solve(M, F1, F2, rank=2)
        scale = np.abs(L).max()
        np.testing.assert_allclose(result.L.dense(), L, rtol=0, atol=1e-10 * scale)
        np.testing.assert_allclose(result.S.toarray(), S, rtol=0, atol=1e-10 * scale)
        return result

    for c in (1e-6, 1e6):
        same(c * p.L, c * p.S, c * p.M, p.F1, p.F2)
    i, j = rng.permutation(150), rng.permutation(120)
    same(p.L[i][:, j], p.S[i][:, j], p.M[i][:, j], p.F1[i], p.F2[j])
    A = rng.standard_normal((6, 6)) + 3 * np.eye(6)
    np.testing.assert_allclose(A @ same(p.L, p.S, p.M, p.F1 @ A, p.F2).W, p.W, atol=1e-6)
    same(p.L.T, p.S.T, p.M.T, p.F2, p.F1)
    nothing = np.zeros(120)
    same(*(np.vstack([B, nothing]) for B in (p.L, p.S, p.M)), np.vstack([p.F1, np.zeros(6)]), p.F2)


def test_gross_errors_of_all_sizes_are_no_noise():
    """Those of a millionth of L, too: an exact fit of the others must not be given up for them."""
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((200, 8)), rng.standard_normal((160, 8))
    L = F1[:, :3] @ F2[:, :3].T
    S = np.where(rng.random(L.shape) < 0.05, 10 ** rng.uniform(-5, 1, L.shape), 0.0)
    result = irpca.solve(L + S, F1, F2, rank=3)
    assert result.noise == 0
    assert np.linalg.norm(result.L.dense() - L) <= 1e-13 * np.linalg.norm(L)
    np.testing.assert_array_equal(result.S.toarray() != 0, S != 0)


def test_a_fit_with_almost_as_many_coefficients_as_entries():
    """Errors spread over all 150² coefficients; few components of the core stand out, and only those are fitted."""
    problem = make_problem(300, 300, 150, 150, rank=5, corruption=0.3, features="conditioned")
    result = irpca.solve(problem.M, problem.F1, problem.F2, random_state=3)
    assert problem.relative_error(result.L) <= 1e-10
    assert result.rank == 5 and result.usable == "usable"


def test_noise_in_single_precision_is_not_taken_for_rounding():
    """Noise of a hundredth of L is within a thousand times the rounding of float32: two blocks show it."""
    rng = np.random.default_rng(0)
    problem = make_problem(1500, 1200, d1=16, d2=12, rank=4, corruption=0.1, random_state=1)
    M = problem.M + 0.01 * problem.L.std() * rng.standard_normal(problem.M.shape)
    result = irpca.solve(M.astype(np.float32), problem.F1, problem.F2)
    assert result.history.stage.count("looking for an exact fit") <= 9
    assert result.rank == 4 and result.usable == "usable"


def test_small_gross_errors_are_no_rounding_in_single_precision():
    """Some are within a thousand times the rounding of float32; the threshold is that of rounding all the same."""
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((2000, 12)), rng.standard_normal((1500, 10))
    L = F1 @ rng.standard_normal((12, 3)) @ rng.standard_normal((3, 10)) @ F2.T
    gross = np.where(rng.random(L.shape) < 0.1, 3 * L.std() * rng.standard_normal(L.shape), 0.0)
    result = irpca.solve((L + gross).astype(np.float32), F1, F2)
    assert result.noise == 0 and result.rank == 3
    large = np.abs(gross) > 1e-3 * L.std()
    found = result.S.toarray() != 0
    assert not (found & (gross == 0)).any()
    assert found[large].all() and large.sum() > 0.998 * np.count_nonzero(gross)


def test_an_exact_fit_with_features_of_one_side_reads_all_of_M_once(monkeypatch):
    """Some lines of that side and all of the other determine L; M is too large here to be held in memory."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1 << 15))
    problem = make_problem(4000, 60, 8, 6, rank=2, corruption=0.1)
    for M, F1, F2 in ((problem.M, problem.F1, None), (problem.M.T, None, problem.F1)):
        result = irpca.solve(M, F1, F2, rank=2)
        assert result.noise == 0 and result.reads < 1.5
        assert problem.relative_error(result.L if F2 is None else result.L.T) < 1e-13


def test_to_know_the_noise_costs_neither_reads_nor_accuracy(monkeypatch):
    """M is too large here to be held in memory."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1 << 15))
    problem = make_problem(1500, 1200, 8, 6, rank=2, corruption=0.1, noise=1e-3)
    found = irpca.solve(problem.M, problem.F1, problem.F2, rank=2)
    given = irpca.solve(problem.M, problem.F1, problem.F2, rank=2, noise=1e-3)
    assert given.noise == 1e-3 and given.reads <= found.reads < 3.4
    assert problem.relative_error(given.L) <= 1.05 * problem.relative_error(found.L)


def test_the_textbook_of_robust_pca():
    """Candès et al. (2011), Table 1, at a smaller size: rank n / 20, errors of ±1, no features."""
    rng = np.random.default_rng(0)
    L = rng.standard_normal((300, 15)) @ rng.standard_normal((15, 300)) / 300
    M = L + np.where(rng.random(L.shape) < 0.1, rng.choice([-1.0, 1.0], L.shape), 0)
    result = irpca.solve(M)
    assert np.linalg.norm(result.L.dense() - L) <= 1e-12 * np.linalg.norm(L)
    assert result.rank == 15 and result.usable == "usable"


def test_more_components_than_are_offered_at_first():
    """Sha, Shi and Yan (2021), with rank n / 10: a tenth of the cells replaced, noise on all of them."""
    rng = np.random.default_rng(1)
    L = rng.standard_normal((220, 22)) @ rng.standard_normal((22, 220))
    wrong, size = rng.random(L.shape) < 0.1, 3 * np.abs(L).mean()
    M = np.where(wrong, rng.uniform(-size, size, L.shape), L) + 0.05 * rng.standard_normal(L.shape)
    result = irpca.solve(M)
    oracle = 0.05 * np.sqrt(22 * (440 - 22) / 0.9)  # of an unbiased fit to the clean cells
    assert np.linalg.norm(result.L.dense() - L) <= 1.3 * oracle
    assert result.rank == 22 and result.usable == "usable"


def test_a_table_of_eight_lines():
    rng = np.random.default_rng(0)
    L = 5 + rng.standard_normal((8, 2)) @ rng.standard_normal((2, 4000))
    wrong = rng.random(L.shape) < 0.05
    M = L + np.where(wrong, rng.choice([-1, 1], L.shape) * rng.uniform(3, 8, L.shape), 0)
    result = irpca.solve(M)
    named = {j for doubt in result.doubts for j in doubt.columns}
    off = np.flatnonzero(np.abs(result.L.dense() - L).max(axis=0) > 1e-6)
    assert len(off) <= 40 and set(off.tolist()) <= named


def test_float32_around_a_million_without_noise():
    """The format holds steps of a sixteenth there: none of these is an error."""
    rng = np.random.default_rng(0)
    F1, F2 = (np.column_stack([np.ones(n), rng.standard_normal((n, 4))]) for n in (120, 90))
    L = 1e6 + F1 @ (rng.standard_normal((5, 2)) @ rng.standard_normal((2, 5))) @ F2.T
    wrong = rng.random(L.shape) < 0.08
    for features in ((F1, F2), (F1, None), (None, None)):
        result = irpca.solve((L + 20 * wrong).astype(np.float32), *features)
        np.testing.assert_array_equal(result.S.toarray() != 0, wrong)


def test_lines_without_entries_are_no_unknowns():
    """Of a table of rank 1 only a corner is observed; its other lines would be more unknowns than there are cells."""
    rng = np.random.default_rng(0)
    M = np.full((600, 400), np.nan)
    M[:30, :30] = np.outer(1 + rng.random(30), 1 + rng.random(30))
    result = irpca.solve(M)
    np.testing.assert_allclose(result.L.part(np.arange(30), np.arange(30)).dense(), M[:30, :30], rtol=1e-3)
