"""The one loop: how a run ends, what it records, what it accepts and what it refuses."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from mixed_columns import ASKED, mixed

from irpca import Doubt, Status, solve
from irpca.datasets import make_problem
from irpca.engines import MemoryEngine, ReferenceEngine, regressions
from irpca.features import Features
from irpca.loop import known_lines, seeds_of
from irpca.lowrank import LowRank
from irpca.result import State
from irpca.solvers import SOLVERS, Solver


@pytest.fixture(scope="module")
def problem():
    return make_problem(60, 50, d1=4, d2=3, rank=2, corruption=0.1, features="conditioned")


@pytest.fixture(scope="module")
def noisy():
    return make_problem(300, 200, d1=5, d2=4, rank=2, corruption=0.1, noise=1e-4, features="conditioned")


@pytest.fixture(scope="module")
def noisy_fit(noisy):
    return solve(noisy.M, noisy.F1, noisy.F2)


@pytest.fixture(scope="module")
def small():
    """As noisy, but quick to solve without features too."""
    return make_problem(90, 80, d1=5, d2=4, rank=2, corruption=0.1, noise=1e-4, features="conditioned")


@pytest.fixture(scope="module")
def small_fit(small):
    return solve(small.M)


SIDES = {"both": (1, 1), "rows": (1, 0), "columns": (0, 1), "none": (0, 0)}


def sides_of(problem, sides):
    rows, cols = SIDES[sides]
    return problem.F1 if rows else None, problem.F2 if cols else None


def a_state(L, zeta=1.0, step=1.0, **more):
    return State(L, zeta, step, **more)


@pytest.fixture
def stub(monkeypatch):
    """Register a solver that yields what it is told, under the name "stub"."""

    def register(states):
        def run(problem):
            yield from states(problem.engine) if callable(states) else states

        monkeypatch.setitem(SOLVERS, "stub", Solver(run, "chosen", features=True))

    return register


# How a run ends


@pytest.mark.parametrize("sides", SIDES)
def test_converged(problem, sides):
    F1, F2 = sides_of(problem, sides)
    rng = np.random.default_rng(0)  # W is in the coordinates of features that are not orthonormal
    F1, F2 = (F if F is None else F @ rng.standard_normal((F.shape[1],) * 2) for F in (F1, F2))
    given = [A for A in (problem.M, F1, F2) if A is not None]
    before = [A.copy() for A in given]
    result = solve(problem.M, F1, F2)
    assert result.status is Status.CONVERGED and result.converged
    assert result.rank == result.L.rank == 2
    assert problem.relative_error(result.L) <= 1e-12
    np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted)
    assert result.noise == 0.0
    assert result.corruption == pytest.approx(problem.corrupted.mean(), rel=1e-12)
    s = np.diag(result.L.core)
    np.testing.assert_array_equal(result.L.core, np.diag(np.sort(s)[::-1]))
    for Q in (result.L.left, result.L.right):  # the factors are singular vectors
        np.testing.assert_allclose(Q.T @ Q, np.eye(2), rtol=0, atol=1e-13)
    if sides == "none":
        assert result.W is None
    else:
        L = result.W if F1 is None else F1 @ result.W
        assert problem.relative_error(L if F2 is None else L @ F2.T) <= 1e-11
    for A, B in zip(given, before, strict=True):
        np.testing.assert_array_equal(A, B)
        assert A.flags.writeable


@pytest.mark.parametrize("sides", ["both", "none"])
def test_without_S_the_same_L_takes_no_more_reads(problem, sides):
    F1, F2 = sides_of(problem, sides)
    with_S, without = solve(problem.M, F1, F2), solve(problem.M, F1, F2, sparse=False)
    assert without.S is None and without.converged
    np.testing.assert_array_equal(without.L.dense(), with_S.L.dense())
    # A side without features is fitted line by line, and the last read is the one that checks the lines.
    assert without.reads <= with_S.reads - (1 if sides == "both" else 0)
    assert without.corruption == pytest.approx(with_S.corruption, abs=0.02)
    assert without.explained == pytest.approx(with_S.explained, rel=1e-3)


def test_the_last_iteration_allowed_may_converge(small, small_fit):
    last = solve(small.M, max_iter=small_fit.n_iter - 1)
    assert last.status is Status.MAX_ITER and not last.converged and last.S is not None
    assert solve(small.M, max_iter=small_fit.n_iter).status is Status.CONVERGED


def test_stopped_by_a_callback(noisy):
    """Only by True, and the others see the last iterate as well."""
    seen, lengths = [], []
    watchers = [
        lambda state, history: seen.append(state) or len(seen) == 2,
        lambda state, history: lengths.append(len(history)) or 0,
    ]
    result = solve(noisy.M, noisy.F1, noisy.F2, callbacks=watchers)
    assert result.status is Status.STOPPED
    assert len(result.history) == len(seen) == 2 and lengths == [1, 2]
    assert result.L is seen[-1].L
    assert result.S is not None


def test_a_keyboard_interrupt_in_a_callback_keeps_the_iterate(noisy):
    seen = []

    def impatient(state, history):
        seen.append(state)
        if len(seen) == 2:
            raise KeyboardInterrupt

    result = solve(noisy.M, noisy.F1, noisy.F2, callbacks=impatient)
    assert result.status is Status.INTERRUPTED
    assert len(result.history) == 2
    assert result.L is seen[-1].L
    # S is that of the iterate that was kept.
    S, _ = MemoryEngine(noisy.M).corruption(result.L, result.zeta)
    assert (result.S != S).nnz == 0


class Interrupted(MemoryEngine):
    """Someone presses Ctrl-C while M is read for the k-th time, perhaps within compiled code."""

    def __init__(self, M, k, compiled=False):
        super().__init__(M)
        self.left, self.compiled = k, compiled

    def ask(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0 and self.compiled:
            raise SystemError("a function returned a result with an exception set") from KeyboardInterrupt()
        if self.left == 0:
            raise KeyboardInterrupt
        return super().ask(*args, **kwargs)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_keyboard_interrupt_while_M_is_read_keeps_the_last_iterate(stub, small, compiled):
    L = LowRank.from_product(np.ones((90, 1)), np.ones((80, 1)))
    engine = Interrupted(small.M, 2, compiled)

    def states(engine):
        for _ in range(3):
            engine.products(L, np.inf, np.ones((80, 1)))
            yield a_state(L)

    stub(states)
    result = solve(small.M, solver="stub", engine=engine)
    assert engine.left == 0
    assert result.status is Status.INTERRUPTED and result.n_iter == 1
    assert result.L is L and result.S is not None


@pytest.mark.parametrize("broken", [False, True])
def test_an_engine_that_was_passed_in_is_left_as_it_was(problem, broken):
    class Told:
        def reading(self, done, total):
            pass

        def __call__(self, state, history):
            assert engine.watch not in (None, before)
            if broken:
                raise ZeroDivisionError

    def before(done, total):
        pass

    engine = MemoryEngine(problem.M)
    engine.watch = before
    with pytest.raises(ZeroDivisionError) if broken else nullcontext():
        solve(None, problem.F1, problem.F2, engine=engine, callbacks=Told())
    assert engine.watch is before


def test_a_keyboard_interrupt_before_the_first_iterate_is_passed_on(problem):
    with pytest.raises(KeyboardInterrupt):
        solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht", engine=Interrupted(problem.M, 1))


@pytest.mark.parametrize("status", [Status.CONVERGED, Status.MAX_ITER, Status.STOPPED])
def test_a_failure_is_told_however_the_run_ends(stub, problem, status):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L, failure="because of this", step=0.0 if status is Status.CONVERGED else 1.0)])
    result = solve(problem.M, solver="stub", max_iter=1, callbacks=lambda s, h: status is Status.STOPPED)
    assert result.status is (Status.STOPPED if status is Status.STOPPED else Status.SATURATED)
    assert Doubt("failure", "because of this") in result.doubts


@pytest.mark.parametrize(("bad", "what"), [(np.nan, "step"), (np.inf, "core")])
def test_diverged(stub, problem, what, bad):
    good = LowRank.from_product(np.ones((60, 2)), np.ones((50, 2)))
    broken = replace(good, core=np.full((2, 2), bad)) if what == "core" else good
    stub([a_state(good), a_state(broken, step=bad if what == "step" else 1.0), a_state(good)])
    calls = []
    result = solve(problem.M, problem.F1, problem.F2, solver="stub", callbacks=lambda s, h: calls.append(s))
    assert result.status is Status.DIVERGED and not result.converged
    assert result.n_iter == 2 and len(calls) == 1
    assert result.S is None and result.W is None
    assert "grew without bound" in result.summary()


@pytest.mark.parametrize(
    ("tol", "states", "n_iter"),
    [
        (1e-10, [{}, {}], 2),  # a solver that ends by itself has converged
        (1e-10, [{"step": 0.0, "settled": False}, {"step": 0.5}, {"step": 0.0}, {}], 3),
        (0.2, [{}, {"step": 0.1}, {"step": 0.0}], 2),
        (0.0, [{"tolerance": 0.2}, {"tolerance": 0.2, "step": 0.1}, {"tolerance": 0.2, "step": 0.0}], 2),
        (0.0, [{}, {"step": 0.1}, {"step": 0.0}, {}], 3),
    ],
)
def test_a_step_below_either_tolerance_ends_a_run_of_a_solver_that_has_settled(stub, problem, tol, states, n_iter):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L, **state) for state in states])
    result = solve(problem.M, solver="stub", tol=tol)
    assert result.status is Status.CONVERGED and result.n_iter == n_iter


# What is recorded


def test_M_is_L_plus_S_plus_what_is_below_the_threshold(noisy, noisy_fit):
    result = noisy_fit
    left = noisy.M - result.L.dense() - result.S.toarray()
    assert np.abs(left).max() <= result.zeta
    inside = result.S.toarray() == 0
    kept = noisy.M[inside] - left[inside]
    assert result.explained == pytest.approx(np.mean(kept**2) / np.mean(noisy.M[inside] ** 2), abs=0.02)
    assert result.corruption == pytest.approx(1 - inside.mean(), rel=1e-12)
    assert np.abs(result.S.data).min() > result.zeta
    assert result.rank == np.linalg.matrix_rank(result.W) == 2
    assert result.noise == pytest.approx(1e-4, rel=0.02)
    assert "rank" in [choice.name for choice in result.choices]


def test_a_rank_that_was_given_is_no_choice(problem):
    clean = make_problem(60, 50, d1=4, d2=3, rank=2, corruption=0.0, features="conditioned")
    for given, rank in ((problem, 3), (problem, np.int32(2)), (clean, 2)):
        result = solve(given.M, given.F1, given.F2, rank=rank, engine="reference")
        assert result.rank == rank and "rank" not in [choice.name for choice in result.choices]
        assert result.doubts == ()
        assert (result.solver, result.engine) == ("irpca", "reference")


# What is known, and what is wrong


def test_S_is_what_the_calibration_calls_more_likely_wrong_than_not(small, small_fit):
    result = small_fit
    R = small.M - result.L.dense()
    scale = result.scale.unit_table(R)
    np.testing.assert_array_equal(result.S.toarray() != 0, result.calibration(R / scale) > 0.5)
    np.testing.assert_array_equal(result.S.toarray()[small.corrupted] != 0, np.abs(R[small.corrupted]) > result.zeta)
    assert result.zeta == pytest.approx(result.calibration.limit * np.median(scale), rel=1e-3)
    assert result.certificate is not None and result.fit is not None


@pytest.mark.parametrize(("rank", "features", "unknown"), [(2, False, 2), (1, False, 1), (2, True, 0)])
def test_a_line_with_fewer_entries_than_components_is_known_only_by_its_features(rank, features, unknown):
    M = np.ones((10, 8))
    for row in range(4):
        M[row, row:] = np.nan
    F1 = Features.of(np.random.default_rng(0).standard_normal((10, 2)), 10) if features else Features.identity(10)
    L = LowRank.from_product(np.ones((10, rank)) + np.eye(10, rank), np.ones((8, rank)) + np.eye(8, rank))
    rows, cols = known_lines(ReferenceEngine(M), F1, Features.identity(8), a_state(L))
    np.testing.assert_array_equal(rows, np.arange(10) >= unknown)
    assert cols.all()


def test_entries_of_lines_that_are_not_known_are_not_in_S(stub):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((10, 8))
    M[0, 1:] = np.nan
    M[0, 0] = 100.0
    M[4, 4] = 100.0
    stub(
        [a_state(LowRank.from_product(rng.standard_normal((10, 2)), rng.standard_normal((8, 2))), zeta=50.0, step=0.0)]
    )
    result = solve(M, solver="stub")
    assert not result.known[0][0] and result.known[0][1:].all() and result.known[1].all()
    np.testing.assert_array_equal(np.argwhere(result.S.toarray()), [[4, 4]])
    assert result.corruption == pytest.approx(1 / 73)
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "unknown-lines")
    assert doubt.rows == (0,)


# Options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"solver": "magic"}, r"solver='magic' is unknown; choose one of 'irpca', 'trimmed'"),
        ({"engine": "magic"}, r"engine='magic' is unknown; choose one of 'auto', 'memory'"),
        ({"foo": 1}, r"solver='irpca' takes no option foo; it takes extra_rank, noise"),
        ({"rank": 0}, r"rank=0 is out of range: .* 4 components for rows and 3 for columns.*1 <= rank <= 3"),
        ({"rank": 4}, r"rank=4 is out of range"),
        *(({"rank": rank}, "rank must be an integer or 'auto'") for rank in (2.0, True, "five", None, [2])),
        ({"solver": "irpca_iht"}, r"needs the rank: pass rank=r with 1 <= r <= 3"),
        ({"tol": -1e-300}, "tol must be a number, at least 0"),
        ({"tol": np.nan}, "tol must be a number, at least 0"),
        ({"max_iter": 0}, "max_iter must be a whole number, at least 1"),
        ({"max_iter": np.nan}, "max_iter must be a whole number"),
    ],
)
def test_bad_options_are_refused_before_M_is_read(problem, options, told):
    engine = MemoryEngine(problem.M)
    with pytest.raises((ValueError, TypeError), match=told):
        solve(problem.M, problem.F1, problem.F2, **{"engine": engine, **options})
    assert engine.reads == 0


# What M and the features may be


def bad_matrices():
    M = np.arange(12.0).reshape(4, 3)
    endless = M.copy()
    endless[3, 2] = -np.inf
    endless_with_holes = endless.copy()
    endless_with_holes[1, 1] = np.nan
    words = M.astype(object)
    words[0, 0] = "seven"
    return {
        "one dimension": (M[0], r"M must have two dimensions, got shape \(3,\)"),
        "nothing": (None, "M must have two dimensions"),
        "no rows": (M[:0], r"M is empty: its shape is \(0, 3\)"),
        "one column": (M[:, :1], r"M has shape \(4, 1\); at least two rows and two columns"),
        "complex": (M + 0j, "M is complex"),
        "text": (np.full((4, 3), "a"), "M has dtype <U1 and does not convert to numbers"),
        "an object that is no number": (words, "M has dtype object and does not convert to numbers"),
        "only NaN": (np.full((4, 3), np.nan), "every cell of M is missing"),
        "infinite": (endless, "M holds infinite values"),
        "infinite and NaN": (endless_with_holes, "M holds infinite values"),
        "zero": (np.zeros((4, 3)), "M is all zero"),
    }


@pytest.mark.parametrize("kind", bad_matrices())
def test_a_bad_M_is_refused_with_what_is_wrong(kind):
    M, told = bad_matrices()[kind]
    with pytest.raises(ValueError, match=told):
        solve(M)


def test_a_matrix_of_zeros_but_for_a_few_entries_is_not_refused():
    """No sample sees the two of 180,000: L = 0, and S is all of M."""
    M = np.zeros((600, 300))
    M[3, 4], M[500, 200] = 1.0, -2.0
    result = solve(M)
    np.testing.assert_array_equal(result.S.toarray(), M)
    np.testing.assert_array_equal(result.L.dense(), 0)


@pytest.mark.parametrize(("sides", "dtype"), [("both", np.float64), ("rows", np.int64), ("none", np.float32)])
def test_a_matrix_of_equal_entries_is_all_L(sides, dtype):
    rng = np.random.default_rng(0)
    rows, cols = SIDES[sides]
    F1 = np.column_stack([np.ones(60), rng.standard_normal((60, 2))]) if rows else None
    F2 = np.column_stack([np.ones(50), rng.standard_normal((50, 2))]) if cols else None
    result = solve(np.full((60, 50), 7, dtype), F1, F2)
    assert result.converged and result.rank == 1
    np.testing.assert_allclose(result.L.dense(), 7, rtol=1e-12 if dtype != np.float32 else 1e-5)
    assert result.S.nnz == 0
    assert result.noise == 0.0


def test_bad_features_are_refused_with_what_is_wrong(problem):
    """All that is wrong with features is in test_features.py."""
    M, F1, F2 = problem.M, problem.F1, problem.F2
    for given, told in (
        ((M, F1.T, F2), r"F1 has 4 rows but M has 60 rows; did you mean F1\.T\?"),
        ((M, F1, F2.T), r"F2 has 3 rows but M has 50 columns; did you mean F2\.T\?"),
        ((M[:3], F1[:3], F2), "F1 has 4 features for only 3 rows of M"),
        ((M[:, :2], F1, F2[:2]), "F2 has 3 features for only 2 columns of M"),
    ):
        with pytest.raises(ValueError, match=told):
            solve(*given)


def test_features_may_be_prepared_once(problem):
    F1, F2 = Features.of(problem.F1, 60), Features.of(problem.F2, 50)
    np.testing.assert_array_equal(solve(problem.M, F1, F2).W, solve(problem.M, problem.F1, problem.F2).W)
    with pytest.raises(ValueError, match="these Features are of a 50 × 60 matrix, M is 60 × 50"):
        solve(problem.M, F2, F1)


def test_two_values_that_differ_by_rounding_are_one():
    result = solve(np.where(np.arange(3000).reshape(60, 50) % 2, 0.3, 0.1 + 0.2))
    assert result.converged and result.S.nnz == 0


def test_outliers_that_are_all_equal_are_counted_and_cost_nothing_more():
    given = make_problem(600, 500, d1=5, d2=4, rank=2, corruption=0.2, features="conditioned")
    usual, equal = (
        solve(M, given.F1, given.F2, rank=2) for M in (given.M, np.where(given.corrupted, 10 * given.L.max(), given.L))
    )
    assert given.relative_error(equal.L) <= 1e-12
    assert equal.corruption == pytest.approx(0.2, abs=0.01)
    assert equal.reads == pytest.approx(usual.reads, rel=1e-12)


# The same again


def test_the_same_seed_gives_the_same_result_bit_for_bit(small, small_fit):
    again = solve(small.M)
    for name in ("left", "core", "right"):
        np.testing.assert_array_equal(getattr(again.L, name), getattr(small_fit.L, name))
    assert (again.S != small_fit.S).nnz == 0
    for name in ("zeta", "noise", "reads", "choices"):
        assert getattr(again, name) == getattr(small_fit, name)
    assert again.history.step == small_fit.history.step


def test_kinds_of_random_states(small):
    """A generator moves on; a seed sequence gives the same at every call, and what its int gives."""
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    rng, seed = np.random.default_rng(3), np.random.SeedSequence(3)
    first, second, again, one, two, three = (
        solve(small.M, rank=2, solver="ircur", random_state=state).L.core[0, 0]
        for state in (rng, rng, np.random.default_rng(3), seed, seed, 3)
    )
    assert first == again != second
    assert one == two == three
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_every_purpose_has_a_seed_of_its_own():
    drawn = [int(np.random.default_rng(seed).integers(2**60)) for seed in seeds_of(0).values()]
    drawn.append(int(np.random.default_rng(0).integers(2**60)))  # what a user may draw M with
    assert len(set(drawn)) == len(drawn) > 3


def test_an_interrupt_during_the_last_read_keeps_the_fit(noisy, monkeypatch):
    read, calls = MemoryEngine.corruption, []

    def interrupted(self, *asked):
        calls.append(asked)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return read(self, *asked)

    monkeypatch.setattr(MemoryEngine, "corruption", interrupted)
    result = solve(noisy.M, noisy.F1, noisy.F2)
    assert result.status is Status.INTERRUPTED and len(calls) == 2
    assert result.S.nnz > 0 and noisy.relative_error(result.L) < 0.1


@pytest.mark.parametrize(("which", "sides"), [("problem", "both"), ("small", "columns"), ("small", "none")])
def test_the_engine_makes_no_difference(monkeypatch, request, which, sides):
    """But that one solves for the coefficients of features by conjugate gradients, which usually stop early."""
    monkeypatch.setattr(regressions, "CG_DIGITS", 1e-14)
    monkeypatch.setattr(regressions, "CG_STEPS", 500)
    given = request.getfixturevalue(which)
    F1, F2 = sides_of(given, sides)
    memory, reference = (solve(given.M, F1, F2, engine=engine) for engine in ("memory", "reference"))
    assert (memory.engine, reference.engine) == ("memory", "reference")
    size = np.linalg.norm(reference.L.dense())
    assert np.linalg.norm(memory.L.dense() - reference.L.dense()) <= 1e-9 * size
    assert (memory.status, memory.rank) == (reference.status, reference.rank)
    largest = np.abs(reference.L.dense()).max()
    assert memory.zeta == pytest.approx(reference.zeta, rel=0, abs=1e-9 * largest)  # from residuals, as exact as L is
    assert memory.corruption == reference.corruption


def test_latent_values_are_made_once_and_all_reads_of_them_count(monkeypatch):
    made, map_columns = [], MemoryEngine.mapped

    def mapped(engine, maps):
        made.append(map_columns(engine, maps))
        return made[-1]

    monkeypatch.setattr(MemoryEngine, "mapped", mapped)
    result = solve(mixed(400).to_numpy(), columns=ASKED, tol=0.01)
    assert len(made) == 1 and result.reads >= 2 * result.n_iter
