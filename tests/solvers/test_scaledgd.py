"""Scaled gradient descent: iterate by iterate against the method typed literally, and recovery."""

import numpy as np
import pytest
import transcriptions
from solvers.field import first_iterates, gaussian, recovers, same_steps, start_exactly

import irpca
from irpca import Status
from irpca.datasets import Problem
from irpca.solvers import scaledgd


def stretched(problem, condition):
    """The same problem with an L of another condition number, its entries as large as before."""
    U, _, Vt = np.linalg.svd(problem.L, full_matrices=False)
    rank = np.linalg.matrix_rank(problem.W)
    L = (U[:, :rank] * np.geomspace(1, 1 / condition, rank)) @ Vt[:rank]
    L *= np.linalg.norm(problem.L) / np.linalg.norm(L)
    return Problem(L + problem.S, problem.F1, problem.F2, problem.W, L, problem.S, problem.N)


@pytest.mark.parametrize(
    ("shape", "corruption", "step_size"),
    [((80, 80), 0.0, 0.9), ((100, 60), 0.05, 0.5), ((60, 100), 0.3, 0.9)],
)
def test_iterates_are_those_of_the_transcription(monkeypatch, shape, corruption, step_size):
    start_exactly(monkeypatch)
    problem = gaussian(*shape, corruption=0.05)
    mine = first_iterates(scaledgd, problem.M, 3, 15, corruption=corruption, step_size=step_size)
    theirs = transcriptions.scaledgd(problem.M, 3, corruption, T=15, step=step_size)
    same_steps(mine, theirs)


def test_the_condition_of_L_does_not_matter():
    problem = gaussian(200, 200, corruption=0.02, even=True)
    counts = []
    for condition in (1, 20):
        p = stretched(problem, condition)
        result = irpca.solve(p.M, rank=3, solver="scaledgd", corruption=0.02, max_iter=500)
        recovers(p, result)
        counts.append(result.n_iter)
    assert counts[1] <= 2 * counts[0]
    plain = irpca.solve(p.M, rank=3, solver="rpca_gd", corruption=0.02, max_iter=500)
    assert plain.status is Status.MAX_ITER and p.relative_error(plain.L) > 1e-3


def test_a_rank_that_is_too_high_gives_finite_numbers():
    problem = gaussian(60, 50, rank=2, corruption=0.0)
    result = irpca.solve(problem.L, rank=4, solver="scaledgd", corruption=0.0)
    assert problem.relative_error(result.L) <= 1e-8


def test_everything_corrupted_is_told():
    """The sparsifier takes all of M then, and nothing is left to start from."""
    result = irpca.solve(gaussian(60, 50).M, rank=3, solver="scaledgd", corruption=0.995)
    assert result.corruption > 0.99
    assert any("100% of the cells are outliers" in doubt.text for doubt in result.doubts)
