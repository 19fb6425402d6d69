"""Interleaved runs, medians, and what machine they were taken on."""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # only Unix has it
    resource = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for first, *others in (header, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


@cache
def from_tests(name: str) -> Any:
    """A module of tests/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    from threadpoolctl import threadpool_info

    return {
        "cpu": _cpu(),
        "cores": cores(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "blas": sorted({f"{pool['internal_api']} {pool['version']}" for pool in threadpool_info()}),
        "versions": {name: _version(name) for name in ("irpca", "numpy", "scipy", "numba")},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain", "--", "src")),
        "load": load(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def origin(on: dict[str, Any]) -> str:
    """One line about the machine and the commit."""
    commit = (on["commit"] or "no commit")[:12] + (" + uncommitted changes in src" if on["uncommitted"] else "")
    loads = f"load {on['load']}" + (f" to {on['load_at_end']}" if "load_at_end" in on else "")
    return f"{on['cpu']}, {on['cores']} cores, {loads}, Python {on['python']}, irpca at {commit}, {on['date'][:10]}"


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float | None:
    """Load of the last minute, this benchmark included."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    """What git says, None outside a repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
