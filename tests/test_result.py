"""What solve() returns, and how it tells people about it."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from irpca import Choice, Doubt, History, LowRank, Result, State, Status, solve
from irpca.datasets import make_problem
from irpca.engines.base import Trim
from irpca.result import Certificate, Unseen


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


@pytest.mark.parametrize(
    "status, try_this",
    [
        (Status.CONVERGED, ""),
        (Status.MAX_ITER, "raise max_iter"),
        (Status.STOPPED, "raise the time budget"),
        (Status.INTERRUPTED, "fit again"),
        (Status.SATURATED, "check that the features are in the order of the table"),
        (Status.DIVERGED, "lower the rank"),
    ],
)
def test_the_summary_tells_the_status_and_what_to_do(status, try_this):
    result = a_result(status=status)
    assert try_this in status.advice
    assert f"Computation: {status.name}, {status.advice}" in result.summary()
    assert result.converged == status.ok == (status is Status.CONVERGED)


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
        (Status.CONVERGED, ("code", "unknown-lines"), "usable", "no check found anything wrong"),
        (
            Status.CONVERGED,
            ("noisy-rows", "noise-grows"),
            "use with care",
            "noisy-rows was seen; and 1 more check below",
        ),
        (Status.CONVERGED, ("noisy-rows", "intervals"), "do not use", "intervals was seen"),
        (Status.CONVERGED, ("too-small",), "do not use", "too-small was seen"),
        (Status.SATURATED, ("failure",), "do not use", Status.SATURATED.meaning),
        (Status.MAX_ITER, (), "do not use", Status.MAX_ITER.meaning),
        (Status.STOPPED, ("noisy-rows",), "do not use", Status.STOPPED.meaning),
    ],
)
def test_the_summary_opens_with_whether_to_use_it(status, doubted, usable, why):
    result = a_result(status=status, doubts=tuple(Doubt(kind, f"{kind} was seen: and so on") for kind in doubted))
    assert result.usable == usable
    assert result.summary().splitlines()[0] == f"{usable}: {why}"


def test_the_summary_tells_choices_and_doubts_with_their_reasons():
    choices = (Choice("rank", 3, "because of the gap"), Choice("noise", 0.0123456, "from the core"))
    text = a_result(choices=choices).summary()
    chosen = text[text.index("Chosen from the data:") :].splitlines()
    assert chosen[1:] == ["  rank = 3: because of the gap", "  noise = 0.0123: from the core"]
    doubts = (Doubt("noisy-rows", "this may be wrong"), *(Doubt("code", f"and {k}", rows=(k,)) for k in range(3)))
    text = a_result(doubts=doubts).summary()
    details = ["Details:", "  - and 0. 2 more like this"]
    assert text.splitlines()[-4:] == ["What to check:", "  - this may be wrong", *details]


def test_the_summary_tells_what_is_known_of_cells_left_out():
    skills = np.array([0.61, 0.02, np.nan])
    unseen = Unseen(0.45, skills, np.ones(3), (0.51, 0.948), np.full((2, 3), 0.5), 0.875, 12)
    text = a_result(certificate=Certificate((), "one", unseen)).summary(["a", "b", "c"])
    assert (
        "Cells left out: 45% of the variance of a typical column is predicted; 95 % intervals hold 94.8% of the cells, "
        "50 % intervals 51.0%; 88% of the outliers are clear without their own cell, too. "
        "Columns that are hardly predicted: b\n"
    ) in text


def test_history_takes_what_rode_along():
    history = History()
    L = LowRank.zero((4, 3))
    history.append(State(L, zeta=0.5, step=0.1, trim=Trim(kept=9, trimmed=3, energy=36.0, largest=3.0)), 1.5, 2.0)
    assert len(history) == 1
    assert (history.seconds, history.reads, history.zeta, history.step) == ([1.5], [2.0], [0.5], [0.1])
    assert history.corruption == [0.25]
    assert history.residual == [2.0]


def test_explained_is_what_a_look_at_the_planted_parts_says():
    problem = make_problem(300, 200, d1=5, d2=4, rank=2, corruption=0.1, features="conditioned")
    size = np.sqrt(np.mean(problem.L**2))
    rng = np.random.default_rng(0)
    M = problem.M + 0.5 * size * rng.standard_normal(problem.M.shape)
    M[problem.corrupted] = 100 * size
    result = solve(M, problem.F1, problem.F2, rank=2)
    assert result.explained == pytest.approx(1 / 1.25, abs=0.01)
