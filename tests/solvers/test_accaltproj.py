"""Accelerated alternating projections: iterate by iterate against the method typed literally, and recovery."""

import numpy as np
import pytest
import transcriptions
from solvers.field import conditioned, distance, first_iterates, gaussian, recovers, start_exactly

import irpca
from irpca.solvers import accaltproj


@pytest.mark.parametrize(
    ("shape", "make", "corruption"),
    [((50, 50), gaussian, 0.5), ((60, 40), conditioned, 0.1), ((40, 60), gaussian, 0.1)],
)
def test_iterates_are_those_of_the_transcription(monkeypatch, shape, make, corruption):
    """Also where it fails, and where the authors' own factors are not used."""
    start_exactly(monkeypatch, accaltproj)
    problem = make(*shape, corruption=corruption)
    mine = first_iterates(accaltproj, problem.M, 3, 16, beta=0.06, beta_init=0.2, decay=0.6)
    theirs = transcriptions.accaltproj(problem.M, 3, 0.06, 0.2, 0.6, T=15)
    for state, (L, S, zeta) in zip(mine, theirs, strict=True):
        assert distance(state.L.dense(), L) <= 1e-8
        assert state.zeta == pytest.approx(zeta, rel=1e-8)
        np.testing.assert_array_equal(np.abs(problem.M - state.L.dense()) > state.zeta, S != 0)
    assert theirs[-1][1].any()


def test_the_defaults(monkeypatch):
    start_exactly(monkeypatch, accaltproj)
    problem = gaussian(60, 40)
    beta = 0.5 * (60 * 40) ** -0.25
    mine = first_iterates(accaltproj, problem.M, 3, 12)
    theirs = transcriptions.accaltproj(problem.M, 3, beta, 2 * beta, 0.7, T=11)
    assert max(distance(state.L.dense(), L) for state, (L, _, _) in zip(mine, theirs, strict=True)) <= 1e-8
    (choice,) = mine[-1].choices
    assert (choice.name, choice.value) == ("beta", pytest.approx(beta, rel=1e-12))


def test_a_slower_threshold_survives_more():
    problem = gaussian(200, 200, corruption=0.5)
    assert problem.relative_error(irpca.solve(problem.M, rank=3, solver="accaltproj").L) > 1e-3
    result = irpca.solve(problem.M, rank=3, solver="accaltproj", decay=0.95, max_iter=500)
    recovers(problem, result, error=1e-7)
