"""What a stage tried, and what failed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module


@dataclass
class Tally:
    """How often to try, from which seed on and for how long at most; then what came of it.

    Attributes
    ----------
    count : int
        How many to try.
    seed : int
        Number ``i`` of a stage depends on the seed and ``i`` alone, so that one failure can be tried again alone.
    seconds : float
        No new one is begun after so many.
    outcomes : Counter
        How many of each kind of outcome.
    failures : dict
        For each kind of failure the first reproducer of the shortest, and how many there were.
    notes : list of str
        What the closing line says beside the counts.
    part : pair of int
        Which of how many processes this is: each tries every so-manyth.
    """

    count: int
    seed: int = 0
    seconds: float = float("inf")
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, tuple[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    part: tuple[int, int] = (0, 1)

    @property
    def tried(self) -> int:
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        return sum(count for _, count in self.failures.values())

    def over(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() - self.began > self.seconds

    def numbers(self) -> range:
        """Of what is to be tried; who goes through them asks :meth:`over`."""
        return range(self.part[0], self.count, self.part[1])

    def add(self, other: Tally) -> None:
        """What another process has found."""
        self.outcomes += other.outcomes
        self.notes += other.notes
        for kind, (reproducer, count) in other.failures.items():
            shortest, before = self.failures.get(kind, (reproducer, 0))
            self.failures[kind] = min(shortest, reproducer, key=len), before + count

    def fail(self, kind: str, reproducer: str) -> None:
        """Count a failure. Of each kind the shortest reproducer stays."""
        shortest, count = self.failures.get(kind, (reproducer, 0))
        self.failures[kind] = min(shortest, reproducer, key=len), count + 1

    def closing(self, name: str) -> str:
        """All of it in one line, and one more for each kind of failure."""
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.outcomes.most_common())
        taken = time.perf_counter() - self.began
        line = f"{name}: {self.tried:,} tried ({kinds}), {self.failed:,} failures, {taken:.0f} s"
        lines = ["; ".join([line, *self.notes])]
        lines += [f"  {count:,} × {kind}\n    {text}" for kind, (text, count) in self.failures.items()]
        return "\n".join(lines)


def run(name: str, tally: Tally) -> Tally:
    """Run a stage, or the part of it that a process has."""
    import_module(f".{name}", __package__).run(tally)
    return tally
