"""Work in a process of its own, of one thread, that is ended once it has used its seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from .study import THREADS


class OverTime(Exception):
    """The process had used its seconds."""


class Died(Exception):
    """The process ended otherwise."""


class OwnProcess:
    """Calls functions of modules in one process, which is started when it is needed, and again after it ended."""

    def __init__(self) -> None:
        self._process: Any = None
        self._line: Any = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._process is None:
            self._start()
        self._line.send((function, arguments))
        try:
            return self._line.recv()
        except EOFError:
            self._process.join()
            code, self._process = self._process.exitcode, None
        raise OverTime if code == -signal.SIGPROF else Died(f"exit code {code}")

    def _start(self) -> None:
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that its end is seen here
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def close(self) -> None:
        if self._process is not None:
            self._line.close()
            self._process.join()
            self._process = None


def _serve(line: Any) -> None:
    while True:
        try:
            function, arguments = line.recv()
        except EOFError:
            return
        line.send(function(*arguments))


@contextmanager
def seconds_at_most(limit: float) -> Iterator[None]:
    """End this process once it has used so much processor time in here, compiled code included."""
    signal.setitimer(signal.ITIMER_PROF, limit)  # nobody handles its signal: it ends the process
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
