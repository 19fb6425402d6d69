"""Trimmed least squares: the peak of the residuals, one step, when a fit counts as exact, how far it goes."""

import numpy as np
import pytest

import irpca
from irpca.engines import MemoryEngine
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.result import Status
from irpca.sample import Sample, rounding_floor
from irpca.solvers.blocks import Block, whole
from irpca.solvers.trimmed import (
    Descent,
    exactness,
    extend,
    find_peak,
    fit_rows,
    least_squares,
    sharpen,
)

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


def test_how_many_entries_an_exact_fit_meets():
    """Twenty, and two for each unknown."""
    for clean, unknowns, exact in ((25, 0, True), (15, 0, False), (250, 100, True), (150, 100, False)):
        found, _ = judged(first(clean), unknowns=unknowns)
        assert (found.zeta is not None) == exact
        assert found.clean == clean / N


def test_gross_errors_within_the_margin_are_not_rounding():
    """A tenth is met exactly, the others are off by up to 900 times rounding, evenly: noise, that reaches down to 0."""
    off = np.r_[np.zeros(100), np.linspace(0, 900, 901)[1:]]
    found, _ = judged(off)
    assert found.zeta is None
    assert found.clean == pytest.approx(0.1, abs=0.005)


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


def test_trimmed_least_squares_finds_the_core_among_gross_errors():
    F1, F2, L = problem(200, 160, 8)
    rng = np.random.default_rng(3)
    M = L.dense() + np.where(rng.random(L.shape) < 0.9, rng.uniform(1, 9, L.shape), 0.0)
    descent = Descent.begin(whole(MemoryEngine(M), F1, F2), 2, rng)
    descent.run()
    assert np.linalg.norm(descent.L.dense() - L.dense()) <= 1e-12 * np.linalg.norm(L.dense())
    assert descent.zeta < 1e-9


def test_rows_without_features_are_regressed_on_those_of_the_columns():
    """Against the dense solution for each row; a step for all rows, and the same when each is solved by itself."""
    rng = np.random.default_rng(4)
    Q = np.linalg.qr(rng.standard_normal((60, 3)))[0]
    M = rng.standard_normal((25, 3)) @ Q.T
    block = Block(MemoryEngine(M), None, Q)
    L, _, trim = least_squares(block, LowRank.zero(M.shape), np.inf, 3)
    np.testing.assert_allclose(L.dense(), M, atol=1e-12)
    assert trim.kept == M.size and block.unknowns == (25, 3)
    M += draw("away from 0", 0.3, M.shape, rng)
    M[rng.random(M.shape) < 0.1] = np.nan
    found, fitted = fit_rows(M, Q, M.dtype, rng)
    for i, row in enumerate(M):
        kept = np.abs(row - Q @ found[i]) < 1e-12
        assert kept.sum() == fitted[i] >= 25
        np.testing.assert_allclose(np.linalg.lstsq(Q[kept], row[kept], rcond=None)[0], found[i], atol=1e-12)
    single, fitted = fit_rows(M.astype(np.float32).astype(float), Q, np.dtype(np.float32), rng)
    np.testing.assert_allclose(single, found, atol=1e-6)
    assert fitted.min() >= 25  # to the rounding of what was stored, not of double precision


def test_a_nearly_exact_fit_is_sharpened_to_an_exact_one():
    """Errors in a tenth of the entries, some of them missing; factors are off by a hundredth at first."""
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((60, 2)), rng.standard_normal((50, 2))
    M = U @ V.T + np.where(rng.random((60, 50)) < 0.1, 20.0, 0.0)
    M[rng.random(M.shape) < 0.1] = np.nan
    near = LowRank.from_product(*(A + 0.01 * rng.standard_normal(A.shape) for A in (U, V)))
    found = sharpen(M, near, 0.5, M.dtype).dense()
    assert np.abs(near.dense() - U @ V.T).max() > 1e-3
    np.testing.assert_allclose(found, U @ V.T, atol=1e-12)


def test_a_nearly_exact_fit_of_a_part_becomes_an_exact_one_of_all():
    """Without features: the part by rows and columns in turn, then all other lines; a tenth of them may not fit."""
    rng = np.random.default_rng(9)
    U, V = rng.standard_normal((200, 2)), rng.standard_normal((150, 2))
    L = U @ V.T
    M = L + draw("away from 0", 0.2, L.shape, rng)
    near = LowRank.from_product(U + 1e-5 * rng.standard_normal(U.shape), V)
    rows, cols = np.arange(100, 160), np.arange(0, 150, 3)
    on_part = sharpen(M[np.ix_(rows, cols)], near.part(rows, cols), 1e-3, M.dtype)
    assert np.abs(on_part.dense() - L[np.ix_(rows, cols)]).max() <= 1e-12
    for broken, found in ((15, True), (30, False)):
        M[:broken] = rng.standard_normal((broken, 150))
        whole = extend(MemoryEngine(M), (rows, cols), on_part, near, 1e-3, rng)
        assert (whole is not None) == found
        assert not found or np.abs(whole.dense() - L)[broken:].max() <= 1e-11


# The peak of the residuals


def test_clean_residuals_are_a_peak_over_the_ground_of_gross_errors():
    """The narrowest of several, and none where residuals are even."""
    rng = np.random.default_rng(5)
    for share in (0.01, 0.5, 1.0):
        sizes = np.abs(np.where(rng.random(60_000) < share, 0.01, 1.0) * rng.standard_normal(60_000))
        peak = find_peak(sizes)
        assert 0.02 <= peak.zeta <= 0.07
        assert peak.share == pytest.approx(share, rel=0.2)
    scale = rng.choice([1e-4, 1e-2, 1.0], 60_000, p=[0.05, 0.45, 0.5])
    assert 2e-4 <= find_peak(np.abs(scale * rng.standard_normal(60_000))).zeta <= 8e-4
    even = rng.uniform(0, 1, 60_000)
    assert find_peak(even).share == 0 or find_peak(even).zeta >= 1.0


# How far it goes


def draw(kind, share, shape, rng):
    size = {
        "away from 0": lambda: rng.uniform(0.5, 3, shape) * rng.choice([-1, 1], shape),
        "uniform": lambda: rng.uniform(-3, 3, shape),
        "Gaussian": lambda: 2 * rng.standard_normal(shape),
        "one-sided": lambda: rng.uniform(0.5, 5, shape),
    }[kind]()
    return np.where(rng.random(shape) < share, size, 0.0)


def low_rank(n1, n2, d1, d2, rank, rng):
    """Features (None: none) and L, with |L| about 1."""
    F1, F2 = (None if d is None else rng.standard_normal((n, d)) for n, d in ((n1, d1), (n2, d2)))
    left = rng.standard_normal((n1, rank)) if F1 is None else F1 @ rng.standard_normal((d1, rank))
    right = rng.standard_normal((n2, rank)) if F2 is None else F2 @ rng.standard_normal((d2, rank))
    L = left @ right.T
    return F1, F2, L / np.abs(L).mean()


def off(result, L):
    return np.linalg.norm(result.L.dense() - L) / np.linalg.norm(L)


@pytest.mark.parametrize(
    ("kind", "rank", "solver"),
    [("away from 0", 5, "trimmed"), ("uniform", "auto", "irpca"), ("Gaussian", "auto", "trimmed")],
)
def test_ninety_nine_of_a_hundred_cells_are_wrong(kind, rank, solver):
    rng = np.random.default_rng(7)
    F1, F2, L = low_rank(1000, 1000, 20, 20, 5, rng)
    result = irpca.solve(L + draw(kind, 0.99, L.shape, rng), F1, F2, rank=rank, solver=solver)
    assert off(result, L) <= 1e-12 and result.rank == 5
    assert result.usable == "usable" and result.noise == 0
    assert result.corruption == pytest.approx(0.99, abs=0.01)
    assert result.reads <= 12


@pytest.mark.parametrize("sides", ["both", "columns", "none"])
def test_exact_in_single_precision(sides):
    rng = np.random.default_rng(4)
    F1, F2, L = low_rank(400, 300, 6, 5, 2, rng)
    M = (L + draw("uniform", 0.2, L.shape, rng)).astype(np.float32)
    result = irpca.solve(M, F1 if sides == "both" else None, None if sides == "none" else F2)
    assert off(result, L) <= 1e-5 and result.noise == 0 and result.usable == "usable"


@pytest.mark.parametrize(("kind", "solver"), [("away from 0", "irpca"), ("one-sided", "trimmed")])
def test_four_fifths_are_wrong_and_one_side_has_features(kind, solver):
    rng = np.random.default_rng(1)
    _, F2, L = low_rank(800, 800, None, 10, 3, rng)
    M = L + draw(kind, 0.8, L.shape, rng)
    result = irpca.solve(M, None, F2, solver=solver) if solver == "irpca" else irpca.solve(M.T, F2, solver=solver)
    assert off(result, L if solver == "irpca" else L.T) <= 1e-10 and result.rank == 3
    assert result.usable == "usable"


def test_lines_that_an_exact_fit_does_not_reach_are_named():
    """Two rows are wrong in every cell: what is expected there is unknown."""
    rng = np.random.default_rng(2)
    _, F2, L = low_rank(300, 400, None, 5, 2, rng)
    M = L + draw("uniform", 0.6, L.shape, rng)
    M[[17, 203]] = rng.standard_normal((2, 400))
    result = irpca.solve(M, None, F2, solver="trimmed")
    others = np.delete(np.arange(300), [17, 203])
    assert np.abs(result.L.rows(others) - L[others]).max() <= 1e-10
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "broken-lines")
    assert doubt.rows == (17, 203) and result.usable == "use with care"


def test_where_there_is_no_exact_fit_it_says_so():
    rng = np.random.default_rng(3)
    F1, F2, L = low_rank(150, 120, 5, 4, 2, rng)
    result = irpca.solve(L + 0.1 * rng.standard_normal(L.shape), F1, F2, solver="trimmed")
    assert result.status is Status.SATURATED and result.usable == "do not use"
    assert "use solver='irpca'" in str(result.doubts[0])
    assert off(result, L) <= 0.1
    nothing = irpca.solve(L + 0.1 * rng.standard_normal(L.shape), None, F2, solver="trimmed")
    assert nothing.usable == "do not use" and nothing.rank == 0
    with pytest.raises(ValueError, match=r"solver='trimmed' needs features of rows or columns; solver='irpca'"):
        irpca.solve(L, solver="trimmed")
