"""Small callables of a State: what to do after every iteration.

A callback gets the state and the history, and returns True to stop the run; the result then keeps the last
iterate.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TextIO

from .result import History, State

Callback = Callable[[State, History], bool | None]


class Progress:
    """A line that is rewritten on a terminal, one line per iteration elsewhere.

    Parameters
    ----------
    stream : text stream, default sys.stderr
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream

    def __call__(self, state: State, history: History) -> None:
        corruption = history.corruption[-1]
        share = "     -" if corruption != corruption else f"{corruption:6.1%}"
        line = (
            f"iteration {len(history):3d}  reads {history.reads[-1]:5.1f}  zeta {state.zeta:8.3g}  "
            f"step {state.step:8.2e}  in S {share}  {history.seconds[-1]:6.1f} s"
        )
        # Back up to the line before, so that the last one ends as a line should.
        again = "\x1b[A" if len(history) > 1 and self.stream.isatty() else ""
        self.stream.write(f"{again}{line}\n")
        self.stream.flush()


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


class TimeBudget:
    """Stop after the first iteration that ends later than ``seconds`` after the start.

    Parameters
    ----------
    seconds : float
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds!r}")
        self.seconds = seconds

    def __call__(self, state: State, history: History) -> bool:
        return history.seconds[-1] > self.seconds
