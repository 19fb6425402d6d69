"""The bars and every measurement as a page of the documentation, from the JSON: ``python -m benchmarks table``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .registry import CASES
from .runner import ROOT, origin

RESULTS = ROOT / "benchmarks" / "results" / "latest.json"
PAGE = ROOT / "docs" / "speed-table.md"
REACHED = {True: "yes", False: "**no**", None: "–"}


def main(path: Path | None, check: bool) -> int:
    """Print the page and write it, or say whether the file holds it."""
    source, page = (RESULTS, PAGE) if path is None else (path, path.with_suffix(".md"))
    if not source.exists():
        sys.exit(f"there is no {source}: run python -m benchmarks --json {source} first")
    text = render(json.loads(source.read_text()))
    if not check:
        print(text, end="")
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print(f"{page} is not what {source.name} says: run python -m benchmarks table", file=sys.stderr)
        return 1
    return 0


def render(content: dict[str, Any]) -> str:
    """The page, in Markdown."""
    kept = {name: content["cases"][name] for name in CASES if name in content["cases"]}
    parts = ["<!-- written by: python -m benchmarks table -->", table_of_bars(kept)]
    for name, found in kept.items():
        report = CASES[name].report(found)
        parts += [f"**{name}**: {report.title}.", markdown(report.header, report.rows)]
        told = [*report.remarks, f"{found['sizes']['repeats']} rounds, {found['seconds']:.0f} s in all"]
        parts.append(f"{'; '.join([*told, origin(found['machine'])])}.")
    return "\n\n".join(parts) + "\n"


def table_of_bars(kept: dict[str, Any]) -> str:
    """A line for each bar of some cases."""
    bars = [
        (name, bar.work, bar.bar, bar.measured, REACHED[bar.reached], bar.errors or "–")
        for name, found in kept.items()
        for bar in CASES[name].bars(found)
    ]
    return markdown(("case", "work", "bar", "measured", "reached", "errors, the worst of all rounds"), bars, "---")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], aligned: str = "---:") -> str:
    """A table; all columns but the first are aligned as it is said."""
    lines = (header, ("---", *(aligned for _ in header[1:])), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
