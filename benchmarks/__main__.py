"""``python -m benchmarks [case ...]``: measure, print tables, write JSON if asked."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from . import table
from .case import Case, Found
from .registry import CASES
from .runner import load, machine, origin
from .runner import table as columns


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
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
    if chosen.quick and chosen.json and chosen.json.resolve() == table.RESULTS:
        parser.error(f"--quick does not write to {table.RESULTS.name}, where the real results are")
    chosen.cases = chosen.cases or every
    return chosen


def main(words: list[str] | None = None) -> int:
    chosen = options(words)
    if chosen.cases == ["table"]:
        return table.main(chosen.json, chosen.check)
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
    on, started = machine(), time.perf_counter()
    found = case.measure(**sizes)
    seconds = time.perf_counter() - started
    return {"machine": {**on, "load_at_end": load()}, "sizes": sizes, "seconds": seconds, **found}


def show(case: Case, found: Found, bars: bool) -> None:
    report = case.report(found)
    print(f"\n{case.name}: {report.title}\n{columns(report.header, report.rows)}")
    print(*report.remarks, f"{found['seconds']:.0f} s in all; {origin(found['machine'])}", sep="\n")
    for bar in case.bars(found) if bars else ():
        verdict = {True: "reached", False: "MISSED", None: ""}[bar.reached]
        print(f"  {bar.work}: {bar.measured}, bar {bar.bar}  {verdict}")
    sys.stdout.flush()


def keep(path: Path, name: str, found: Found) -> None:
    """Put one case into the file. The others stay: each carries its own machine and date."""
    content = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    content["cases"][name] = rounded(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    # A record a line, not a number a line.
    path.write_text(re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found[0].split()), text) + "\n")


def rounded(value: Any) -> Any:
    """Four digits are more than any of this is good for."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary files go, too
    sys.exit(main())
