"""What cases found: printed, kept as JSON, and as a page of the documentation."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.machine import origin
from lab.tables import keep_page, markdown_table, text_table

from .case import Case, Found

RESULTS = Path(__file__).resolve().parent / "results"
REACHED = {True: "yes", False: "**no**", None: "–"}

Cases = Mapping[str, Case]


def show(case: Case, found: Found, bars: bool) -> None:
    """Print the table of a case, and its bars."""
    if "failure" in found:
        print(f"\n{case.name}: FAILED after {found['seconds']:.0f} s: {found['failure']}", flush=True)
        return
    report = case.report(found)
    print(f"\n{case.name}: {report.title}\n{text_table(report.header, report.rows)}")
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


def write_page(cases: Cases, source: Path, page: Path, check: bool, command: str) -> int:
    """Print the page and write it, or say whether the file holds it."""
    if not source.exists():
        sys.exit(f"there is no {source}: run {command} --json {source} first")
    return keep_page(page, render(cases, json.loads(source.read_text()), command), check, f"{command} table")


def render(cases: Cases, content: dict[str, Any], command: str) -> str:
    """The page, in Markdown: the bars, every case, and those that failed."""
    kept = {name: content["cases"][name] for name in cases if name in content["cases"]}
    worked = {name: found for name, found in kept.items() if "failure" not in found}
    parts = [f"<!-- written by: {command} table -->", table_of_bars(cases, worked)]
    for name, found in worked.items():
        report = cases[name].report(found)
        parts += [f"**{name}**: {report.title}.", markdown_table(report.header, report.rows, "---:")]
        told = [*report.remarks, f"{found['sizes']['repeats']} rounds, {found['seconds']:.0f} s in all"]
        parts.append(f"{'; '.join([*told, origin(found['machine'])])}.")
    parts += [f"**{name}** failed: {kept[name]['failure']}." for name in kept if name not in worked]
    return "\n\n".join(parts) + "\n"


def table_of_bars(cases: Cases, kept: dict[str, Found]) -> str:
    """A line for each bar of some cases."""
    bars = [
        (name, bar.work, bar.bar, bar.measured, REACHED[bar.reached], bar.errors or "–")
        for name, found in kept.items()
        for bar in cases[name].bars(found)
    ]
    return markdown_table(("case", "work", "bar", "measured", "reached", "errors, the worst of all rounds"), bars)
