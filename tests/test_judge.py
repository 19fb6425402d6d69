"""What is chosen from the data, with its reason, and the verdicts on a fit."""

from dataclasses import replace

import numpy as np
import pytest

from irpca.datasets import make_problem
from irpca.engines import CpuEngine
from irpca.judge import QUICK, THOROUGH, Judge, choose_rank
from irpca.lowrank import LowRank
from irpca.threshold import Level, rounding_floor

SIGMA = 0.01


def judge_of(M, noise=None, seed=0):
    return Judge(CpuEngine(M), noise, np.random.default_rng(seed))


def planted(noise=SIGMA, corruption=0.2, n1=600, n2=500, dtype=float, seed=0):
    """A matrix of rank 2 and unit size, with noise and outliers of 1 to 5; and its L."""
    rng = np.random.default_rng(seed)
    L = LowRank.from_product(rng.standard_normal((n1, 2)), rng.standard_normal((n2, 2)))
    M = L.dense() + noise * rng.standard_normal((n1, n2))
    bad = rng.random((n1, n2)) < corruption
    M[bad] += rng.uniform(1, 5, bad.sum()) * rng.choice([-1, 1], bad.sum())
    return M.astype(dtype), L


# The rank


@pytest.mark.parametrize("shape", [(3, 3), (20, 20), (100, 5), (300, 20)])
@pytest.mark.parametrize("kept", [1.0, 0.3])
def test_noise_alone_has_no_rank(shape, kept):
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(100):
        s = np.linalg.svd(SIGMA / np.sqrt(kept) * rng.standard_normal(shape), compute_uv=False)
        choice = choose_rank(s, shape, SIGMA, kept)
        assert choice.value == 1
        found += "no singular value stands out" not in choice.reason
    assert found <= 2


def test_the_edge_of_noise_is_not_far_above_noise():
    """A direction twice as strong as the noise edge is always seen, one a tenth of it never."""
    rng = np.random.default_rng(0)
    edge = (np.sqrt(30) + np.sqrt(20)) * SIGMA
    for strength, rank in ((2.0, 3), (0.1, 2)):
        for _ in range(20):
            C = SIGMA * rng.standard_normal((30, 20))
            C[:3, :3] += np.diag([100.0, 50.0, strength]) * edge
            assert choose_rank(np.linalg.svd(C, compute_uv=False), C.shape, SIGMA, 1.0).value == rank


@pytest.mark.parametrize("rank", [1, 2, 5, 9])
def test_planted_ranks_are_found_through_missing_entries(rank):
    """Least squares on a share p of the entries: noise in the core grows by 1/√p."""
    rng = np.random.default_rng(rank)
    Q1, Q2 = (np.linalg.qr(rng.standard_normal((n, 10)))[0] for n in (80, 60))
    left, right = (np.linalg.qr(rng.standard_normal((10, rank)))[0] for _ in range(2))
    C = left @ np.diag(np.geomspace(1, 0.3, rank)) @ right.T
    M = Q1 @ C @ Q2.T + SIGMA * rng.standard_normal((80, 60))
    kept = rng.random(M.shape) < 0.4
    design = np.kron(Q1, Q2)[kept.ravel()]
    estimated = np.linalg.lstsq(design, M[kept], rcond=None)[0].reshape(10, 10)
    choice = choose_rank(np.linalg.svd(estimated, compute_uv=False), (10, 10), SIGMA, 0.4)
    assert (choice.name, choice.value) == ("rank", rank)


def test_each_rank_has_its_reason():
    edge = (2 + 3 + 1) * 0.5 / np.sqrt(0.25)
    none, some, all_of_them = (
        choose_rank(np.array(s), (4, 9), 0.5, 0.25) for s in ([5.9, 1, 1, 0], [8.0, 6.1, 1, 0], [9.0, 8, 7, 6.1])
    )
    assert edge == 6.0
    assert (none.value, some.value, all_of_them.value) == (1, 2, 4)
    assert none.reason == "no singular value stands out of the noise (edge 6); 1 is the least"
    assert some.reason == "singular value 2 is 6.1, the next 1; noise alone reaches 6"
    assert all_of_them.reason == "all 4 singular values stand out of the noise (edge 6)"


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_rank_does_not_mind_the_scale(scale):
    s = np.array([3.0, 1.0, 0.2, 0.05])
    assert choose_rank(scale * s, (6, 4), 0.03 * scale, 0.5).value == choose_rank(s, (6, 4), 0.03, 0.5).value == 2


# Levels


def test_a_judge_reads_little_of_M():
    M, _ = planted()
    judge = judge_of(M)
    assert len(judge.sample.values) == QUICK
    assert judge.engine.reads == pytest.approx(QUICK / M.size, rel=1e-12)
    assert judge.most == pytest.approx(np.sqrt(2 * np.log(M.size)), rel=1e-12)


@pytest.mark.parametrize("corruption", [0.0, 0.2, 0.7])
def test_the_level_of_the_true_L_is_what_was_planted(corruption):
    M, L = planted(corruption=corruption)
    found = judge_of(M).level(L)
    assert found.sigma == pytest.approx(SIGMA, rel=0.03)
    assert found.clean == pytest.approx(1 - corruption, rel=0.02)
    assert 3 * SIGMA < found.zeta < 7 * SIGMA


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_level_of_an_exact_fit_is_rounding(dtype):
    M, L = planted(noise=0.0, dtype=dtype)
    judge = judge_of(M)
    found = judge.level(L)
    assert found.exact
    assert found.zeta == found.floor == judge.floor(L)
    assert found.clean == pytest.approx(0.8, abs=0.01)
    sampled = np.abs(L.dense()[judge.sample.rows, judge.sample.cols]).max()
    assert judge.floor(L) == pytest.approx(rounding_floor(np.dtype(dtype), sampled), rel=1e-12)


def test_one_huge_outlier_does_not_raise_the_floor():
    M, L = planted(noise=0.0)
    before = judge_of(M).level(L).floor
    M[0] = 1e12
    assert judge_of(M).level(L).floor == before


def test_entries_that_lag_behind_rounding_are_waited_for():
    """One row in fifty at 1e-7 of the size of L: no gross errors, and no reason to stop either."""
    M, L = planted(noise=0.0)
    late = LowRank(L.left * np.where(np.arange(600) % 50, 1, 1 + 1e-7)[:, None], L.core, L.right)
    found = judge_of(M).level(late)
    assert not found.exact
    assert 1e-8 < found.zeta < 1e-5
    assert found.clean == pytest.approx(0.8, abs=0.01)


def test_residuals_of_a_fit_count_as_larger_by_what_was_fitted():
    M, L = planted()
    judge = judge_of(M)
    plain, fitted = judge.level(L), judge.level(L, unknowns=M.size // 4)
    assert fitted.sigma == pytest.approx(plain.sigma / np.sqrt(0.75), rel=1e-9)
    absurd = judge.level(L, unknowns=10 * M.size)
    assert absurd.sigma == pytest.approx(plain.sigma / np.sqrt(0.1), rel=1e-9)


def test_noise_that_is_given_is_believed():
    M, L = planted()
    found = judge_of(M, noise=2 * SIGMA).level(L)
    assert found.sigma == 2 * SIGMA


def test_clean_and_corrupted_are_distinct_unless_noise_has_long_tails():
    M, L = planted()
    assert judge_of(M).distinct(L)
    tailed = L.dense() + SIGMA * np.random.default_rng(1).standard_t(2, M.shape)
    assert not judge_of(tailed).distinct(L)
    assert judge_of(tailed, noise=SIGMA).distinct(L)  # who knows the noise knows what is normal


def test_the_score_falls_as_the_fit_improves():
    M, L = planted()
    judge = judge_of(M)
    assert judge.score(L) < judge.score(L.truncate(1)) < judge.score(LowRank.zero(M.shape))


# Coming to rest


def test_a_level_that_hardly_moves_stays_as_it_was():
    M, L = planted()
    judge = judge_of(M)
    found = judge.level(L)
    for factor in (0.96, 1.0, 1 / 0.96):
        before = replace(found, sigma=factor * found.sigma)
        now, steady = judge.updated(before, L)
        assert steady and now is before


def test_a_level_that_falls_is_followed():
    M, L = planted()
    judge = judge_of(M)
    found = judge.level(L)
    now, steady = judge.updated(replace(found, sigma=2 * found.sigma), L)
    assert not steady and now == found
    assert judge.rises == 5


def test_a_level_that_rises_is_followed_but_not_for_ever():
    M, L = planted()
    judge = judge_of(M)
    found = judge.level(L)
    before = replace(found, sigma=found.sigma / 2)
    for _ in range(5):
        now, steady = judge.updated(before, L)
        assert not steady and now == found
    now, steady = judge.updated(before, L)
    assert steady and now is before


def test_an_exact_level_is_steady():
    M, L = planted(noise=0.0)
    judge = judge_of(M)
    before = judge.level(L)
    assert judge.updated(before, L) == (before, True)


def test_a_level_of_a_fit_to_nothing_is_not_followed():
    M, L = planted()
    judge = judge_of(M)
    before = replace(judge.level(L), sigma=2 * SIGMA)
    clean = round(0.8 * M.size)
    assert judge.updated(before, L, unknowns=clean // 20)[1] is False
    now, steady = judge.updated(before, L, unknowns=clean // 5)
    assert steady and now is before


# The record


def test_at_rest_many_more_entries_are_looked_at():
    M, L = planted()
    judge = judge_of(M)
    now = judge.level(L)
    reads = judge.engine.reads
    moving = judge.state(L, now, step=0.1, trim=None, unknowns=100)
    assert judge.engine.reads == reads
    assert (moving.zeta, moving.noise) == (now.zeta, now.sigma)
    assert f"{QUICK} random entries" in moving.choices[-1].reason
    resting = judge.state(L, now, step=0.0, trim=None, unknowns=100)
    assert judge.engine.reads == pytest.approx(reads + THOROUGH / M.size, rel=1e-12)
    assert f"{THOROUGH} random entries" in resting.choices[-1].reason
    assert resting.noise == pytest.approx(SIGMA, rel=0.01)
    assert resting.noise != moving.noise
    assert resting.expected_corruption == pytest.approx(0.2, abs=0.005)


def test_a_small_matrix_is_looked_at_whole():
    M, L = planted(n1=60, n2=50)
    state = judge_of(M).state(L, judge_of(M).level(L), step=0.0, trim=None)
    assert "3000 random entries" in state.choices[-1].reason


def test_an_exact_fit_needs_no_further_look():
    M, L = planted(noise=0.0)
    judge = judge_of(M)
    reads = judge.engine.reads
    state = judge.state(L, judge.level(L), step=0.0, trim=None)
    assert judge.engine.reads == reads
    assert state.noise == 0.0
    assert state.choices[-1].reason.endswith("which is rounding")


def test_a_step_is_negligible_beside_the_statistical_error():
    M, L = planted()
    judge = judge_of(M)
    now = replace(judge.level(L), sigma=SIGMA, clean=0.5)
    state = judge.state(L, now, step=1.0, trim=None, unknowns=50)
    expected = 0.01 * SIGMA * np.sqrt(50 / 0.5) / np.linalg.norm(L.dense())
    assert state.tolerance == pytest.approx(expected, rel=1e-9)
    assert judge.state(L, now, step=1.0, trim=None, unknowns=0).tolerance <= 1e-14


def test_a_step_is_negligible_below_the_precision_of_M():
    M, L = planted(noise=0.0, dtype=np.float32)
    judge = judge_of(M)
    assert judge.state(L, judge.level(L), 1.0, None).tolerance == pytest.approx(10 * 2.0**-23, rel=1e-12)


def test_a_state_carries_what_it_is_given():
    M, L = planted()
    judge = judge_of(M)
    chosen = choose_rank(L.singular_values, (2, 2), SIGMA, 1.0)
    state = judge.state(L, judge.level(L), 0.1, None, (chosen,), "a failure", doubts=("a doubt",))
    assert [choice.name for choice in state.choices] == ["rank", "noise"]
    assert state.choices[0] is chosen
    assert state.choices[1].value == state.noise
    assert (state.failure, state.doubts, state.step, state.trim) == ("a failure", ("a doubt",), 0.1, None)


def test_each_noise_has_its_reason():
    M, L = planted()
    given, majority = judge_of(M, noise=SIGMA), judge_of(M)
    majority.majority = True

    def reason(judge):
        return judge.state(L, judge.level(L), 1.0, None).choices[-1].reason

    assert reason(given) == "as given"
    assert reason(majority).startswith("from the median of the residuals")
    assert reason(judge_of(M)).startswith("standard deviation of the core")


# Values that many entries share, and values that come in steps


def saturated(share=0.1):
    """Sensors that read 7 whatever there is, a tenth of all entries."""
    M, L = planted(noise=0.0, corruption=0.0)
    M[np.random.default_rng(1).random(M.shape) < share] = 7.0
    return M, L


def test_what_many_entries_share_is_no_evidence():
    M, L = saturated()
    judge = judge_of(M)
    np.testing.assert_array_equal(judge.atoms, [7.0])
    assert len(judge.drawn.values) == QUICK
    assert len(judge.sample.values) == np.count_nonzero(judge.drawn.values != 7.0) < QUICK
    assert judge.level(L).clean == 1.0
    constant = LowRank.from_product(np.full((600, 1), 7.0), np.ones((500, 1)))
    assert not judge.level(constant).exact  # although it meets a tenth of M


def test_what_many_entries_share_is_still_to_be_found_in_S():
    M, L = saturated()
    judge = judge_of(M)
    assert judge.state(L, judge.level(L), 0.0, None).expected_corruption == pytest.approx(0.1, abs=0.01)


def test_a_block_is_judged_by_what_tells():
    M, L = saturated()
    residuals = judge_of(M).residuals(M, L.dense())
    assert residuals.shape == (np.count_nonzero(M != 7.0),)
    assert residuals.max() <= 1e-13


def test_a_matrix_of_little_else_is_judged_whole():
    M = np.random.default_rng(0).standard_normal((8, 5))
    M.flat[:15] = 7.0
    judge = judge_of(M)
    assert len(judge.atoms) == 1 and len(judge.sample.values) == 40


def in_steps(step=0.5, noise=0.0, corruption=0.1):
    M, L = planted(noise, corruption)
    return step * np.round(M / step), L


def test_values_in_steps_are_blurred_by_half_a_step():
    M, L = in_steps()
    judge = judge_of(M)
    assert judge.resolution == pytest.approx(0.25, rel=1e-12)
    blur = judge.sample.values - judge.drawn.values
    assert np.abs(blur).max() <= 0.25
    assert blur.std() == pytest.approx(0.25 / np.sqrt(3), rel=0.02)
    assert not judge.level(L).exact


def test_the_blur_is_not_reported_as_noise():
    M, L = in_steps(noise=0.5)
    judge = judge_of(M)
    state = judge.state(L, judge.level(L), 0.0, None)
    # Rounding to steps of 0.5 adds a variance of 0.5²/12 to that of the noise; our blur as much again.
    assert state.noise == pytest.approx(np.sqrt(0.25 + 0.25 / 12), rel=0.03)
    assert state.choices[-1].value == state.noise
    assert state.choices[-1].reason.endswith("(values of M come in steps of 0.5)")


def test_noise_that_is_given_is_reported_as_given_even_in_steps():
    M, L = in_steps(noise=0.5)
    judge = judge_of(M, noise=0.5)
    assert judge.state(L, judge.level(L), 0.0, None).noise == 0.5


def test_an_L_that_meets_the_steps_exactly_needs_no_blur():
    rng = np.random.default_rng(0)
    U, V = rng.integers(-3, 4, (600, 2)).astype(float), rng.integers(-3, 4, (500, 2)).astype(float)
    M = np.where(rng.random((600, 500)) < 0.1, 50.0, U @ V.T)
    judge = judge_of(M)
    assert judge.resolution == 0.5
    found = judge.level(LowRank.from_product(U, V))
    assert judge.resolution == 0.0
    assert found.exact
    assert found.clean == pytest.approx(0.9, abs=0.01)


# Objections


def objection(judge, L, entries=10_000, unknowns=100, **seen):
    found = judge.level(L)
    return judge.objection(L, found, entries, unknowns, replace(found, **seen))


@pytest.mark.parametrize("noise", [0.0, SIGMA])
def test_nothing_is_to_be_said_against_the_true_L(noise):
    M, L = planted(noise)
    assert objection(judge_of(M), L) is None


def test_an_L_that_explains_nothing_is_told():
    M, L = planted()
    judge = judge_of(M)
    assert objection(judge, LowRank.zero(M.shape)).startswith("L explains nothing")
    rng = np.random.default_rng(5)
    stranger = LowRank.from_product(1e-3 * rng.standard_normal((600, 2)), rng.standard_normal((500, 2)))
    assert objection(judge, stranger).startswith("L explains nothing")
    assert "nothing" not in (objection(judge, L.truncate(1)) or "")


def test_too_few_clean_entries_are_told_with_their_number():
    M, L = planted()
    judge = judge_of(M)
    told = objection(judge, L, entries=1000, unknowns=300)
    assert told.startswith("too few clean entries: about 80.")
    assert "of 1000 for 300 unknowns" in told
    assert objection(judge, L, entries=1000, unknowns=250) is None


def test_few_entries_are_enough_if_all_are_clean():
    M, L = planted(corruption=0.0)
    assert objection(judge_of(M), L, entries=1000, unknowns=900) is None


def test_residuals_that_avoid_zero_are_told():
    M, L = planted(noise=0.0, corruption=0.0)
    rng = np.random.default_rng(1)
    M = M + rng.uniform(0.1, 0.2, M.shape) * rng.choice((-1, 1), M.shape)
    assert objection(judge_of(M), L).startswith("residuals do not crowd around zero")


@pytest.mark.parametrize("noise", [0.0, SIGMA])
def test_a_fit_that_holds_only_where_it_was_made_is_told(noise):
    M, L = planted()
    judge = judge_of(M)
    told = objection(judge, L, sigma=noise / 3)
    at_large = judge.level(L).sigma
    assert told == (
        f"the fit does not hold elsewhere: noise {noise / 3:.3g} where it was made, {at_large:.3g} at large"
    )
    assert objection(judge, L, sigma=SIGMA / 1.5) is None


def test_rounding_is_no_reason_to_object():
    M, L = planted(noise=0.0)
    judge = judge_of(M)
    floor = judge.floor(L)
    found, seen = Level(floor, 0.8, floor, floor), Level(0.0, 0.8, floor, floor)
    told = judge.objection(L, found, 10_000, 100, seen)
    assert told is None or "elsewhere" not in told


def test_a_judge_of_a_block_wise_problem_agrees_with_all_of_it(monkeypatch):
    """A sample says the same as every entry of M, to its own accuracy."""
    problem = make_problem(400, 300, d1=5, d2=4, rank=2, corruption=0.3, noise=1e-4, features="conditioned")
    L = LowRank.from_product(problem.F1 @ problem.W, problem.F2)
    sampled = judge_of(problem.M).level(L)
    monkeypatch.setattr("irpca.judge.QUICK", problem.M.size)
    whole = judge_of(problem.M).level(L)
    assert sampled.sigma == pytest.approx(whole.sigma, rel=0.03)
    assert sampled.clean == pytest.approx(whole.clean, rel=0.02)
    assert whole.sigma == pytest.approx(1e-4, rel=0.02)
