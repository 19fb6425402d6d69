"""How far it is, and how long it will take."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from typing import TextIO

WIDTH = 24


class Progress:
    """One line that is rewritten on a terminal, one line per run elsewhere.

    What is left is estimated method by method, since they differ a thousandfold.

    Parameters
    ----------
    todo : how many runs of each method lie ahead
    """

    def __init__(self, name: str, todo: Counter[str], workers: int = 1, stream: TextIO | None = None) -> None:
        self.name = name
        self.left = Counter(todo)
        self.total = sum(todo.values())
        self.workers = workers
        self.stream = sys.stderr if stream is None else stream
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def ran(self, method: str, seconds: float, what: str) -> None:
        self.seconds[method].append(seconds)
        self.left[method] -= 1
        self._show(what)

    def skipped(self, method: str) -> None:
        self.left[method] -= 1

    def close(self) -> None:
        if self.total and self.stream.isatty():
            self.stream.write("\n")

    def remaining(self) -> float | None:
        """Seconds to go, None before anything is known."""
        known = {method: sum(runs) / len(runs) for method, runs in self.seconds.items()}
        if not known:
            return None
        typical = sum(known.values()) / len(known)
        return sum(count * known.get(method, typical) for method, count in self.left.items()) / self.workers

    def _show(self, what: str) -> None:
        done = self.total - sum(self.left.values())
        left = self.remaining()
        text = f"{done}/{self.total}  {what}  {'' if left is None else f'{_duration(left)} to go'}"
        if self.stream.isatty():
            full = round(WIDTH * done / self.total)
            self.stream.write(f"\r\x1b[K{self.name} {'█' * full}{'░' * (WIDTH - full)} {text}")
        else:
            self.stream.write(f"{time.strftime('%H:%M:%S')} {self.name} {text}\n")
        self.stream.flush()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
