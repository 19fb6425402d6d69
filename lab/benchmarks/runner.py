"""Interleaved runs, and medians."""

from __future__ import annotations

import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from lab.machine import ROOT

try:
    import resource
except ImportError:  # only Unix has it
    resource = None  # type: ignore[assignment]

Contender = Callable[[int], Any]  # takes the number of the round, returns an answer
Rounds = Sequence[dict[str, Any]]


def interleave(
    contenders: Mapping[str, Contender], repeats: int, check: Callable[[str, Any], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Run A, B, C, A, B, C, … so that noise hits all alike, after one untimed round.

    Every answer is checked, outside the clock, and dropped before the next run. Returns, for each contender, one record
    per round: ``seconds``, ``cpu_seconds`` (of all threads), ``from_disk``, the pages that had to be fetched from
    there, and what ``check`` says.
    """
    for run in contenders.values():
        run(0)
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name, run in contenders.items():
            gc.collect()
            pages, cpu, wall = _pages_from_disk(), time.process_time(), time.perf_counter()
            answer = run(repeat)
            seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
            clock = {"seconds": seconds, "cpu_seconds": cpu_seconds, "from_disk": _pages_from_disk() - pages}
            records[name].append({**clock, **check(name, answer)})
            del answer
    return records


def _pages_from_disk() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt if resource else 0


def times(records: Rounds, yardstick: Rounds) -> dict[str, float]:
    """Medians, and the ratio to the yardstick."""
    seconds = [record["seconds"] for record in records]
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "cpu_seconds": statistics.median(record["cpu_seconds"] for record in records),
        "ratio": ratio(records, yardstick),
    }


def ratio(records: Rounds, yardstick: Rounds) -> float:
    """The median of the ratios of times, each from one round."""
    pairs = zip(records, yardstick, strict=True)
    return statistics.median(record["seconds"] / other["seconds"] for record, other in pairs)


def worst(records: Rounds, key: str) -> Any:
    """The largest of all rounds, None if nobody says."""
    return max((record[key] for record in records if record[key] is not None), default=None)


@cache
def from_tests(name: str) -> Any:
    """A module of tests/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
