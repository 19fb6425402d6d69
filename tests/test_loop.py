"""The one loop: how a run ends, what it records, what it accepts and what it refuses."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from all_pairs import all_pairs

import irpca
from irpca import Doubt, Status, solve
from irpca.datasets import make_problem
from irpca.engines import MemoryEngine, ReferenceEngine, lines
from irpca.features import Features, FeatureWarning
from irpca.loop import known_lines, seeds_of
from irpca.lowrank import LowRank
from irpca.problem import PURPOSES, Problem
from irpca.result import State
from irpca.solvers import SOLVERS, Solver

COLUMNS = ("seconds", "reads", "zeta", "step", "corruption", "residual")


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
def small_fit(small):
    """By the features that are given."""
    return cache(lambda sides: solve(small.M, *sides_of(small, sides)))


@pytest.fixture(scope="module")
def small():
    """As noisy, but quick to solve without features too."""
    return make_problem(90, 80, d1=5, d2=4, rank=2, corruption=0.1, noise=1e-4, features="conditioned")


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
    result = solve(problem.M, *sides_of(problem, sides))
    assert result.status is Status.CONVERGED and result.converged
    assert result.rank == 2
    assert problem.relative_error(result.L) <= 1e-12
    np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted)
    assert result.noise == 0.0
    assert result.corruption == pytest.approx(problem.corrupted.mean(), rel=1e-12)


@pytest.mark.parametrize("sides", ["rows", "columns", "none"])
def test_max_iter(small, sides):
    result = solve(small.M, *sides_of(small, sides), max_iter=1)
    assert result.status is Status.MAX_ITER and not result.converged
    assert result.n_iter == 1
    assert result.S is not None
    assert small.relative_error(result.L) < 0.1  # what a part tells comes close


def test_one_iteration_is_enough_where_features_determine_L(small):
    """Two steps of least squares, of which the second is far shorter than the error: there is nothing to sweep for."""
    result = solve(small.M, small.F1, small.F2, max_iter=1)
    assert result.status is Status.CONVERGED and result.n_iter == 1


def test_the_last_iteration_allowed_may_converge(small, small_fit):
    needed = small_fit("none").n_iter
    assert solve(small.M, max_iter=needed).status is Status.CONVERGED
    assert solve(small.M, max_iter=needed - 1).status is Status.MAX_ITER


def test_stopped_by_a_callback(noisy):
    seen = []
    result = solve(noisy.M, noisy.F1, noisy.F2, callbacks=lambda state, history: seen.append(state) or len(seen) == 2)
    assert result.status is Status.STOPPED
    assert len(result.history) == len(seen) == 2
    assert result.L is seen[-1].L
    assert result.S is not None


def test_every_callback_is_called_even_if_the_first_one_stops(noisy):
    calls = []
    watchers = [lambda s, h: calls.append("a") or True, lambda s, h: calls.append("b")]
    assert solve(noisy.M, noisy.F1, noisy.F2, callbacks=watchers).status is Status.STOPPED
    assert calls == ["a", "b"]


def test_what_a_callback_returns_only_stops_if_true(problem):
    for answer in (None, False, 0):
        assert solve(problem.M, problem.F1, problem.F2, callbacks=lambda s, h, a=answer: a).converged


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
    """Someone presses Ctrl-C while M is read for the k-th time."""

    def __init__(self, M, k):
        super().__init__(M)
        self.left = k

    def ask(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().ask(*args, **kwargs)


def test_a_keyboard_interrupt_while_M_is_read_keeps_the_last_iterate(stub, small):
    L = LowRank.from_product(np.ones((90, 1)), np.ones((80, 1)))
    engine = Interrupted(small.M, 2)

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


def test_other_errors_in_a_callback_are_passed_on(problem):
    def broken(state, history):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        solve(problem.M, problem.F1, problem.F2, callbacks=broken)


def test_features_that_do_not_belong_to_M_are_doubted(noisy):
    rng = np.random.default_rng(0)
    result = solve(noisy.M, rng.standard_normal(noisy.F1.shape), rng.standard_normal(noisy.F2.shape), extra_rank=0)
    assert result.usable != "usable"
    assert {"little-explained", "no-pattern"} & {doubt.kind for doubt in result.doubts}


def test_too_much_corruption_is_not_silent():
    problem = make_problem(200, 150, d1=5, d2=4, rank=2, corruption=0.995, features="conditioned")
    assert solve(problem.M, problem.F1, problem.F2).usable != "usable"


@pytest.mark.parametrize("status", [Status.CONVERGED, Status.MAX_ITER])
def test_a_failure_is_told_however_the_run_ends(stub, problem, status):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L, failure="because of this", step=0.0 if status is Status.CONVERGED else 1.0)])
    result = solve(problem.M, solver="stub", max_iter=1)
    assert result.status is Status.SATURATED
    assert Doubt("failure", "because of this") in result.doubts


def test_stopped_remains_stopped_whatever_the_solver_thinks(stub, problem):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L, failure="because of this")])
    assert solve(problem.M, solver="stub", callbacks=lambda s, h: True).status is Status.STOPPED


@pytest.mark.parametrize(
    ("bad", "what", "sides"),
    all_pairs([np.nan, np.inf], ["step", "core"], list(SIDES)),
)
def test_diverged(stub, problem, what, bad, sides):
    good = LowRank.from_product(np.ones((60, 2)), np.ones((50, 2)))
    broken = replace(good, core=np.full((2, 2), bad)) if what == "core" else good
    stub([a_state(good), a_state(broken, step=bad if what == "step" else 1.0), a_state(good)])
    calls = []
    result = solve(problem.M, *sides_of(problem, sides), solver="stub", callbacks=lambda s, h: calls.append(s))
    assert result.status is Status.DIVERGED and not result.converged
    assert result.n_iter == 2 and len(calls) == 1
    assert result.S is None and result.W is None
    assert "grew without bound" in result.summary()


def test_a_solver_that_ends_by_itself_has_converged(stub, problem):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L), a_state(L)])
    result = solve(problem.M, solver="stub")
    assert result.status is Status.CONVERGED and result.n_iter == 2


def test_a_small_step_ends_a_run_only_when_the_solver_has_settled(stub, problem):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L, step=0.0, settled=False), a_state(L, step=0.5), a_state(L, step=0.0), a_state(L, step=1.0)])
    assert solve(problem.M, solver="stub").n_iter == 3


@pytest.mark.parametrize("tol, tolerance, n_iter", [(1e-10, 0.0, 3), (0.2, 0.0, 2), (0.0, 0.2, 2), (0.0, 0.0, 3)])
def test_a_step_below_either_tolerance_ends_a_run(stub, problem, tol, tolerance, n_iter):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))
    stub([a_state(L, step=step, tolerance=tolerance) for step in (1.0, 0.1, 0.0, 0.0)])
    assert solve(problem.M, solver="stub", tol=tol).n_iter == n_iter


def test_a_final_read_that_finds_far_more_than_the_sample_did_goes_on(stub, problem):
    L = LowRank.zero((60, 50))
    surprised = a_state(L, zeta=0.0, step=0.0, expected_corruption=0.1)
    stub([surprised, a_state(L, zeta=0.0, step=0.0, expected_corruption=0.9)])
    result = solve(problem.M, solver="stub")
    assert result.n_iter == 2
    assert result.corruption == 1.0
    stub([replace(surprised, expected_corruption=None)])
    assert solve(problem.M, solver="stub").n_iter == 1


# What is recorded


@pytest.mark.parametrize(
    "solver, rank, sides",
    [*(("irpca", "auto", sides) for sides in SIDES), ("trimmed", "auto", "both"), ("irpca_iht", 2, "both")],
)
def test_history_has_columns_of_equal_length_and_reads_never_fall(small, solver, rank, sides):
    result = solve(small.M, *sides_of(small, sides), solver=solver, rank=rank)
    history = result.history
    assert {len(getattr(history, name)) for name in COLUMNS} == {len(history)} and 1 <= result.n_iter <= len(history)
    for name in ("seconds", "reads"):
        assert (np.diff(getattr(history, name)) >= 0).all()
    assert history.seconds[0] > 0 and history.seconds[-1] <= result.seconds
    assert 0 < history.reads[-1] <= result.reads
    assert np.isfinite(history.step).all() and (np.array(history.step) >= 0).all()
    np.testing.assert_array_equal(np.isnan(history.corruption), np.isnan(history.residual))


def test_callbacks_see_the_history_they_are_part_of(noisy):
    lengths = []
    result = solve(noisy.M, noisy.F1, noisy.F2, callbacks=lambda state, history: lengths.append(len(history)))
    assert lengths == list(range(1, len(result.history) + 1))


@pytest.mark.parametrize("sides", SIDES)
def test_without_S_the_same_W_takes_fewer_reads(problem, sides):
    F1, F2 = sides_of(problem, sides)
    with_S, without = solve(problem.M, F1, F2), solve(problem.M, F1, F2, sparse=False)
    assert without.S is None
    assert without.status is Status.CONVERGED
    np.testing.assert_array_equal(without.L.dense(), with_S.L.dense())
    if sides == "none":
        assert without.W is None and with_S.W is None
    else:
        np.testing.assert_array_equal(without.W, with_S.W)
    # A side without features is fitted line by line, and the last read is the one that checks the lines.
    assert without.reads <= with_S.reads - (1 if sides == "both" else 0)
    assert without.corruption == pytest.approx(with_S.corruption, abs=0.02)
    assert without.explained == pytest.approx(with_S.explained, rel=1e-3)


def test_without_S_the_noise_still_tells_what_is_explained(noisy, noisy_fit):
    without = solve(noisy.M, noisy.F1, noisy.F2, sparse=False)
    assert without.explained == pytest.approx(noisy_fit.explained, rel=1e-3)


def test_M_is_L_plus_S_plus_what_is_below_the_threshold(noisy, noisy_fit):
    result = noisy_fit
    left = noisy.M - result.L.dense() - result.S.toarray()
    assert np.abs(left).max() <= result.zeta
    inside = result.S.toarray() == 0
    kept = noisy.M[inside] - left[inside]
    assert result.explained == pytest.approx(np.mean(kept**2) / np.mean(noisy.M[inside] ** 2), abs=0.02)
    assert result.corruption == pytest.approx(1 - inside.mean(), rel=1e-12)
    assert np.abs(result.S.data).min() > result.zeta


@pytest.mark.parametrize("sides", ["both", "rows", "columns"])
def test_W_is_in_the_coordinates_of_the_user(problem, sides):
    """Also for features that are not orthonormal: L = F1 W F2ᵀ, with the identity where nothing is known."""
    F1, F2 = sides_of(problem, sides)
    rng = np.random.default_rng(0)
    F1, F2 = (F if F is None else F @ rng.standard_normal((F.shape[1],) * 2) for F in (F1, F2))
    result = solve(problem.M, F1, F2)
    L = result.W if F1 is None else F1 @ result.W
    L = L if F2 is None else L @ F2.T
    assert problem.relative_error(L) <= 1e-11


def test_the_rank_found_is_the_rank_of_everything(noisy_fit):
    result = noisy_fit
    assert result.rank == result.L.rank == np.linalg.matrix_rank(result.W) == 2
    assert "rank" in [choice.name for choice in result.choices]
    assert result.noise == pytest.approx(1e-4, rel=0.02)


def test_a_rank_that_was_given_is_no_choice(noisy):
    result = solve(noisy.M, noisy.F1, noisy.F2, rank=1)
    assert result.rank == 1
    assert [choice.name for choice in result.choices] == ["extra_rank", "noise"]


def test_engine_and_solver_are_named(problem):
    result = solve(problem.M, problem.F1, problem.F2, solver="irpca_iht", rank=2, engine="reference")
    assert (result.solver, result.engine) == ("irpca_iht", "reference")


# Doubts


def test_an_empty_S_is_doubted():
    problem = make_problem(60, 50, d1=4, d2=3, rank=2, corruption=0.0, features="conditioned")
    result = solve(problem.M, problem.F1, problem.F2)
    assert result.S.nnz == 0
    assert [doubt.kind for doubt in result.doubts] == ["empty"]


def test_the_highest_rank_possible_is_doubted(problem):
    result = solve(problem.M, problem.F1, problem.F2, rank=3)
    assert [doubt.kind for doubt in result.doubts] == ["full-rank"]
    assert solve(problem.M, problem.F1, problem.F2, rank=2).doubts == ()


def test_an_L_that_explains_little_is_doubted(stub, problem):
    L = LowRank.from_product(np.full((60, 1), 1e-6), np.ones((50, 1)))
    stub([a_state(L, zeta=np.inf, step=0.0)])
    result = solve(problem.M, solver="stub")
    assert result.explained < 0.01
    (doubt,) = (doubt for doubt in result.doubts if doubt.kind == "little-explained")
    assert doubt.text.startswith("expected values explain only 0%")


# What is known, and what is wrong


def test_S_is_what_the_calibration_calls_more_likely_wrong_than_not(noisy):
    result = solve(noisy.M)
    R = noisy.M - result.L.dense()
    scale = result.scale.unit_table(R)
    np.testing.assert_array_equal(result.S.toarray() != 0, result.calibration(R / scale) > 0.5)
    np.testing.assert_array_equal(result.S.toarray()[noisy.corrupted] != 0, np.abs(R[noisy.corrupted]) > result.zeta)
    assert result.zeta == pytest.approx(result.calibration.limit * np.median(scale), rel=1e-3)
    assert result.certificate is not None and result.fit is not None


def test_pure_noise_has_rank_zero():
    M = np.random.default_rng(5).standard_normal((120, 80))
    result = solve(M)
    assert result.rank == 0 and result.converged
    np.testing.assert_array_equal(result.L.dense(), 0)
    assert result.S.nnz <= 0.001 * M.size
    assert "no-pattern" in [doubt.kind for doubt in result.doubts]


def known_of(counts, features=(False, False), rank=2):
    """Which lines are known, of a table with so many entries in its first rows and all of them in the others."""
    M = np.ones((10, 8))
    for row, count in enumerate(counts):
        M[row, count:] = np.nan
    F1, F2 = (
        Features.of(np.random.default_rng(0).standard_normal((n, 2)), n) if given else Features.identity(n)
        for n, given in zip((10, 8), features, strict=True)
    )
    L = LowRank.from_product(np.ones((10, rank)) + np.eye(10, rank), np.ones((8, rank)) + np.eye(8, rank))
    return known_lines(ReferenceEngine(M), F1, F2, a_state(L))


def test_a_line_with_fewer_entries_than_components_is_not_known():
    rows, cols = known_of([0, 1, 2, 3])
    np.testing.assert_array_equal(rows, np.arange(10) > 1)
    assert cols.all()
    rows, _ = known_of([0, 1, 2, 3], rank=1)
    np.testing.assert_array_equal(rows, np.arange(10) > 0)


def test_features_make_a_line_known():
    rows, cols = known_of([0, 1, 2, 3], features=(True, False))
    assert rows.all() and cols.all()


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


def refused(problem, error, match, **options):
    with pytest.raises(error, match=match):
        solve(problem.M, problem.F1, problem.F2, **options)


def test_an_unknown_solver_is_refused_with_the_names_of_the_known(problem):
    refused(problem, ValueError, r"solver='magic' is unknown; choose one of 'irpca', 'trimmed'", solver="magic")


def test_an_unknown_engine_is_refused_with_the_names_of_the_known(problem):
    refused(problem, ValueError, r"engine='magic' is unknown; choose one of 'auto', 'memory'", engine="magic")


def test_an_unknown_option_is_refused_with_the_names_of_the_known(problem):
    refused(problem, TypeError, r"solver='irpca' takes no option foo; it takes extra_rank, noise", foo=1)
    refused(problem, TypeError, r"takes no option noise; it takes variant, c_W", noise=1, solver="irpca_iht", rank=2)


@pytest.mark.parametrize("rank", [0, -1, 4, 100])
def test_a_rank_out_of_range_is_refused_with_the_range(problem, rank):
    message = rf"rank={rank} is out of range: .* 4 components for rows and 3 for columns.*1 <= rank <= 3"
    refused(problem, ValueError, message, rank=rank)


@pytest.mark.parametrize("rank", [2.5, 2.0, True, "five", None, [2]])
def test_a_rank_that_is_no_number_of_directions_is_refused(problem, rank):
    refused(problem, ValueError, "rank must be a positive integer or 'auto'", rank=rank)


def test_a_rank_from_numpy_is_a_rank(problem):
    assert solve(problem.M, problem.F1, problem.F2, rank=np.int32(2)).rank == 2


def test_the_paper_needs_a_rank(problem):
    refused(problem, ValueError, r"needs the rank: pass rank=r with 1 <= r <= 3", solver="irpca_iht")


@pytest.mark.parametrize("tol", [-1.0, -1e-300, np.nan])
def test_a_bad_tol_is_refused(problem, tol):
    refused(problem, ValueError, "tol must not be negative", tol=tol)


@pytest.mark.parametrize(("max_iter", "words"), [(0, "at least 1"), (-3, "at least 1"), (np.nan, "a whole number")])
def test_a_bad_max_iter_is_refused(problem, max_iter, words):
    refused(problem, ValueError, f"max_iter must be {words}", max_iter=max_iter)


@pytest.mark.parametrize("noise", [-1.0, np.nan])
@pytest.mark.parametrize("sides", SIDES)
def test_a_bad_noise_is_refused(problem, noise, sides):
    with pytest.raises(ValueError, match="noise must be the standard deviation of the noise, a finite number"):
        solve(problem.M, *sides_of(problem, sides), noise=noise)


def test_options_are_checked_before_M_is_read(problem):
    engine = MemoryEngine(problem.M)
    for options in ({"rank": 0}, {"tol": -1}, {"max_iter": 0}, {"foo": 1}):
        refused(problem, (ValueError, TypeError), ".", engine=engine, **options)
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
        "three dimensions": (M[None], r"M must have two dimensions, got shape \(1, 4, 3\)"),
        "nothing": (None, "M must have two dimensions"),
        "no rows": (M[:0], r"M is empty: its shape is \(0, 3\)"),
        "no columns": (M[:, :0], r"M is empty: its shape is \(4, 0\)"),
        "one row": (M[:1], r"M has shape \(1, 3\); at least two rows and two columns"),
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


def test_a_single_nan_in_a_large_matrix_is_met():
    """Not by the sample, most likely; the first read of all of M meets it, and then it is a missing entry."""
    problem = make_problem(600, 500, d1=5, d2=4, rank=2, corruption=0.1, features="conditioned")
    problem.M[123, 457] = np.nan
    assert irpca.engines.choose(problem.M).name == "memory"
    result = solve(problem.M, problem.F1, problem.F2)
    assert result.engine == "memory" and result.n_observed == 600 * 500 - 1
    assert problem.relative_error(result.L) < 1e-12


@pytest.mark.parametrize(
    ("sides", "sparse", "dtype"),
    all_pairs(list(SIDES), [True, False], [np.float64, np.float32, np.int64, bool]),
)
def test_a_matrix_of_zeros_is_refused(problem, sides, sparse, dtype):
    with pytest.raises(ValueError, match="M is all zero: there is nothing to find"):
        solve(np.zeros((60, 50), dtype), *sides_of(problem, sides), sparse=sparse)


def test_a_matrix_of_zeros_is_refused_by_the_paper_too(problem):
    with pytest.raises(ValueError, match="M is all zero"):
        solve(np.zeros((60, 50)), problem.F1, problem.F2, rank=2, solver="irpca_iht")


@pytest.mark.parametrize("sides", ["both", "none"])
def test_a_matrix_of_zeros_but_for_a_few_entries_is_not_refused(sides):
    """No sample sees the two of 180,000: L = 0, and S is all of M."""
    M = np.zeros((600, 300))
    M[3, 4], M[500, 200] = 1.0, -2.0
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((600, 3)), rng.standard_normal((300, 3))) if sides == "both" else (None, None)
    result = solve(M, *features)
    np.testing.assert_array_equal(result.S.toarray(), M)
    np.testing.assert_array_equal(result.L.dense(), 0)
    assert result.usable != "usable"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("sides", SIDES)
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


def bad_features(problem):
    F1, F2 = problem.F1, problem.F2
    holes = F2.copy()
    holes[7, 1] = np.nan
    return {
        "transposed rows": (F1.T, F2, r"F1 has 4 rows but M has 60 rows; did you mean F1\.T\?"),
        "transposed columns": (F1, F2.T, r"F2 has 3 rows but M has 50 columns; did you mean F2\.T\?"),
        "swapped": (F2, F1, "F1 has 50 rows but M has 60 rows"),
        "one dimension": (F1[:, 0], F2, r"F1 must have two dimensions.*did you mean F1\.reshape\(-1, 1\)\?"),
        "zero": (F1, 0 * F2, "F2 is all zero; pass None if nothing is known about the columns of M"),
        "no columns": (F1[:, :0], F2, "F1 has no columns"),
        "NaN": (F1, holes, "F2 holds NaN or infinite values"),
        "infinite": (np.where(np.arange(60)[:, None] == 3, np.inf, F1), F2, "F1 holds NaN or infinite values"),
        "complex": (F1 + 0j, F2, "F1 is complex"),
        "text": (F1, np.full((50, 2), "red"), "F2 has dtype <U3 and does not convert to numbers"),
    }


FEATURE_FAULTS = (
    "transposed rows",
    "transposed columns",
    "swapped",
    "one dimension",
    "zero",
    "no columns",
    "NaN",
    "infinite",
    "complex",
    "text",
)


@pytest.mark.parametrize("kind", FEATURE_FAULTS)
def test_bad_features_are_refused_with_what_is_wrong(problem, kind):
    F1, F2, told = bad_features(problem)[kind]
    with pytest.raises(ValueError, match=told):
        solve(problem.M, F1, F2)


def test_fewer_rows_than_features_are_refused(problem):
    with pytest.raises(ValueError, match="F1 has 4 features for only 3 rows of M"):
        solve(problem.M[:3], problem.F1[:3], problem.F2)
    with pytest.raises(ValueError, match="F2 has 3 features for only 2 columns of M"):
        solve(problem.M[:, :2], problem.F1, problem.F2[:2])


@pytest.mark.parametrize(
    "extra, told",
    [
        (lambda F: F[:, :1] - 2 * F[:, 1:2], "column 4 collinear with earlier columns"),
        (lambda F: np.zeros((60, 1)), "column 4 all zero"),
    ],
    ids=["collinear", "zero"],
)
def test_redundant_features_are_told_and_change_nothing(problem, extra, told):
    F1 = np.column_stack([problem.F1, extra(problem.F1)])
    with pytest.warns(FeatureWarning, match=told):
        result = solve(problem.M, F1, problem.F2)
    assert problem.relative_error(result.L) <= 1e-12
    assert result.W.shape == (5, 3)
    assert problem.relative_error(F1 @ result.W @ problem.F2.T) <= 1e-11


def test_features_may_be_prepared_once(problem):
    F1, F2 = Features.of(problem.F1, 60), Features.of(problem.F2, 50)
    np.testing.assert_array_equal(solve(problem.M, F1, F2).W, solve(problem.M, problem.F1, problem.F2).W)
    with pytest.raises(ValueError, match="these Features are of a 50 × 60 matrix, M is 60 × 50"):
        solve(problem.M, F2, F1)


def test_an_engine_may_be_given_ready_made(problem):
    engine = ReferenceEngine(problem.M)
    result = solve(None, problem.F1, problem.F2, engine=engine)
    assert problem.relative_error(result.L) <= 1e-12
    assert 0 < result.reads <= engine.reads


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("sides", SIDES)
def test_nothing_that_is_given_is_changed(problem, sides, order):
    M = np.array(problem.M, order=order)
    F1, F2 = (F if F is None else F.copy() for F in sides_of(problem, sides))
    given = [A for A in (M, F1, F2) if A is not None]
    before = [A.copy() for A in given]
    for A in given:
        A.flags.writeable = False  # and what is read-only is taken
    assert solve(M, F1, F2).converged
    if sides != "none":
        solve(M, F1, F2, solver="irpca_iht", rank=2)
    for A, B in zip(given, before, strict=True):
        np.testing.assert_array_equal(A, B)


def test_writeable_arrays_stay_writeable(problem):
    M = problem.M.copy()
    solve(M, problem.F1, problem.F2)
    assert M.flags.writeable


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint8])
def test_integers_are_taken_for_what_they_are(dtype):
    rng = np.random.default_rng(0)
    left, right = rng.integers(1, 8, (60, 1)), rng.integers(1, 8, (50, 1))
    L = left @ right.T
    M = np.where(rng.random(L.shape) < 0.1, 200, L).astype(dtype)
    result = solve(M, left, right)
    assert result.converged and result.rank == 1
    np.testing.assert_allclose(result.L.dense(), L, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.S.toarray(), M.astype(float) - L, rtol=0, atol=1e-10)
    assert result.S.dtype == np.float64


def test_two_values_that_differ_by_rounding_are_one():
    result = solve(np.where(np.arange(3000).reshape(60, 50) % 2, 0.3, 0.1 + 0.2))
    assert result.converged and result.S.nnz == 0


@pytest.mark.parametrize("sparse", [True, False])
def test_outliers_that_are_all_equal_are_counted_and_cost_nothing_more(sparse):
    given = make_problem(600, 500, d1=5, d2=4, rank=2, corruption=0.2, features="conditioned")
    usual, equal = (
        solve(M, given.F1, given.F2, rank=2, sparse=sparse)
        for M in (given.M, np.where(given.corrupted, 10 * given.L.max(), given.L))
    )
    assert given.relative_error(equal.L) <= 1e-12
    assert equal.corruption == pytest.approx(0.2, abs=0.01)
    assert equal.reads == pytest.approx(usual.reads, rel=1e-12)


@pytest.mark.parametrize("give", [np.ndarray.tolist, lambda M: M.astype(object), lambda M: M.astype(np.longdouble)])
def test_lists_and_objects_that_are_numbers_are_taken(problem, give):
    result = solve(give(problem.M), problem.F1.tolist(), problem.F2.astype(object))
    assert problem.relative_error(result.L) <= 1e-12


def test_float32_stays_float32(problem):
    result = solve(problem.M.astype(np.float32), problem.F1, problem.F2)
    assert result.converged and result.rank == 2
    assert result.S.dtype == np.float32
    assert problem.relative_error(result.L) <= 1e-6
    np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted)


@pytest.mark.parametrize("sides", ["both", "none"])
def test_a_memory_mapped_file_is_used_where_it_lies(tmp_path, small, small_fit, sides):
    path = tmp_path / "M.npy"
    np.save(path, small.M)
    mapped = np.load(path, mmap_mode="r")
    result = solve(mapped, *sides_of(small, sides))
    np.testing.assert_array_equal(result.L.dense(), small_fit(sides).L.dense())
    assert np.shares_memory(irpca.engines.choose(mapped).piece.A, mapped)


# The same again


@pytest.mark.parametrize("sides", SIDES)
def test_the_same_seed_gives_the_same_result_bit_for_bit(small, small_fit, sides):
    one, two = small_fit(sides), solve(small.M, *sides_of(small, sides))
    for name in ("left", "core", "right"):
        np.testing.assert_array_equal(getattr(one.L, name), getattr(two.L, name))
    assert (one.S != two.S).nnz == 0
    assert (one.zeta, one.noise, one.reads, one.choices) == (two.zeta, two.noise, two.reads, two.choices)
    assert one.history.step == two.history.step


def test_a_generator_is_used_as_it_stands_and_moves_on(noisy):
    rng = np.random.default_rng(3)
    first, second = (solve(noisy.M, noisy.F1, noisy.F2, random_state=rng) for _ in range(2))
    again = solve(noisy.M, noisy.F1, noisy.F2, random_state=np.random.default_rng(3))
    assert first.history.step == again.history.step
    assert second.history.step != first.history.step


def test_a_seed_sequence_gives_the_same_at_every_call_and_what_its_int_gives(noisy):
    seed = np.random.SeedSequence(3)
    steps = [solve(noisy.M, noisy.F1, noisy.F2, random_state=state).history.step for state in (seed, seed, 3)]
    assert steps[0] == steps[1] == steps[2]


def test_every_purpose_has_a_seed_of_its_own():
    seeds = seeds_of(0)
    drawn = {name: tuple(np.random.default_rng(seed).integers(2**60, size=2)) for name, seed in seeds.items()}
    assert len(set(drawn.values())) == len(drawn) >= 3
    assert tuple(np.random.default_rng(0).integers(2**60, size=2)) not in drawn.values()  # what a user may draw M with
    for name, seed in seeds_of(0).items():
        assert tuple(np.random.default_rng(seed).integers(2**60, size=2)) == drawn[name]


def test_what_a_solver_draws_changes_nothing_else(monkeypatch, problem):
    L = LowRank.from_product(np.ones((60, 1)), np.ones((50, 1)))

    def drawn(asked):
        found = []

        def run(problem):
            problem.generator().integers(2**60, size=asked)
            for purpose in PURPOSES[:asked]:
                problem.rng(purpose).integers(2**60, size=asked)
            yield a_state(L, step=0.0)

        def draw(self, size, rng, draw=MemoryEngine.draw):
            found.append(int(rng.integers(2**60)))
            return draw(self, size, rng)

        monkeypatch.setitem(SOLVERS, "stub", Solver(run, "chosen", features=True))
        with monkeypatch.context() as patch:
            patch.setattr(MemoryEngine, "draw", draw)
            solve(problem.M, problem.F1, problem.F2, solver="stub")
        return found

    assert drawn(1) == drawn(7) != []


def test_every_purpose_of_a_solver_has_random_numbers_of_its_own(problem):
    asked = Problem(MemoryEngine(problem.M), Features.identity(60), Features.identity(50), 2, np.random.SeedSequence(0))
    drawn = {purpose: int(asked.rng(purpose).integers(2**60)) for purpose in PURPOSES}
    assert len({*drawn.values(), int(asked.generator().integers(2**60))}) == len(PURPOSES) + 1
    assert drawn == {purpose: int(asked.rng(purpose).integers(2**60)) for purpose in PURPOSES}  # at every call


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("rank", [2, "auto"])
def test_the_factors_of_L_are_its_singular_vectors(problem, sides, rank):
    L = solve(problem.M, *sides_of(problem, sides), rank=rank).L
    s = np.diag(L.core)
    np.testing.assert_array_equal(L.core, np.diag(np.sort(s)[::-1]))
    for Q in (L.left, L.right):
        np.testing.assert_allclose(Q.T @ Q, np.eye(L.rank), rtol=0, atol=1e-13)


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


def test_another_seed_gives_the_same_answer_to_within_the_noise():
    p = make_problem(450, 400, d1=20, d2=16, rank=2, corruption=0.1, noise=1e-4, features="conditioned")
    one, two = (solve(p.M, p.F1, p.F2, random_state=seed) for seed in (1, 2))
    assert one.zeta != two.zeta  # from other blocks, other entries
    error = p.relative_error(one.L)
    assert np.linalg.norm(one.L.dense() - two.L.dense()) <= 0.5 * error * np.linalg.norm(p.L)


def test_solve_leaves_the_global_random_state_alone(problem):
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    solve(problem.M, problem.F1, problem.F2)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("which", ["problem", "small"])
@pytest.mark.parametrize("sides", SIDES)
def test_the_engine_makes_no_difference(monkeypatch, request, which, sides):
    """But that one solves for the coefficients of features by conjugate gradients, which usually stop early."""
    monkeypatch.setattr(lines, "CG_DIGITS", 1e-14)
    monkeypatch.setattr(lines, "CG_STEPS", 500)
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
