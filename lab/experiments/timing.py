"""Seconds of a fit by default: real tables clean and with 10 % spoilt, a plain one, and growth with the rows.

    python -m lab.experiments.timing --label new --against ../old/src

Every version has one process of its own. The first call warms up (``first``), then the versions take turns, three
times; ``seconds`` is the median. All cores are used; with ``--jobs N`` N tables are timed at once, each on one core.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from lab.tables import text_table

from . import real_tables
from .fits import fit
from .study import Case, Row, Study, attempt, options, versions, workers

REPEATS = 3
SHARE = 0.1


def cases(quick: bool = False) -> list[Case]:
    names = ("life",) if quick else real_tables.TABLES
    found = [(name, kind) for name in names for kind in ("clean", "swap" if name not in real_tables.PLAIN else "added")]
    found += [] if quick else [("1000x500", "none")]
    sizes = (100,) if quick else (500, 1000, 2000, 4000)
    found += [(f"{n}x{40 if quick else 200}", side) for side in ("none", "both") for n in sizes]
    return [{"table": name, "kind": kind} for name, kind in found]


@lru_cache(maxsize=1)
def table(name: str, kind: str) -> real_tables.Table:
    """A real table, clean or spoilt; or one of rank 5 with noise and gross errors, features of both sides or none."""
    if name in real_tables.TABLES:
        M, F1, F2 = real_tables.table(name)
        return real_tables.spoil(M, SHARE, kind)[0], F1, F2
    rng = np.random.default_rng(0)
    shape = tuple(map(int, name.split("x")))
    features = [rng.standard_normal((n, 10)) if kind == "both" else None for n in shape]
    factors = [rng.standard_normal((n if F is None else 10, 5)) for n, F in zip(shape, features, strict=True)]
    U, V = (A if F is None else F @ A for A, F in zip(factors, features, strict=True))
    L = U @ V.T
    L /= np.sqrt(np.mean(L**2))
    wrong = (rng.random(shape) < SHARE) * rng.choice([-1, 1], shape) * rng.uniform(3, 6, shape)
    return L + 0.1 * rng.standard_normal(shape) + wrong, *features


def measure(case: Case) -> Row:
    """One fit."""
    _, _, row = fit(*table(case["table"], case["kind"]))
    return row | {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()}


def interleaved(case: Case, ask: dict[str, Callable[[Case], Row]]) -> dict[str, Row]:
    """A row per version: first calls, then the versions in turn."""
    rows = {label: [once(case)] for label, once in ask.items()}
    for _ in range(REPEATS):
        for label, once in ask.items():
            rows[label].append(once(case))
    return {label: _summary(first, again) for label, (first, *again) in rows.items()}


def _summary(first: Row, again: list[Row]) -> Row:
    seconds = [row.get("seconds", np.nan) for row in again]
    known = {"first": first.get("seconds"), "fastest": min(seconds), "slowest": max(seconds)}
    return first | known | {"seconds": statistics.median(seconds)}


def timed(chosen: argparse.Namespace, found: list[Case]) -> Iterator[tuple[Case, dict[str, Row]]]:
    """Every case with the rows of all versions. Each lane is one process per version."""
    with ExitStack() as stack:
        lanes: SimpleQueue[dict[str, Callable[[Case], Row]]] = SimpleQueue()
        for lane in _lanes(stack, chosen):
            lanes.put(lane)

        def work(case: Case) -> dict[str, Row]:
            lane = lanes.get()
            try:
                return interleaved(case, lane)
            finally:
                lanes.put(lane)

        with ThreadPoolExecutor(chosen.jobs) as threads:
            running = {threads.submit(work, case): case for case in found}
            for future in as_completed(running):
                yield running[future], future.result()


def _lanes(stack: ExitStack, chosen: argparse.Namespace) -> list[dict[str, Callable[[Case], Row]]]:
    """Starts all processes here, since only the main thread may change what they start with."""
    asked = {}
    for k in range(chosen.jobs):
        for label, source in versions(chosen).items():
            submit = stack.enter_context(workers(1, source, core=k if chosen.jobs > 1 else None))
            submit(os.getpid).result()
            asked[k, label] = partial(_ask, submit)
    return [{label: asked[k, label] for label in versions(chosen)} for k in range(chosen.jobs)]


def _ask(submit: Callable[..., Any], case: Case) -> Row:
    return submit(attempt, measure, case).result()


def report(rows: list[Row]) -> str:
    names = ("table", "kind", "version", "first", "seconds", "fastest", "slowest", "cores", "rank", "status")
    body = [[row[name] for name in names] for row in sorted(rows, key=lambda row: (row["table"], row["kind"]))]
    return text_table(names, body)


MEASURED = ("first", "seconds", "fastest", "slowest", "cores", "rank", "flagged", "status", "doubts")


def main(words: Sequence[str] | None = None) -> list[Row]:
    chosen = options("timing", words)
    chosen.resume = False  # what is compared is timed in one run
    study = Study("timing", cases, measure, MEASURED, report)
    return study.run(chosen) if chosen.report else study.store(chosen, timed(chosen, cases(chosen.quick)))


if __name__ == "__main__":
    main()
