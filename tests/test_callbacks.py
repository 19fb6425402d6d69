import io
import logging
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from irpca import solve
from irpca.callbacks import Log, Progress, TimeBudget
from irpca.datasets import make_problem
from irpca.lowrank import LowRank
from irpca.result import History, State


@pytest.fixture(scope="module")
def problem():
    return make_problem(60, 50, d1=4, d2=3, rank=2, corruption=0.1, features="conditioned")


def run(problem, callbacks, **options):
    return solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht", callbacks=callbacks, **options)


def one_state(zeta=0.25, step=1e-3, seconds=1.5, reads=2.0):
    """A state without a trim, and a history that holds it: M was not read in full."""
    state, history = State(LowRank.zero((3, 2)), zeta, step), History()
    history.append(state, seconds, reads)
    return state, history


class Terminal(io.StringIO):
    def isatty(self):
        return True


# Progress.

LINE = re.compile(r"\[(#*\.*)\] ([^,]+), (\S+ (?:s|min \d+ s|h \d+ min))(?:, about (\S+ .+) left)?")


def race(*stages):
    """States and the history up to each of them, a second apart."""
    history = History()
    for stage, progress, step in stages:
        state = State(LowRank.zero((3, 2)), 0.25, step, settled=False, stage=stage, progress=progress)
        history.append(state, float(len(history) + 1), 1.0)
        yield state, history


def test_progress_elsewhere_is_a_line_for_every_stage(capsys):
    progress = Progress()
    for state, history in race(("comparing fits", 0.1, 1.0), ("comparing fits", 0.5, 1.0), ("", None, 1e-2)):
        progress(state, history)
    out, err = capsys.readouterr()
    first, second = (LINE.fullmatch(line) for line in err.splitlines())
    assert out == ""
    assert (first[2], second[2]) == ("comparing fits", "fitting")
    assert first[4] == "9.0 s"  # a tenth took one second


def test_progress_elsewhere_says_something_every_ten_seconds():
    stream = io.StringIO()
    progress = Progress(stream)
    for state, history in race(*[("comparing fits", 0.1, 1.0)] * 25):
        progress(state, history)
    assert len(stream.getvalue().splitlines()) == 3


def test_progress_rewrites_its_line_on_a_terminal(problem):
    stream = Terminal()
    progress = Progress(stream)
    result = run(problem, progress)
    first, *others = stream.getvalue().split("\x1b[A")
    assert len(others) == result.n_iter - 1
    lines = [line.removeprefix("\x1b[2K") for line in (first, *others)]
    done = [LINE.fullmatch(line[:-1])[1].count("#") for line in lines]
    assert all(line.endswith("\n") for line in lines)
    assert done == sorted(done) and done[-1] > done[0]  # a bar that never goes back
    before = len(stream.getvalue())
    run(problem, progress)
    assert stream.getvalue()[before:].startswith("\x1b[2K[....")  # a second run has a line of its own


def test_steps_that_fall_tell_how_much_is_left():
    stream = Terminal()
    progress = Progress(stream)
    for state, history in race(("", None, 1.0), ("", None, 1e-5)):  # half of the way to 1e-10, in logarithms
        progress(state, history)
    assert LINE.search(stream.getvalue().splitlines()[-1])[4] == "2.0 s"


@pytest.mark.parametrize(("seconds", "text"), [(1.26, "1.3 s"), (75, "1 min 15 s"), (7500, "2 h 5 min")])
def test_a_line_of_progress_fits_a_terminal(seconds, text):
    """A line that wraps cannot be rewritten."""
    stream = io.StringIO()
    state, history = next(race(("comparing fits, 12 made", 0.5, 1.0)))
    history.seconds[-1] = seconds
    Progress(stream)(state, history)
    assert len(stream.getvalue().rstrip("\n")) < 90 and text in stream.getvalue()


def test_the_default_solver_says_what_it_compares_and_then_fits():
    M = np.random.default_rng(5).standard_normal((40, 3)) @ np.random.default_rng(6).standard_normal((3, 30))
    M += 0.1 * np.random.default_rng(7).standard_normal(M.shape)
    stages = solve(M).history.stage
    assert stages[0] == "comparing fits, 1 made" and "fitting all of the table" in stages and stages[-1] == ""


# Log.


def test_log_makes_a_record_per_iteration(problem, caplog):
    with caplog.at_level(logging.INFO, logger="irpca"):
        result = run(problem, Log())
    assert [r.name for r in caplog.records] == ["irpca"] * result.n_iter
    history = result.history
    expected = [
        f"iteration {k + 1}: zeta={history.zeta[k]:.3g} step={history.step[k]:.2e} "
        f"corruption={history.corruption[k]:.4f} reads={history.reads[k]:.2f}"
        for k in range(result.n_iter)
    ]
    assert [r.getMessage() for r in caplog.records] == expected
    with caplog.at_level(logging.INFO, logger="irpca"):
        Log()(*one_state())
    assert caplog.messages[-1] == "iteration 1: zeta=0.25 step=1.00e-03 corruption=nan reads=2.00"


# TimeBudget.


def test_a_budget_is_compared_with_the_time_since_the_start():
    assert TimeBudget(1.4)(*one_state(seconds=1.5)) is True
    assert TimeBudget(1.5)(*one_state(seconds=1.5)) is False
    with pytest.raises(ValueError, match="a time budget is a positive number of seconds, got nan"):
        TimeBudget(math.nan)


# Reads of a table in chunks.


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("irpca.callbacks.time.perf_counter", lambda: now.seconds)
    return now


def test_a_read_on_a_terminal_is_one_line_that_goes_when_it_ends(clock):
    progress = Progress(Terminal())
    for done in (1, 2, 4):
        progress.reading(done, 4)
        clock.seconds += 3.0
    first, last = progress.stream.getvalue().split("\r\x1b[2K")[1:3]
    assert first == "  reading the table: 2 of 4 chunks, about 6.0 s left"  # the first took 3 s
    assert last == "  reading the table: 4 of 4 chunks, about 0.0 s left" and "\n" not in progress.stream.getvalue()
    assert progress.stream.getvalue().endswith("\r\x1b[2K")


def test_a_read_elsewhere_is_a_line_every_ten_seconds(clock):
    progress = Progress(io.StringIO())
    for done in range(1, 6):
        progress.reading(done, 5)
        clock.seconds += 6.0
    lines = progress.stream.getvalue().splitlines()
    assert lines == ["  reading the table: 3 of 5 chunks, about 12.0 s left"]
