"""Iterated robust CUR: against the method typed literally, recovery, and how little of M it reads."""

import numpy as np
import pytest
import transcriptions
from solvers.field import conditioned, distance, first_iterates, gaussian, recovers

import irpca
from irpca.problem import Problem as Asked
from irpca.solvers import ircur


class Told:
    """A random generator that draws what it is told: these rows, then these columns."""

    def __init__(self, rows, cols):
        self.draws = [rows, cols]
        self.asked = []

    def integers(self, low, high, size):
        self.asked.append((low, high, size))
        return self.draws.pop(0)


@pytest.mark.parametrize(
    ("shape", "make", "corruption"),
    [((80, 80), gaussian, 0.4), ((100, 60), conditioned, 0.05), ((60, 100), gaussian, 0.05)],
)
def test_iterates_are_those_of_the_transcription(monkeypatch, shape, make, corruption):
    problem = make(*shape, corruption=corruption)
    rng = np.random.default_rng(1)
    rows, cols = (np.sort(rng.choice(n, 20, replace=False)) for n in shape)
    told = Told(np.repeat(rows[::-1], 2), cols)  # twice, and out of order: each is taken once
    monkeypatch.setattr(Asked, "generator", lambda self: told)
    mine = first_iterates(ircur, problem.M, 3, 20, decay=0.6, resample=False)
    largest = max(np.abs(problem.M[rows]).max(), np.abs(problem.M[:, cols]).max())
    theirs = transcriptions.ircur(problem.M, 3, rows, cols, T=20, decay=0.6, zeta_0=largest / 0.6)
    for state, L in zip(mine, theirs, strict=True):
        assert distance(state.L.dense(), L) <= 1e-8
    assert told.asked == [(0, n, int(np.ceil(4 * 3 * np.log(n)))) for n in shape]


def test_recovers_from_the_same_rows_and_columns_all_along():
    problem = gaussian(300, 300, corruption=0.05)
    recovers(problem, irpca.solve(problem.M, rank=3, solver="ircur", resample=False, sampling=6.0))


def test_L_alone_is_found_from_a_part_of_M():
    problem = gaussian(400, 400, corruption=0.05)
    result = irpca.solve(problem.M, rank=3, solver="ircur", resample=False, sparse=False)
    assert result.converged and problem.relative_error(result.L) <= 1e-8
    assert result.S is None
    drawn = 2 * np.ceil(4 * 3 * np.log(400)) / 400
    assert result.reads <= drawn < 0.5
    assert result.corruption == pytest.approx(0.05, abs=0.01)  # as the sampled rows and columns tell it


def test_a_rank_that_the_crossing_does_not_have_is_cut():
    """One over a singular value of rounding size would blow up."""
    problem = gaussian(100, 80, rank=2, corruption=0.0)
    result = irpca.solve(problem.L, rank=5, solver="ircur")
    assert result.rank == 2
    assert problem.relative_error(result.L) <= 1e-10


def test_more_lines_than_there_are_means_all_of_them():
    problem = gaussian(60, 50)
    result = irpca.solve(problem.M, rank=3, solver="ircur", sampling=1e9, max_iter=3, sparse=False)
    assert result.reads == pytest.approx(6)  # rows and columns, both of them all of M, three times
