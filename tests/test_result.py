"""What solve() returns, and how it tells people about it."""

import dataclasses

import numpy as np
import pytest
from scipy.sparse import csr_array

from irpca import Choice, Doubt, History, LowRank, Result, State, Status, solve
from irpca.datasets import make_problem
from irpca.engines.base import Trim
from irpca.loop import explained, left_over


def a_result(**changes):
    L = LowRank.from_product(np.arange(4.0)[:, None] + 1, np.ones((3, 1)))
    history = History()
    history.append(State(L, zeta=0.5, step=1.0), seconds=0.1, reads=1.0)
    history.append(State(L, zeta=0.25, step=1e-12), seconds=0.2, reads=2.25)
    fields = {
        "L": L,
        "S": csr_array(([7.0], ([1], [2])), shape=(4, 3)),
        "W": None,
        "rank": 1,
        "noise": 0.0123456,
        "corruption": 1 / 12,
        "zeta": 0.25,
        "residual": 0.02,
        "explained": 0.98765,
        "status": Status.CONVERGED,
        "history": history,
        "choices": (),
        "doubts": (),
        "solver": "irpca",
        "engine": "memory",
        "reads": 3.25,
        "seconds": 0.25,
        "counts": (np.full(4, 3), np.full(3, 4)),
    }
    return Result(**fields | changes)


# Status


@pytest.mark.parametrize("status", Status)
def test_every_status_has_advice_that_reads_as_a_sentence(status):
    assert len(status.advice) > 30
    assert status.advice[0].islower() and status.advice.endswith(".")


def test_no_two_statuses_have_the_same_advice():
    assert len({status.advice for status in Status}) == len(Status) == 6


def test_only_converged_is_ok():
    assert [status for status in Status if status.ok] == [Status.CONVERGED]


@pytest.mark.parametrize(
    "status, try_this",
    [
        (Status.MAX_ITER, "raise max_iter"),
        (Status.STOPPED, "raise the time budget"),
        (Status.INTERRUPTED, "fit again"),
        (Status.SATURATED, "check that the features are in the order of the table"),
        (Status.DIVERGED, "lower the rank"),
    ],
)
def test_advice_says_what_to_do(status, try_this):
    assert try_this in status.advice


# Result


@pytest.mark.parametrize("status", Status)
def test_the_summary_tells_status_and_advice(status):
    result = a_result(status=status)
    assert f"Computation: {status.name}, {status.advice}" in result.summary()
    assert result.converged == status.ok


def test_the_summary_tells_the_numbers():
    lines = a_result().summary().splitlines()
    assert lines == [
        "usable: no check found anything wrong",
        "Table: 4 rows × 3 columns",
        "Outliers: 1 cell (8.33%), those more than 0.25 from what is expected",
        "Expected values: 1 component; they explain 98.8% of the sum of squares of all cells but outliers",
        "Noise: standard deviation 0.0123 in a typical cell; it differs by row and column, see std in outliers()",
        "Computation: CONVERGED, the expected values no longer change. 2 iterations, 0.25 s (solver irpca, "
        "engine memory, 3.25 reads of the table)",
    ]


@pytest.mark.parametrize(
    "status, doubted, usable, why",
    [
        (Status.CONVERGED, (), "usable", "no check found anything wrong"),
        (Status.CONVERGED, ("empty", "full-rank"), "usable", "no serious doubt; what to check is below"),
        (Status.CONVERGED, ("coarse", "noise-grows"), "use with care", "coarse was seen; and 1 more check below"),
        (Status.CONVERGED, ("coarse", "unstable"), "do not use", "unstable was seen"),
        (Status.CONVERGED, ("out-of-range",), "do not use", "out-of-range was seen"),
        (Status.SATURATED, ("failure",), "do not use", Status.SATURATED.meaning),
        (Status.MAX_ITER, (), "do not use", Status.MAX_ITER.meaning),
        (Status.STOPPED, ("coarse",), "do not use", Status.STOPPED.meaning),
    ],
)
def test_the_summary_opens_with_whether_to_use_it(status, doubted, usable, why):
    result = a_result(status=status, doubts=tuple(Doubt(kind, f"{kind} was seen: and so on") for kind in doubted))
    assert result.usable == usable
    assert result.summary().splitlines()[0] == f"{usable}: {why}"


def test_the_summary_tells_choices_with_their_reasons():
    choices = (Choice("rank", 3, "because of the gap"), Choice("noise", 0.0123456, "from the core"))
    text = a_result(choices=choices).summary()
    chosen = text[text.index("Chosen from the data:") :].splitlines()
    assert chosen[1:] == ["  rank = 3: because of the gap", "  noise = 0.0123: from the core"]
    assert "What to check" not in text


def test_the_summary_tells_doubts():
    doubts = Doubt("coarse", "this may be wrong"), Doubt("piled-up", "and this", rows=(3,))
    text = a_result(doubts=doubts).summary()
    assert text.splitlines()[-3:] == ["What to check:", "  - this may be wrong", "  - and this"]
    assert "Chosen from the data" not in text


def test_the_summary_of_unknown_noise():
    assert "Noise: unknown to this solver" in a_result(noise=None).summary()


@pytest.mark.parametrize("changes", [{"S": None}, {"corruption": np.nan}, {"explained": np.nan, "zeta": np.inf}])
def test_the_summary_can_do_with_less(changes):
    assert "Table: 4 rows × 3 columns" in a_result(**changes).summary()


def test_repr_is_short():
    assert repr(a_result()) == "Result(shape=(4, 3), rank=1, corruption=0.0833, status=CONVERGED, n_iter=2)"


def test_a_result_is_not_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_result().rank = 2


def test_the_summary_of_a_real_run_holds_its_choices_and_doubts():
    problem = make_problem(60, 50, d1=4, d2=3, rank=2, corruption=0.0, noise=1e-3, features="conditioned")
    result = solve(problem.M, problem.F1, problem.F2)
    text = result.summary()
    assert "rank" in [choice.name for choice in result.choices]
    for choice in result.choices:
        assert choice.reason in text
    assert result.doubts
    for doubt in result.doubts:
        assert f"  - {doubt.text}" in text


# History


def test_history_is_empty_at_first():
    assert len(History()) == 0


def test_history_takes_what_rode_along():
    history = History()
    L = LowRank.zero((4, 3))
    history.append(State(L, zeta=0.5, step=0.1, trim=Trim(kept=9, trimmed=3, energy=36.0, largest=3.0)), 1.5, 2.0)
    assert len(history) == 1
    assert (history.seconds, history.reads, history.zeta, history.step) == ([1.5], [2.0], [0.5], [0.1])
    assert history.corruption == [0.25]
    assert history.residual == [2.0]


def test_history_knows_what_it_does_not_know():
    history = History()
    history.append(State(LowRank.zero((4, 3)), zeta=0.5, step=0.1), 1.5, 0.25)
    assert np.isnan(history.corruption[0]) and np.isnan(history.residual[0])


def test_history_of_a_step_that_keeps_nothing():
    history = History()
    history.append(State(LowRank.zero((4, 3)), 0.0, 1.0, Trim(0, 12, 0.0, 0.0)), 1.0, 1.0)
    assert history.corruption == [1.0] and history.residual == [0.0]


# What L explains

RANK_ONE = LowRank.from_product(np.full((4, 1), 2.0), np.ones((3, 1)))  # every entry is 2, so 4 of energy each


@pytest.mark.parametrize(
    "trim, noise, share",
    [
        (Trim(12, 0, 0.0, 0.0), None, 1.0),
        (Trim(12, 0, 12.0, 1.0), None, 0.8),
        (Trim(6, 6, 6.0, 1.0), 100.0, 0.8),  # what was seen counts, not what was estimated
        (Trim(0, 12, 0.0, 0.0), None, 1.0),
        (None, 1.0, 0.8),
        (None, 0.0, 1.0),
        (None, None, 1.0),
    ],
)
def test_explained_is_energy_of_L_against_what_is_left(trim, noise, share):
    assert explained(RANK_ONE, left_over(trim, noise)) == pytest.approx(share, rel=1e-12)


def test_nothing_explains_nothing():
    assert explained(LowRank.zero((4, 3)), 0.0) == 0.0
    assert explained(LowRank.zero((4, 3)), 5.0) == 0.0


def test_explained_is_what_a_look_at_the_planted_parts_says():
    problem = make_problem(300, 200, d1=5, d2=4, rank=2, corruption=0.1, features="conditioned")
    size = np.sqrt(np.mean(problem.L**2))
    rng = np.random.default_rng(0)
    M = problem.M + 0.5 * size * rng.standard_normal(problem.M.shape)
    M[problem.corrupted] = 100 * size
    result = solve(M, problem.F1, problem.F2, rank=2)
    assert result.explained == pytest.approx(1 / 1.25, abs=0.01)
