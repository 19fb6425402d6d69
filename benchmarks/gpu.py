"""``python -m benchmarks.gpu [--quick] [--only section ...] --json FILE``: what the GPU engine takes, on one GPU.

Every time is given beside that of ``torch.sum(M)`` from the same rounds: nobody who reads M can do less. Sections: sum
(that unit), pass (one fused read), exact, noise, float64 (whole decompositions), table (a fit with a free part, against
the CPU), peers (other methods on the same GPU), stream (M in host memory). One that fails is noted, and the others go
on. ``python -m benchmarks.gpu table`` measures nothing, and writes docs/gpu-table.md from the kept results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .case import Case, Found
from .runner import ROOT, load, machine, origin
from .runner import table as columns
from .table import REACHED, markdown

RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
PAGE = ROOT / "docs" / "gpu-table.md"
LONGEST = 300  # characters of an error that are kept


def options(words: list[str] | None = None) -> argparse.Namespace:
    from .gpu_cases import CASES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
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
    if chosen.quick and chosen.json and chosen.json.resolve() == RESULTS:
        parser.error(f"--quick does not write to {RESULTS.name}, where the real results are")
    if chosen.device == "cpu" and not (chosen.quick or chosen.table):
        parser.error("--device cpu goes with --quick: it shows that all works, not how fast")
    return chosen


def main(words: list[str] | None = None) -> int:
    chosen = options(words)
    if chosen.table:
        return write_page(chosen.json, chosen.check)
    from .__main__ import keep
    from .gpu_cases import CASES
    from .gpu_clock import Bench

    bench, started = Bench(chosen.device), time.perf_counter()
    failed = 0
    for name in chosen.only or CASES:
        found = run(CASES[name], bench, chosen.quick, chosen.repeats, chosen.commit)
        failed += "error" in found
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
        found = {"error": in_short(error)}
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

    on = machine()
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


def place(on: dict[str, Any]) -> str:
    """One line about the device, the machine and the commit."""
    versions = ", ".join(f"{name} {on['versions'][name]}" for name in ("torch", "triton") if on["versions"].get(name))
    return f"{on.get('gpu', 'no GPU')}, {versions}, {origin(on)}"


def show(case: Case, found: Found, bars: bool) -> None:
    if "error" in found:
        print(f"\n{case.name}: FAILED after {found['seconds']:.0f} s: {found['error']}", flush=True)
        return
    report = case.report(found)
    print(f"\n{case.name}: {report.title}\n{columns(report.header, report.rows)}")
    print(*report.remarks, f"{found['seconds']:.0f} s in all; {place(found['machine'])}", sep="\n")
    for bar in case.bars(found) if bars else ():
        verdict = {True: "reached", False: "MISSED", None: ""}[bar.reached]
        print(f"  {bar.work}: {bar.measured}, bar {bar.bar}  {verdict}")
    sys.stdout.flush()


def write_page(path: Path | None, check: bool) -> int:
    """Print the page and write it, or say whether the file holds it."""
    source, page = (RESULTS, PAGE) if path is None else (path, path.with_suffix(".md"))
    if not source.exists():
        sys.exit(f"there is no {source}: run python -m benchmarks.gpu --json {source} on a machine with a GPU first")
    text = render(json.loads(source.read_text()))
    if not check:
        print(text, end="")
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print(f"{page} is not what {source.name} says: run python -m benchmarks.gpu table", file=sys.stderr)
        return 1
    return 0


def render(content: dict[str, Any]) -> str:
    """The page, in Markdown: the bars, every section, and the sections that failed."""
    from .gpu_cases import CASES

    kept = {name: content["cases"][name] for name in CASES if name in content["cases"]}
    worked = {name: found for name, found in kept.items() if "error" not in found}
    bars = [
        (name, bar.work, bar.bar, bar.measured, REACHED[bar.reached], bar.errors or "–")
        for name, found in worked.items()
        for bar in CASES[name].bars(found)
    ]
    header = ("section", "work", "bar", "measured", "reached", "errors, the worst of all rounds")
    parts = ["<!-- written by: python -m benchmarks.gpu table -->", markdown(header, bars, "---")]
    for name, found in worked.items():
        report = CASES[name].report(found)
        parts += [f"**{name}**: {report.title}.", markdown(report.header, report.rows)]
        told = [*report.remarks, f"{found['sizes']['repeats']} rounds, {found['seconds']:.0f} s in all"]
        parts.append(f"{'; '.join([*told, place(found['machine'])])}.")
    parts += [f"**{name}** failed: {kept[name]['error']}." for name in kept if name not in worked]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
