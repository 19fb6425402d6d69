"""The exact fit, step by step: when a fit counts as exact, one step of least squares, lines that a sample misses."""

from itertools import pairwise

import numpy as np
import pytest

from irpca import constants
from irpca.datasets import make_problem
from irpca.engines import MemoryEngine
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.sampling import Sample, whole
from irpca.solvers.exact import (
    Exactness,
    _high_breakdown,
    _largest_rounding,
    _most,
    _uncovered,
    exactness,
    least_squares,
    missed_lines,
    trimmed_fits,
)
from irpca.threshold import rounding_floor

N = 1000


def judged(off, entries=N, unknowns=0, L=None):
    """The verdict on an L that misses sampled entries by so much, in units of rounding."""
    rng = np.random.default_rng(0)
    column = 1 + rng.random(len(off)) if L is None else L
    low_rank = LowRank.from_product(column[:, None], np.ones((1, 1)))
    floor = rounding_floor(np.dtype(float), column.max())
    rows = np.arange(len(off))
    return exactness(Sample(rows, 0 * rows, column + off * floor), low_rank, entries, unknowns), floor


def first(n, of=N, far=1e9):
    """The first n are met exactly, the others are far off, each by its own."""
    return np.where(np.arange(of) < n, 0.0, far * (1 + np.arange(of)))


def test_a_fit_to_rounding_is_exact():
    found, floor = judged(first(N))
    assert found.zeta == pytest.approx(floor) and found.clean == 1.0
    assert found.score == pytest.approx(np.log(floor))


@pytest.mark.parametrize(
    ("clean", "of", "unknowns", "exact"),
    [
        (31, N, 0, True),  # three of a hundred
        (29, N, 0, False),
        (301, N, 100, True),  # three for every unknown
        (299, N, 100, False),
        (20, 100, 0, True),  # twenty
        (19, 100, 0, False),
    ],
)
def test_how_many_entries_an_exact_fit_meets(clean, of, unknowns, exact):
    found, _ = judged(first(clean, of), unknowns=unknowns)
    assert (found.zeta is not None) == exact
    assert found.clean == clean / of


@pytest.mark.parametrize(("off", "exact"), [(0.95, True), (1.05, False)])
def test_most_residuals_of_an_exact_fit_are_rounding(off, exact):
    found, _ = judged(off * np.where(np.arange(N) < 600, 1.0, 0.1) * (-1) ** np.arange(N))
    assert (found.zeta is not None) == exact


@pytest.mark.parametrize(("spread", "exact"), [(2e-11, True), (1e-11, False)])
def test_an_L_no_larger_than_rounding_is_not_exact(spread, exact):
    """Rounding is 1.4e-14 of L here; the spread of L must be a thousand times as large."""
    assert (
        judged(first(N), L=1 + spread * np.tile([-1.0, 1.0], N // 2) * np.linspace(0.9, 1.1, N))[0].zeta is not None
    ) == exact


def test_gross_errors_within_the_margin_are_not_rounding():
    """A tenth is met exactly, the others are off by up to 900 times rounding, evenly: noise, that reaches down to 0."""
    off = np.r_[np.zeros(100), np.linspace(0, 900, 901)[1:]]
    found, _ = judged(off)
    assert found.zeta is None
    assert found.clean == pytest.approx(0.1, abs=0.005)
    found, floor = judged(np.r_[np.linspace(0, 2, 900), np.linspace(0, 3000, 101)[1:]])
    assert found.zeta is None  # the median is not rounding
    found, floor = judged(np.r_[np.linspace(0, 1.5, 900), np.linspace(0, 3000, 101)[1:]])
    assert found.zeta == pytest.approx(8 * 1.5 * floor, rel=0.01)  # ... of which a few are 30 times as large


@pytest.mark.parametrize("gross", [0, 200])
def test_rounding_is_told_from_small_gross_errors(gross):
    close = np.r_[np.linspace(0, 1, 1000), np.linspace(0, 1000, gross + 1)[1:]]
    assert _largest_rounding(close, 1000.0) == pytest.approx(0.999, abs=0.0011)
    assert _largest_rounding(np.zeros(10), 0.0) == 0.0


def problem(n1=90, n2=70, d=12, rank=2, seed=0):
    rng = np.random.default_rng(seed)
    F1, F2 = Features.of(rng.standard_normal((n1, d)), n1), Features.of(rng.standard_normal((n2, d)), n2)
    C = 30 * rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d))
    return F1, F2, LowRank.from_core(F1.Q, C, F2.Q, rank)


def test_one_step_is_least_squares_on_what_is_kept():
    """Against the dense solution for the core, of full rank; entries beyond zeta are left out."""
    F1, F2, _ = problem(30, 25, 4)
    rng = np.random.default_rng(1)
    M = rng.standard_normal((30, 25))
    M[rng.random(M.shape) < 0.1] += 50.0
    block = whole(MemoryEngine(M), F1, F2)
    found, moved, trim = least_squares(block, LowRank.zero(M.shape), 10.0, 4)
    kept = np.abs(M).ravel() <= 10
    best, *_ = np.linalg.lstsq(np.kron(block.Q1, block.Q2)[kept], M.ravel()[kept], rcond=None)
    np.testing.assert_allclose(found.dense().ravel(), np.kron(block.Q1, block.Q2) @ best, atol=0.03)
    assert moved == 1.0 and trim.kept == kept.sum()
    again, moved, _ = least_squares(block, found, 10.0, 4)
    assert moved == pytest.approx(
        np.linalg.norm(again.dense() - found.dense()) / np.linalg.norm(again.dense()), rel=1e-6
    )
    assert moved < 0.05


def test_a_short_step_keeps_to_the_rank_and_converges_quadratically():
    F1, F2, L = problem()
    block = whole(MemoryEngine(L.dense()), F1, F2)
    errors = []
    near = L
    rng = np.random.default_rng(2)
    left = block.Q1 @ (block.Q1.T @ rng.standard_normal(L.left.shape))
    near = LowRank.from_product(L.left + 1e-3 * left, L.right @ L.core.T)
    for _ in range(3):
        errors.append(np.linalg.norm(near.dense() - L.dense()) / np.linalg.norm(L.core))
        near, moved, _ = least_squares(block, near, np.inf, 2)
        assert near.rank == 2
        assert moved == pytest.approx(errors[-1], rel=0.05) or moved < 1e-6
    assert errors[1] < 10 * errors[0] ** 2 and errors[2] < 1e-10


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_trimmed_least_squares_finds_the_core_among_gross_errors(share):
    F1, F2, L = problem(200, 160, 8)
    rng = np.random.default_rng(3)
    M = L.dense() + np.where(rng.random(L.shape) < share, rng.uniform(1, 9, L.shape), 0.0)
    block = whole(MemoryEngine(M), F1, F2)
    sample = Sample.draw(block.engine, 4000, rng)
    found, zeta = _high_breakdown(block, sample, 2, 0.3 if share < 0.3 else 0.05, 8.0)
    assert np.linalg.norm(found.dense() - L.dense()) <= 1e-12 * np.linalg.norm(L.dense())
    assert zeta < 1e-9


def indicators(kept):
    """Two groups of rows and of columns, 50 lines each; of the entries of one corner a share is kept."""
    groups = np.repeat(np.eye(2), 50, axis=0)
    M = np.ones((100, 100))
    M[:50, :50] = np.where(np.arange(2500).reshape(50, 50) < 2500 * kept, 1.0, 9.0)
    F = Features.of(groups, 100)
    return whole(MemoryEngine(M), F, F)


@pytest.mark.parametrize(("kept", "uncovered"), [(0.18, True), (0.22, False)])
def test_a_coefficient_whose_entries_were_trimmed(kept, uncovered):
    assert _uncovered(indicators(kept), LowRank.zero((100, 100)), 2.0) == uncovered


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("wrong", "clean", "missed"), [(0.85, 1.0, True), (0.6, 1.0, False), (0.85, 0.2, False)])
def test_lines_of_high_leverage_are_looked_at(axis, wrong, clean, missed):
    """Less than a quarter of the usual share of their entries is met."""
    rng = np.random.default_rng(0)
    rare = (np.arange(3000) < 4)[:, None] * rng.standard_normal((3000, 1))
    F = Features.of(np.hstack([rare, rng.standard_normal((3000, 2))]), 3000)
    assert F.coherent
    other = Features.of(rng.standard_normal((400, 3)), 400)
    M = np.zeros((3000, 400))
    M[:4] = np.arange(400) < wrong * 400
    exact, L = Exactness(1e-9, clean, 0.0), LowRank.zero(M.shape)
    if axis == 0:
        assert missed_lines(MemoryEngine(M), F, other, L, exact, rng) == missed
    else:
        L = LowRank.zero(M.T.shape)
        assert missed_lines(MemoryEngine(np.ascontiguousarray(M.T)), other, F, L, exact, rng) == missed


@pytest.mark.parametrize(
    ("large", "most"),
    [(1, 2), (5, 10), (6, 20), (0, 20)],  # of twenty; where more than a quarter stand out, the others may be no errors
)
def test_components_that_stand_out_of_errors(large, most):
    sizes = np.r_[np.full(large, 2.9), np.full(20 - large, 1.0)]
    assert _most(LowRank(np.eye(30, 20), np.diag(sizes), np.eye(25, 20))) == most


@pytest.mark.parametrize("rank", [5, None])
@pytest.mark.parametrize("seed", range(3))
def test_a_fit_that_fails_on_a_small_block_is_tried_on_larger_ones(seed, rank):
    """Four fifths of the entries are wrong: no start fits the first blocks exactly, but errors decrease with size."""
    problem = make_problem(1000, 1000, d1=20, d2=20, rank=5, corruption=0.8, random_state=seed)
    engine, rng = MemoryEngine(problem.M), np.random.default_rng(seed)
    F1, F2 = Features.of(problem.F1, 1000), Features.of(problem.F2, 1000)
    found = list(trimmed_fits(engine, F1, F2, rank, Sample.draw(engine, 8000, rng), rng, np.random.default_rng(1)))
    first = len(constants.TRIM_STARTS)  # after one on the small block, the last on a larger one
    assert found[first].exact.clean < constants.MIN_EXACT_SHARE
    assert found[-1].block.engine.n_observed > found[first].block.engine.n_observed
    assert problem.relative_error(found[-1].L) < 1e-12


@pytest.mark.parametrize(("noise", "fits"), [(0.0, 1), (0.1, 2 * len(constants.TRIM_STARTS))])
def test_larger_blocks_are_tried_only_for_an_exact_fit(noise, fits):
    """With noise, what is left is as large on the second block as on the first; there is room for a third."""
    F1, F2, L = problem(700, 600, 4)
    rng = np.random.default_rng(0)
    M = L.dense() + noise * rng.standard_normal(L.shape) + 9.0 * (rng.random(L.shape) < 0.2)
    sample = Sample.draw(MemoryEngine(M), 8000, rng)
    found = list(trimmed_fits(MemoryEngine(M), F1, F2, 2, sample, rng, np.random.default_rng(1)))
    assert len(found) == fits
    assert (found[-1].exact.zeta is not None) == (noise == 0)
    assert all(b.exact.score <= a.exact.score for a, b in pairwise(found))
    error = np.linalg.norm(found[-1].L.dense() - L.dense()) / np.linalg.norm(L.dense())
    assert error <= (1e-12 if noise == 0 else 0.2)
