"""Small callables of a State: what to do after every iteration.

A callback gets the state and the history, and returns True to stop the run; the result then keeps the last
iterate.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

import numpy as np

from .arguments import number, shown
from .checkpoint import Checkpoint
from .constants import FINAL_TOLERANCE
from .result import History, State

PLAIN_STEP = 1e-10  # the tolerance of solve(), which ends solvers of one stage

Callback = Callable[[State, History], bool | None]


class Progress:
    """A bar with what is being done and about how long it will take, rewritten in place on a terminal.

    Elsewhere it is a line when something new begins, and every ten seconds.

    Parameters
    ----------
    stream : text stream, default sys.stderr
    """

    WIDTH = 24
    EVERY = 10.0  # seconds

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._said: tuple[str, float] = ("", -np.inf)
        self._share = 0.0
        self._began: tuple[float, int] | None = None
        self._told = time.perf_counter()

    def __call__(self, state: State, history: History) -> None:
        if len(history) == 1:
            self._said, self._share = ("", -np.inf), 0.0
        self._share = max(self._share, _estimate_share(state, history))
        stage, seconds = state.stage or "fitting", history.seconds[-1]
        bar = ("#" * int(self._share * self.WIDTH)).ljust(self.WIDTH, ".")
        line = f"[{bar}] {stage}, {_spell_duration(seconds)}{self._estimate_left(seconds)}"
        if self.stream.isatty():
            # Back up to the line before, so that the last one ends as a line should.
            self.stream.write(f"{'' if len(history) == 1 else chr(27) + '[A'}{chr(27)}[2K{line}\n")
        elif stage.partition(",")[0] != self._said[0] or seconds - self._said[1] >= self.EVERY:
            self._said = stage.partition(",")[0], seconds
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def reading(self, done: int, total: int) -> None:
        """How far a read of M has come, where M is read in chunks."""
        now = time.perf_counter()
        if done <= 1 or self._began is None:
            self._began = now, done
            return
        began, first = self._began
        seconds = now - began
        left = seconds * (total - done) / max(done - first, 1)
        line = f"  reading the table: {done} of {total} chunks, about {_spell_duration(left)} left"
        if self.stream.isatty():
            end = "\r" + chr(27) + "[2K" if done >= total else ""
            self.stream.write(f"\r{chr(27)}[2K{line}{end}")
        elif now - self._told >= self.EVERY and done < total:
            self._told = now
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def _estimate_left(self, seconds: float) -> str:
        if self._share < 0.05:
            return ""
        return f", about {_spell_duration(seconds * (1 / self._share - 1))} left"


def _estimate_share(state: State, history: History) -> float:
    """What share of the work is done, as far as that can be known: by the solver, or from how steps have fallen."""
    if state.progress is not None:
        return state.progress
    if state.settled:
        return 1.0
    steps = [step for step, stage in zip(history.step, history.stage, strict=True) if not stage and step > 0]
    first, goal = (0.7, FINAL_TOLERANCE) if any(history.stage) else (0.0, PLAIN_STEP)
    if len(steps) < 2 or steps[0] <= goal:
        return first
    fallen = np.log(steps[0] / steps[-1]) / np.log(steps[0] / goal)
    return float(first + (1 - first) * np.clip(fallen, 0.0, 0.99))


def _spell_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Log:
    """A record per iteration in Python's logging.

    Parameters
    ----------
    logger : logging.Logger, default the one named ``irpca``
    level : int
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self.logger = logging.getLogger("irpca") if logger is None else logger
        self.level = level

    def __call__(self, state: State, history: History) -> None:
        self.logger.log(
            self.level,
            "iteration %d: zeta=%.3g step=%.2e corruption=%.4f reads=%.2f",
            len(history),
            state.zeta,
            state.step,
            history.corruption[-1],
            history.reads[-1],
        )


def listed(callbacks: Callback | Iterable[Callback] | None) -> list[Callback]:
    """The callbacks that were given: none, one, or several."""
    if callbacks is None or callable(callbacks):
        return [] if callbacks is None else [callbacks]
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for one in given:
        if not callable(one):
            raise ValueError(f"callbacks must be a callable, or several in a list, got {shown(one)}")
    return given


class TimeBudget:
    """Stop after the first step that ends later than ``seconds`` after the start; the best fit by then is kept.

    Parameters
    ----------
    seconds : float
    """

    def __init__(self, seconds: float) -> None:
        if not number(seconds, "seconds") > 0:
            raise ValueError(f"a time budget is a positive number of seconds, got {seconds!r}")
        self.seconds = seconds

    def __call__(self, state: State, history: History) -> bool:
        return history.seconds[-1] > self.seconds


def checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Keep what M was asked in a file, from which ``solve(..., resume=path)`` goes on after an interruption.

    Killed at any moment, a solve that is resumed comes to the same result: to the bit on the same machine with the same
    libraries, elsewhere to rounding. What the file has is not asked of M again.

    The file grows with every read of M by what the read answered, which is as long as M has rows and columns; of an M
    in chunks it also holds the entries that were looked at, all of them if there are at most 2²⁴. It stays when the
    solve has ended; resumed from then, M is read to make S and for the final checks. Nothing in it can be executed.

    Parameters
    ----------
    path : str or path
        A new file; an existing one is refused unless ``solve(..., resume=path)`` is asked, too. With both, the same
        call begins, and goes on where a file is there.

    Notes
    -----
    Answers reach the disk at least every half second of work: a kill or a power cut loses no more. The file is an
    SQLite database, locked while it is used, so that no two solves share one. If a ``-journal`` lies beside it after a
    kill, they belong together. A file that was damaged, or belongs to another M or to other arguments, is refused with
    :class:`irpca.checkpoint.CheckpointError`; of M its shape and some values are compared. ``max_iter``, ``sparse`` and
    ``callbacks`` may differ. Solvers that keep a matrix as large as M beside it ("pcp", "pcpf") take no checkpoint.

    Examples
    --------
    >>> import irpca, os, tempfile
    >>> problem = irpca.datasets.make_problem(60, 40, d1=4, d2=3, rank=2, corruption=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.checkpoint")
    ...     first = irpca.solve(problem.M, problem.F1, problem.F2, max_iter=1, callbacks=checkpoint(path))
    ...     again = irpca.solve(problem.M, problem.F1, problem.F2, resume=path)
    >>> again.converged
    True
    """
    return Checkpoint(path)
