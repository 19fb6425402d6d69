"""Gradient descent on the factors: iterate by iterate against the method typed literally, and recovery."""

import numpy as np
import pytest
import transcriptions
from solvers.field import densest, first_iterates, gaussian, recovers, same_steps, start_exactly

import irpca
from irpca import Status
from irpca.solvers import rpca_gd


@pytest.mark.parametrize(
    ("shape", "corruption", "inflation", "step_size"),
    [((80, 80), 0.0, 1.5, 0.5), ((100, 60), 0.05, 1.0, 0.3), ((60, 100), 0.4, 1.5, 0.5)],
)
def test_iterates_are_those_of_the_transcription(monkeypatch, shape, corruption, inflation, step_size):
    start_exactly(monkeypatch)
    problem = gaussian(*shape, corruption=0.05)
    mine = first_iterates(rpca_gd, problem.M, 3, 15, corruption=corruption, inflation=inflation, step_size=step_size)
    theirs = transcriptions.rpca_gd(problem.M, 3, corruption, T=15, inflation=inflation, step=step_size)
    same_steps(mine, theirs)


def test_a_share_is_counted_as_it_was_meant():
    """29 of 100 is a share of 0.29, and 0.29 · 100 is less than 29: with room for 28, one error a row would remain."""
    problem = gaussian(200, 100, rank=1, corruption=0.29, even=True)
    assert int(densest(problem) * 100) == 28
    result = irpca.solve(
        problem.M, rank=1, solver="rpca_gd", corruption=densest(problem), inflation=1.0, max_iter=1000, step_size=0.7
    )
    recovers(problem, result)


@pytest.mark.parametrize("solver", ["rpca_gd", "scaledgd"])
@pytest.mark.parametrize(("step_size", "dtype"), [(5.0, np.float64), (1e300, np.float32)])
def test_too_long_a_step_is_told(solver, step_size, dtype):
    M = gaussian(60, 50, corruption=0.05).M.astype(dtype)
    result = irpca.solve(M, rank=3, solver=solver, corruption=0.1, step_size=step_size)
    assert result.status is Status.DIVERGED
    assert result.S is None and np.isfinite(result.L.dense()).all()


@pytest.mark.parametrize(("solver", "scale"), [("rpca_gd", 1e-30), ("scaledgd", 1e30)])
def test_single_precision_that_cannot_be_squared_is_refused(solver, scale):
    M = (scale * np.random.default_rng(0).standard_normal((60, 50))).astype(np.float32)
    with pytest.raises(ValueError, match="to square in float32; rescale M"):
        irpca.solve(M, rank=2, solver=solver, corruption=0.1)
