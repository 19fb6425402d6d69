"""``python -m lab.benchmarks [case ...]``: measure, print tables, write JSON if asked."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lab.machine import ROOT, describe_machine, load

from .case import Case, Found
from .pages import RESULTS, keep, show, write_page
from .registry import CASES

LATEST = RESULTS / "latest.json"
PAGE = ROOT / "docs" / "speed-table.md"


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks", description=__doc__)
    every = [name for name, case in CASES.items() if not case.asked]
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="case",
        help=f"of {', '.join(CASES)} (all but {', '.join(set(CASES) - set(every))}); or table, alone: no measurement, "
        "docs/speed-table.md from the JSON",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all works, not how fast")
    parser.add_argument("--repeats", type=int, help="timed rounds of each case")
    parser.add_argument("--largest", type=int, metavar="N", help="rows of the largest M of growth (50,000: 10 GB)")
    parser.add_argument("--store", metavar="PATH", help="where the store of out-of-core is, or is to be made and kept")
    parser.add_argument("--gigabytes", type=float, metavar="GB", help="its size (40)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="put every number there, in the place of older ones")
    parser.add_argument("--check", action="store_true", help="with table: compare with the file instead of writing it")
    chosen = parser.parse_args(words)
    if unknown := set(chosen.cases) - {*CASES, "table"}:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(CASES)}, table")
    if "table" in chosen.cases and len(chosen.cases) > 1:
        parser.error("table goes alone")
    for name in ("repeats", "largest"):
        if getattr(chosen, name) is not None and getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(chosen, name)}")
    if chosen.gigabytes is not None and not chosen.gigabytes > 0:
        parser.error(f"--gigabytes must be positive, got {chosen.gigabytes}")
    if chosen.quick and chosen.json and chosen.json.resolve() == LATEST:
        parser.error(f"--quick does not write to {LATEST.name}, where the real results are")
    chosen.cases = chosen.cases or every
    return chosen


def main(words: list[str] | None = None) -> int:
    chosen = options(words)
    if chosen.cases == ["table"]:
        source, page = (chosen.json, chosen.json.with_suffix(".md")) if chosen.json else (LATEST, PAGE)
        return write_page(CASES, source, page, chosen.check, "python -m lab.benchmarks")
    started = time.perf_counter()
    instead = {name: getattr(chosen, name) for name in ("repeats", "largest", "store", "gigabytes")}
    for name in chosen.cases:
        found = run(CASES[name], chosen.quick, **instead)
        show(CASES[name], found, bars=not chosen.quick)
        if chosen.json:
            keep(chosen.json, name, found)
    print(f"\n{time.perf_counter() - started:.0f} s in all")
    return 0


def run(case: Case, quick: bool = False, **instead: Any) -> Found:
    """What a case finds, where, how large and in what time; ``instead`` replaces those of its sizes that are given."""
    sizes = case.quick if quick else case.sizes
    sizes = {**sizes, **{name: value for name, value in instead.items() if value is not None and name in sizes}}
    on, started = describe_machine(), time.perf_counter()
    found = case.measure(**sizes)
    seconds = time.perf_counter() - started
    return {"machine": {**on, "load_at_end": load()}, "sizes": sizes, "seconds": seconds, **found}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary files go, too
    sys.exit(main())
