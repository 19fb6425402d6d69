"""``python -m lab.benchmarks.gpu [--quick] [--only section ...] --json FILE``: what the GPU engine takes, on one GPU.

Every time is given beside that of ``torch.sum(M)`` from the same rounds: nobody who reads M can do less. Sections: sum
(that unit), pass (one fused read), exact, noise, float64 (whole decompositions), table (a fit with a free part, against
the CPU), peers (other methods on the same GPU), stream (M in host memory). One that fails is noted, and the others go
on. ``python -m lab.benchmarks.gpu table`` measures nothing, and writes docs/gpu-table.md from the kept results.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from lab.machine import ROOT, describe_machine, load

from .case import Case, Found
from .pages import RESULTS, keep, show, write_page

KEPT = RESULTS / "gpu.json"
PAGE = ROOT / "docs" / "gpu-table.md"
LONGEST = 300  # characters of an error that are kept


def options(words: list[str] | None = None) -> argparse.Namespace:
    from .gpu_cases import CASES

    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", nargs="?", choices=["table"], help="no measurement: docs/gpu-table.md from the JSON")
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="section", help=f"of {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all works, not how fast")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu with --quick")
    parser.add_argument("--repeats", type=int, help="timed rounds of each section")
    parser.add_argument("--json", type=Path, metavar="PATH", help="put every number there, in the place of older ones")
    parser.add_argument("--commit", help="what is measured, where there is no git to say so")
    parser.add_argument("--check", action="store_true", help="with table: compare with the file instead of writing it")
    chosen = parser.parse_args(words)
    if chosen.repeats is not None and chosen.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {chosen.repeats}")
    if chosen.quick and chosen.json and chosen.json.resolve() == KEPT:
        parser.error(f"--quick does not write to {KEPT.name}, where the real results are")
    if chosen.device == "cpu" and not (chosen.quick or chosen.table):
        parser.error("--device cpu goes with --quick: it shows that all works, not how fast")
    return chosen


def main(words: list[str] | None = None) -> int:
    chosen = options(words)
    from .gpu_cases import CASES

    if chosen.table:
        source, page = (chosen.json, chosen.json.with_suffix(".md")) if chosen.json else (KEPT, PAGE)
        return write_page(CASES, source, page, chosen.check, "python -m lab.benchmarks.gpu")
    from .gpu_clock import Bench

    bench, started = Bench(chosen.device), time.perf_counter()
    failed = 0
    for name in chosen.only or CASES:
        found = run(CASES[name], bench, chosen.quick, chosen.repeats, chosen.commit)
        failed += "failure" in found
        show(CASES[name], found, bars=not chosen.quick)
        if chosen.json:
            keep(chosen.json, name, found)
    bench.release()
    print(f"\n{time.perf_counter() - started:.0f} s in all" + (f", {failed} sections failed" if failed else ""))
    return 1 if failed else 0


def run(case: Case, bench: Any, quick: bool, repeats: int | None = None, commit: str | None = None) -> Found:
    """What a section finds, where, how large and in what time; or the error that ended it."""
    sizes = dict(case.quick if quick else case.sizes)
    if repeats is not None:
        sizes["repeats"] = repeats
    on, started = device_of(bench.device, commit), time.perf_counter()
    try:
        found = case.measure(bench, **sizes)
    except Exception as error:  # what failed is part of the result, and the others are worth having
        traceback.print_exc()
        found = {"failure": in_short(error)}
        bench.release()
    bench.free()
    seconds = time.perf_counter() - started
    return {"machine": {**on, "load_at_end": load()}, "sizes": sizes, "seconds": seconds, **found}


def in_short(error: Exception) -> str:
    """One line, without the place of this checkout."""
    text = " ".join(f"{type(error).__name__}: {error}".replace(str(ROOT), ".").split())
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def device_of(device: str, commit: str | None = None) -> dict[str, Any]:
    """What the numbers belong to."""
    import torch

    on = describe_machine()
    if device.startswith("cuda"):
        on |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        on["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    on["versions"] |= {"torch": torch.__version__, "triton": _triton()}
    return on | ({"commit": commit, "uncommitted": False} if commit else {})


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    version: str = triton.__version__
    return version


if __name__ == "__main__":
    sys.exit(main())
