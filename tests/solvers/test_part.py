"""The part of M on which fits are compared: its lines, and how a fit to it becomes one to all of M."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from solvers.field import to_solve

from irpca import constants
from irpca.engines import MemoryEngine
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.problem import Problem
from irpca.solvers.part import Setup, lines_of_part
from irpca.solvers.race import Recipe
from irpca.solvers.trimmed import extend, sharpen

FREE = (False, False)


def of_shape(n1, n2, d=(None, None)):
    """A problem of which nothing is looked at but its shape and features."""
    rng = np.random.default_rng(0)
    F = (Features.of(None if k is None else rng.standard_normal((n, k)), n) for n, k in zip((n1, n2), d, strict=True))
    return Problem(SimpleNamespace(shape=(n1, n2)), *F, None, np.random.SeedSequence(7))


# Its lines


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((100, 1000), (100, 120)),
        ((1000, 100), (120, 100)),
        ((1000, 900), (110, 109)),  # as square as may be
        ((900, 1000), (109, 110)),
        ((60, 50), (60, 50)),
    ],
)
def test_of_the_shorter_side_as_many_lines_as_possible(shape, sizes):
    rows, cols = lines_of_part(of_shape(*shape), 20)
    assert (len(rows), len(cols)) == sizes
    assert (np.diff(rows) > 0).all() and (np.diff(cols) > 0).all() and rows.max() < shape[0] and cols.max() < shape[1]


def test_lines_for_every_feature_as_far_as_memory_allows(monkeypatch):
    many = of_shape(2000, 1500, d=(100, 100))
    assert tuple(map(len, lines_of_part(many, 20))) == (400, 400)
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=100_000))
    assert tuple(map(len, lines_of_part(many, 20))) == (110, 109)


# From the part to all of M, and back


@pytest.fixture
def small_part(monkeypatch):
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, race=1500))


def test_lines_outside_the_part_are_at_what_is_expected_of_lines(small_part):
    """Their noise is the usual one; lines of the part are as they were."""
    rng = np.random.default_rng(0)
    M = 5.0 + rng.standard_normal((90, 1)) @ rng.standard_normal((1, 60)) + 0.1 * rng.standard_normal((90, 60))
    part = Setup.of(to_solve(M), "auto", None, False).part(20, None)
    fit = part.table.fit(Recipe(FREE, few=True))
    whole = part.lift(fit)
    sides = (
        (whole.rows, fit.rows, whole.noise.rows, fit.noise.rows),
        (
            whole.cols,
            fit.cols,
            whole.noise.cols,
            fit.noise.cols,
        ),
    )
    for (side, on_part, scales, own), mine, n in zip(sides, part.table.lines, M.shape, strict=True):
        others = np.setdiff1d(np.arange(n), mine)
        assert len(others) > 10
        np.testing.assert_array_equal(side.mean[mine], on_part.mean)
        np.testing.assert_allclose(side.mean[others], side.expected[others], rtol=1e-12)
        np.testing.assert_array_equal(scales[mine], own)
        np.testing.assert_array_equal(scales[others], 1.0)


def test_a_fit_of_all_of_M_to_start_from(small_part):
    """In units of the columns of the part, and as wrong as its clean residuals, fewer than half of all."""
    rng = np.random.default_rng(0)
    units = np.repeat([0.1, 10.0], 30)
    U, V = 3 + rng.standard_normal((90, 1)), 3 + rng.standard_normal((60, 1))
    noise = 0.01 * rng.standard_normal((90, 60)) + np.where(
        rng.random((90, 60)) < 0.6, rng.uniform(-9, 9, (90, 60)), 0.0
    )
    problem = to_solve((U @ V.T + noise) * units)
    part = Setup.of(problem, "auto", None, False).part(20, LowRank.from_product(U, V * units[:, None]))
    rows, cols = part.table.lines
    L, wrong = part.table._start(part.table.values, Recipe(FREE, "trimmed"))
    own = units[cols] / problem.columns.unit[cols]
    np.testing.assert_allclose(L.dense(), (U @ V.T)[np.ix_(rows, cols)] * own, rtol=1e-10)
    assert 0.01 * own.min() <= wrong <= 0.04 * own.max()


@pytest.mark.parametrize(("broken", "found"), [(15, True), (25, False)])
def test_a_nearly_exact_fit_of_the_part_becomes_an_exact_one_of_all(broken, found):
    """Without features: the part by rows and columns in turn, then all other lines; a tenth of them may not fit."""
    rng = np.random.default_rng(9)
    U, V = rng.standard_normal((200, 2)), rng.standard_normal((150, 2))
    L = U @ V.T
    wrong = rng.uniform(0.5, 3, L.shape) * rng.choice([-1, 1], L.shape)
    M = L + np.where(rng.random(L.shape) < 0.2, wrong, 0.0)
    M[:broken] = rng.standard_normal((broken, 150))
    near = LowRank.from_product(U + 1e-5 * rng.standard_normal(U.shape), V)
    rows, cols = np.arange(100, 160), np.arange(0, 150, 3)
    on_part = sharpen(M[np.ix_(rows, cols)], near.part(rows, cols), 1e-3, M.dtype)
    assert np.abs(on_part.dense() - L[np.ix_(rows, cols)]).max() <= 1e-12
    whole = extend(MemoryEngine(M), (rows, cols), on_part, near, 1e-3, rng)
    assert (whole is not None) == found
    if whole is not None:
        assert np.abs(whole.dense() - L)[broken:].max() <= 1e-11
