"""``python -m lab.soak [stage ...]``: try, print one closing line for each stage, and a reproducer for each failure."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lab.machine import provenance

from .tally import Tally, run

RESULTS = Path(__file__).parent / "results"
STAGES = {  # how many are a full run
    "invariances": 10_000,
    "fuzz": 10_000,
    "models": 1_000_000,
    "checkpoints": 10_000,
    "interrupts": 200,
    "processes": 11,
    "memory": 8,
    "limits": 8,
}
SHARED = ("invariances", "fuzz", "models", "checkpoints")  # stages that several processes may share


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.soak", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"of {', '.join(STAGES)}; all, if none is named")
    parser.add_argument("--count", type=int, help="how many to try in each stage, in the place of its own number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each stage, at most")
    parser.add_argument("--jobs", type=int, default=1, help=f"processes, for {', '.join(SHARED)}")
    parser.add_argument("--keep", action="store_true", help=f"write what was found to {RESULTS.parent.name}/results")
    chosen = parser.parse_args(words)
    if unknown := set(chosen.stages) - set(STAGES):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(STAGES)}")
    for name in ("count", "jobs"):
        if (given := getattr(chosen, name)) is not None and given < 1:
            parser.error(f"--{name} must be at least 1, got {given}")
    chosen.stages = chosen.stages or list(STAGES)
    return chosen


def main(words: list[str] | None = None) -> int:
    chosen = options(words)
    failed, source = 0, provenance()
    for name in chosen.stages:
        jobs = chosen.jobs if name in SHARED else 1
        tally = stage(name, chosen.count or STAGES[name], chosen.seed, chosen.seconds, jobs)
        print(tally.closing(name), flush=True)
        failed += tally.failed
        if chosen.keep:
            keep(name, tally, source)
    return 1 if failed else 0


def stage(name: str, count: int, seed: int = 0, seconds: float = float("inf"), jobs: int = 1) -> Tally:
    """Run one stage, in as many processes."""
    if jobs == 1:
        return run(name, Tally(count, seed, seconds))
    whole = Tally(count, seed, seconds)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for part in [pool.submit(run, name, Tally(count, seed, seconds, part=(k, jobs))) for k in range(jobs)]:
            whole.add(part.result())
    return whole


def keep(name: str, tally: Tally, source: dict[str, Any]) -> None:
    """Write what was found, and with what."""
    found = {
        "stage": name,
        "asked": tally.count,
        "tried": tally.tried,
        "outcomes": dict(tally.outcomes.most_common()),
        "failures": {kind: {"count": count, "reproducer": text} for kind, (text, count) in tally.failures.items()},
        "notes": tally.notes,
        "seed": tally.seed,
        "seconds": round(time.perf_counter() - tally.began),
        **{name: source[name] for name in ("commit", "python", "numpy", "date")},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / (f"{name}-{tally.seed}.json" if tally.seed else f"{name}.json")
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
