"""``python -m benchmarks``: run, print a table, write JSON if asked."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from . import against_oracle
from .runner import load, machine


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=against_oracle.__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, help="rows and columns of M (4000)")
    parser.add_argument("--d", type=int, help="features per row and per column (40)")
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--corruption", type=float, default=0.1, help="share of corrupted entries (0.1)")
    parser.add_argument("--repeats", type=int, help="timed rounds (5)")
    parser.add_argument("--quick", action="store_true", help="n = 500, d = 20 and 2 rounds, where not given")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every number there, too")
    chosen = parser.parse_args(words)
    defaults = {"n": 500, "d": 20, "repeats": 2} if chosen.quick else {"n": 4000, "d": 40, "repeats": 5}
    for name, value in defaults.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    if chosen.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {chosen.repeats}")
    if not 0 < chosen.corruption < 1:
        parser.error(f"--corruption must lie between 0 and 1, got {chosen.corruption}")
    return chosen


def main(words: list[str] | None = None) -> None:
    chosen = options(words)
    started, on = time.perf_counter(), machine()
    commit = (on["commit"] or "no commit")[:12] + (" + uncommitted changes in src" if on["uncommitted"] else "")
    print(f"{on['cpu']}, {on['cores']} cores, load {on['load']}, Python {on['python']}, irpca at {commit}", flush=True)
    sizes = (chosen.n, chosen.d, chosen.rank, chosen.corruption)
    cases = []
    for noisy in (False, True):
        cases.append(against_oracle.measure(*sizes, noisy=noisy, repeats=chosen.repeats))
        print(f"\n{against_oracle.report(cases[-1])}", flush=True)
    seconds = time.perf_counter() - started
    print(f"\n{seconds:.0f} s in all, load at the end {load()}")
    if chosen.json:
        settings = {name: getattr(chosen, name) for name in ("n", "d", "rank", "corruption", "repeats")}
        content = {"machine": {**on, "load_at_end": load()}, "settings": settings, "seconds": seconds, "cases": cases}
        chosen.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
