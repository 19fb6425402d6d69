"""Alternating projections: recovery, and the fixed point of the method as it is printed."""

import numpy as np
import pytest
import transcriptions
from solvers.field import conditioned, distance, gaussian, recovers

import irpca
from irpca import Status


def test_a_slower_threshold_survives_more():
    problem = gaussian(200, 200, corruption=0.4)
    assert irpca.solve(problem.M, rank=3, solver="altproj").status is Status.SATURATED
    recovers(problem, irpca.solve(problem.M, rank=3, solver="altproj", decay=0.95, max_iter=500), error=1e-7)


def test_each_rank_has_its_stage():
    """The largest singular value is found first, then those below it: the rank of L grows by one a stage."""
    ranks = []
    irpca.solve(
        conditioned(200, 160).M, rank=3, solver="altproj", callbacks=lambda state, _: ranks.append(state.L.rank)
    )
    assert set(ranks) == {1, 2, 3} and ranks == sorted(ranks)


def test_the_answer_of_the_transcription():
    problem = conditioned(120, 90, corruption=0.05)
    beta = 0.5 * (120 * 90) ** -0.25
    result = irpca.solve(problem.M, rank=3, solver="altproj", beta=beta)
    L, S, _ = transcriptions.altproj(problem.M, 3, beta, T=40)[-1]
    assert distance(result.L.dense(), L) <= 1e-9
    np.testing.assert_array_equal(S[problem.corrupted] != 0, True)


def test_under_noise_the_answer_is_a_fixed_point_too():
    """σ_{k+1} is that of the noise then, and the threshold in proportion to it."""
    problem = conditioned(200, 160, corruption=0.05, noise=1e-3)
    beta = 2 * (200 * 160) ** -0.25
    result = irpca.solve(problem.M, rank=3, solver="altproj", beta=beta)
    assert result.status is Status.CONVERGED
    L = result.L.dense()
    S = transcriptions.hard(problem.M - L, result.zeta)
    assert distance(transcriptions.best(problem.M - S, 3), L) <= 1e-8
    sigma = np.linalg.svd(problem.M - S, compute_uv=False)
    assert result.zeta == pytest.approx(beta * sigma[3], rel=0.12)  # the rest of 2⁻ᵗ, and σ to a per cent
    noise_in_L = np.linalg.norm(transcriptions.best(problem.L + problem.N, 3) - problem.L)
    assert np.linalg.norm(L - problem.L) <= 1.2 * noise_in_L
    assert (result.S.toarray() != 0)[problem.corrupted].all()


def test_the_default_beta_is_told():
    problem = gaussian(100, 80, corruption=0.05)
    (choice,) = irpca.solve(problem.M, rank=3, solver="altproj").choices
    assert (choice.name, choice.value) == ("beta", pytest.approx(0.5 * (100 * 80) ** -0.25, rel=1e-12))
    assert irpca.solve(problem.M, rank=3, solver="altproj", beta=0.05).choices == ()


def test_a_rank_that_is_too_high_costs_only_time():
    problem = conditioned(200, 160, corruption=0.05)
    result = irpca.solve(problem.M, rank=9, solver="altproj")
    assert result.status is Status.CONVERGED
    assert problem.relative_error(result.L) <= 1e-10
    np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted)
