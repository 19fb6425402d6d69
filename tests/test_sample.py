"""A look at part of M: the right entries, the same W on every block, and few reads."""

import math

import numpy as np
import pytest

import irpca
from irpca import constants
from irpca.datasets import make_problem
from irpca.engines import MemoryEngine
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.sample import Sample, atoms, rounding_floor, scattered
from irpca.solvers import blocks
from irpca.solvers.blocks import draw_blocks, draw_lines


class Sizes:
    """An engine that only knows its shape, and remembers the blocks it was asked for."""

    name, dtype, reads, dear = "sizes", np.dtype(float), 0.0, False

    def __init__(self, *shape):
        self.shape = shape
        self.n_observed = math.prod(shape)
        self.asked = []

    def block(self, rows, cols):
        self.asked.append((len(rows), len(cols)))
        return np.zeros((len(rows), len(cols)))


def gaussian_features(n, d, seed=0):
    return Features.of(np.random.default_rng(seed).standard_normal((n, d)), n)


def one_hot(counts):
    """Features of ``counts[k]`` rows of kind k."""
    return np.repeat(np.eye(len(counts)), counts, axis=0)


def sizes(drawn):
    return [(len(block.Q1), len(block.Q2)) for block in drawn]


# Scattered entries


def test_a_sample_of_a_large_matrix_holds_its_entries_from_everywhere():
    M = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    engine = MemoryEngine(M)
    sample = Sample.draw(engine, 5000, np.random.default_rng(1))
    assert len(sample.values) == 5000 and sample.values.dtype == np.float64
    np.testing.assert_array_equal(M[sample.rows, sample.cols], sample.values)
    for lines, n in ((sample.rows, 300), (sample.cols, 200)):
        counts = np.bincount(lines, minlength=n)
        assert len(counts) == n
        assert np.sum((counts - 5000 / n) ** 2) / (5000 / n) < n + 5 * np.sqrt(2 * n)  # chi squared
    assert engine.reads == pytest.approx(5000 / 60_000, rel=1e-12)


def test_sizes_are_those_of_what_L_leaves():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((300, 200))
    L = LowRank.from_product(rng.standard_normal((300, 2)), rng.standard_normal((200, 2)))
    sample = Sample.draw(MemoryEngine(M), 5000, rng)
    np.testing.assert_allclose(sample.sizes(L), np.abs(M - L.dense())[sample.rows, sample.cols], rtol=1e-10, atol=1e-13)


# Values that many entries share, and values that come in steps


def continuous(n=1000):
    return np.random.default_rng(0).standard_normal(n)


def test_an_atom_is_what_many_share_while_the_rest_differs():
    values = continuous()
    values[:50], values[50:120] = 1.5, 0.0
    np.testing.assert_array_equal(atoms(*np.unique(values, return_counts=True)), [0.0, 1.5])


def test_no_atoms_elsewhere():
    for values in (
        continuous(),
        np.r_[np.zeros(9), continuous(991)],  # less than one in a hundred
        np.r_[np.zeros(960), continuous(40)],  # there is little else
        np.random.default_rng(0).integers(0, 10, 1000).astype(float),  # all of them come in steps
        np.round(20 * continuous()),  # so do these, some of them often and some not
        np.ones(1000),
    ):
        assert len(atoms(*np.unique(values, return_counts=True))) == 0


# Rounding


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rounding_stays_below_the_floor(dtype):
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((200, 20)), rng.standard_normal((300, 20))
    L = U @ V.T
    rounding = np.abs(U.astype(dtype) @ V.astype(dtype).T - L)
    assert rounding.max() < rounding_floor(np.dtype(dtype), np.abs(L).max())


# Blocks


def test_every_block_has_the_same_W():
    """L on a block, lifted, is L."""
    problem = make_problem(1900, 700, d1=7, d2=5, rank=3, corruption=0.0)
    F1, F2 = Features.of(problem.F1, 1900), Features.of(problem.F2, 700)
    assert F1.to_basis is not None and F2.to_basis is None  # one that has looked at some rows only, one at all
    drawn = list(draw_blocks(MemoryEngine(problem.M), F1, F2, np.random.default_rng(0)))
    assert len(drawn) >= 3
    for block in drawn:
        for Q in (block.Q1, block.Q2):
            np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), rtol=0, atol=1e-13)
        rows, cols = np.arange(block.engine.shape[0]), np.arange(block.engine.shape[1])
        block_C = block.Q1.T @ block.engine.block(rows, cols) @ block.Q2
        L = block.lift(LowRank.from_core(block.Q1, block_C, block.Q2, 3))
        for Q in (L.left, L.right):
            np.testing.assert_allclose(Q.T @ Q, np.eye(3), rtol=0, atol=1e-13)
        assert problem.relative_error(L) <= 1e-11


def test_blocks_grow_and_the_last_is_the_whole():
    engine = MemoryEngine(np.ones((2000, 1500)))
    drawn = list(draw_blocks(engine, gaussian_features(2000, 5), gaussian_features(1500, 20), np.random.default_rng(0)))
    entries = [math.prod(size) for size in sizes(drawn)]
    assert len(entries) > 3 and entries == sorted(entries) and sizes(drawn)[-1] == (2000, 1500)
    assert engine.reads == pytest.approx(sum(entries) / engine.n_observed, rel=1e-12)


def test_a_small_matrix_is_its_own_only_block():
    engine = MemoryEngine(np.ones((60, 50)))
    (block,) = draw_blocks(engine, gaussian_features(60, 3), gaussian_features(50, 3), None)
    assert block.engine.shape == (60, 50) and not block.small and engine.reads == 1


@pytest.mark.parametrize(("shape", "d1", "d2"), [((150, 2000), 60, 3), ((3000, 2000), 20, 3)])
def test_no_block_is_larger_than_it_may_be(monkeypatch, shape, d1, d2):
    limit = 1 << 14
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", limit)
    engine = Sizes(*shape)
    drawn = list(
        draw_blocks(
            engine, gaussian_features(shape[0], d1), gaussian_features(shape[1], d2, 1), np.random.default_rng(0)
        )
    )
    assert sizes(drawn) == engine.asked
    assert not any(block.engine is engine for block in drawn)
    entries = [m1 * m2 for m1, m2 in engine.asked]
    assert entries[:-1] == sorted(entries[:-1])
    assert 0.9 * limit < entries[-1] <= limit
    assert all(m1 >= 2 * d1 and m2 >= 2 * d2 for m1, m2 in engine.asked)


def test_a_problem_whose_blocks_all_miss_a_direction_is_solved_all_the_same(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 1 << 14)
    monkeypatch.setattr(blocks, "draw_lines", lambda F, m, rng: np.arange(min(m, F.n)))
    rng = np.random.default_rng(0)
    F1 = np.column_stack([rng.standard_normal((400, 3)), np.arange(400) == 399])
    F2 = rng.standard_normal((300, 3))
    L = F1 @ rng.standard_normal((4, 2)) @ rng.standard_normal((2, 3)) @ F2.T
    M = np.where(rng.random(L.shape) < 0.1, 20.0, L)
    result = irpca.solve(M, F1, F2, rank=2)
    error = np.abs(result.L.dense() - L) / np.abs(L).max()
    assert error[:-1].max() <= 1e-12
    assert error[-1].max() <= 1e-5  # the others are exact long before it


# Lines


def test_drawn_lines_are_distinct_sorted_and_everywhere():
    F = gaussian_features(1000, 20)  # incoherent: more of them make leverages more alike
    assert F.mu < 2
    rng = np.random.default_rng(0)
    seen = np.zeros(1000)
    for _ in range(200):
        lines = draw_lines(F, 100, rng)
        assert (np.diff(lines) > 0).all() and len(lines) == 100
        seen[lines] += 1
    assert seen.min() > 3 and seen.max() < 45  # 20 ± 4.2 each: all alike


def test_lines_that_alone_know_a_feature_are_drawn_much_more_often():
    """3 of 10,000 rows are of a rare kind. At random 80 lines would hit one of them in 2 % of the draws."""
    F = Features.of(one_hot([5000, 4997, 3]), 10_000)
    rng = np.random.default_rng(0)
    hits = sum(draw_lines(F, 80, rng)[-1] >= 9997 for _ in range(200))
    assert hits > 190


# Reads


def test_an_exact_problem_is_solved_from_a_small_block_and_one_read():
    problem = make_problem(2000, 1500, d1=50, d2=40, rank=3, corruption=0.2, features="conditioned")
    result = irpca.solve(problem.M, problem.F1, problem.F2, rank=3)
    assert problem.relative_error(result.L) <= 1e-12
    looked_at = (200 * 160 + constants.BUDGET.judged) / problem.M.size
    assert result.reads == pytest.approx(1 + looked_at, abs=1e-8)


@pytest.mark.parametrize(
    ("sides", "rank", "sparse"), [("rows", 3, True), ("columns", "auto", False), ("none", 3, True)]
)
def test_without_features_an_exact_problem_takes_a_copy_and_one_read(sides, rank, sparse):
    """Scattered entries are looked at, fits race on a part of M, and it is copied into memory; S is a read more."""
    problem = make_problem(500, 400, d1=8, d2=6, rank=3, corruption=0.2, features="conditioned")
    F1, F2 = problem.F1 if sides == "rows" else None, problem.F2 if sides == "columns" else None
    result = irpca.solve(problem.M, F1, F2, rank=rank, sparse=sparse)
    assert problem.relative_error(result.L) <= 1e-10
    assert result.rank == 3
    lines = 0.5 if sides != "none" else 0.0  # of the side that has features, read as a whole: those of the part
    assert result.reads <= (3 if sparse else 2) + max(lines, 0.4) + constants.BUDGET.judged / problem.M.size
    if sparse:
        np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted)
    else:
        assert result.S is None


def test_a_line_most_of_which_is_wrong_is_found():
    problem = make_problem(500, 400, d1=8, d2=6, rank=3, corruption=0.1, features="conditioned")
    M, rng = problem.M.copy(), np.random.default_rng(0)
    line = M[:, 70]
    wrong = rng.random(len(line)) < 0.75
    line[wrong] += rng.choice([-1, 1], wrong.sum()) * rng.uniform(0.5, 1, wrong.sum()) * np.abs(problem.L).max() * 5
    error = irpca.solve(M, rank=3).L.dense() - problem.L
    assert np.abs(error).max() <= 1e-9 * np.abs(problem.L).max()


@pytest.mark.parametrize("size", [1, 365, 8760])
def test_scattered_positions_are_in_step_with_no_period(size):
    found = scattered(8760, size)
    assert len(found) == size and (np.diff(found) > 0).all() and found[0] >= 0 and found[-1] < 8760
    if size > 1:
        for period in (7, 12, 24):
            assert np.bincount(found % period, minlength=period).min() > 0.5 * size / period
