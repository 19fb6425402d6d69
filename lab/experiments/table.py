"""The tables of the documentation, from the CSVs: ``python -m lab.experiments table``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from lab.machine import ROOT
from lab.tables import keep_page, markdown_table, text_table

from . import peers
from .drawing import hub, origin, present, setting
from .ledger import CASE, Ledger, records
from .methods import METHODS, Method
from .phase import RECOVERED, ended_right
from .plan import Records, recovered
from .study import RESULTS

LEVEL = 0.1  # the corrupted share of fig1a at which times are compared
VARIED = tuple(name for name in CASE if name not in ("n2", "d2"))
SMALL = ("method", "needs", "guarantee", "memory beyond M", "reads of M", "stops recovering at", "seconds", "ratio")


def main(out: Path | None, check: bool) -> int:
    """Print the tables and write them, or say whether the files hold them."""
    folder, pages = (RESULTS, ROOT / "docs") if out is None else (out, out)
    others = peers.STUDY.rows(folder / "peers.csv")
    if not others:
        sys.exit(f"no rows in {folder / 'peers.csv'}: run python -m lab.experiments.peers first")
    methods = render(*(_rows(folder / f"{name}.csv") for name in ("fig1a", "phase", "scaling")))
    texts = {"methods-table.md": methods, "peers-table.md": peers.STUDY.report(others)}
    return max(keep_page(pages / name, text, check, "python -m lab.experiments table") for name, text in texts.items())


def _rows(path: Path) -> Records:
    found = records(Ledger(path).rows)
    if not found:
        sys.exit(f"no rows in {path}: run python -m lab.experiments {path.stem} first")
    return found


def render(sparsity: Records, phase: Records, scaling: Records) -> str:
    """The page, in Markdown."""
    timed = [record for record in sparsity if record["corruption"] == LEVEL]
    base = hub(phase, ["d1", "rank"])
    levels = [record for record in phase if all(record[name] == value for name, value in base.items())]
    most = max(record["n1"] for record in scaling)
    large = [record for record in scaling if record["n1"] == most]
    header = (*SMALL, f"ratio at n = {most:g}")
    cells = [_cells(method, timed, levels, large) for method in METHODS.values()]
    return (
        "<!-- written by: python -m lab.experiments table -->\n\n"
        f"{markdown_table(header, cells)}\n\n"
        f"Reads and seconds to ‖L − L*‖ ≤ 1e-6 ‖L*‖, S written: medians, failures counted as endless; "
        f"{setting(timed)}; {origin(timed)}. Ratio: to irpca with the rank given. "
        f"The last column: {setting(large)}; {origin(large)}.\n\n"
        "Stops recovering: the lowest corrupted share at which fewer than half of the seeds ended with "
        f"‖L − L*‖ ≤ 1e-3 ‖L*‖; {setting(levels)}; {origin(levels)}.\n"
    )


def _cells(method: Method, timed: Records, levels: Records, large: Records) -> tuple[str, ...]:
    seconds, reads = (_median(timed, method.name, f"{what}_recovery") for what in ("seconds", "reads"))
    default, large_default = (_median(runs, "irpca", "seconds_recovery") for runs in (timed, large))
    return (
        method.label,
        method.needs,
        method.guarantee,
        method.memory,
        _number(reads),
        breaks_down([record for record in levels if record["method"] == method.name]),
        _number(seconds),
        _number(seconds / default),
        _number(_median(large, method.name, "seconds_recovery") / large_default),
    )


def _median(runs: Records, method: str, column: str) -> float:
    """NaN where nothing was run, infinite where it failed."""
    values = [record[column] for record in runs if record["method"] == method]
    return float(np.median(np.nan_to_num(values, nan=np.inf))) if values else np.nan


def breaks_down(runs: Records) -> str:
    """The lowest level at which fewer than half of the seeds were recovered."""
    levels = sorted({record["corruption"] for record in runs})
    for level in levels:
        right = [ended_right(record) for record in runs if record["corruption"] == level]
        if 2 * sum(right) < len(right):
            return f"{level:.0%}"
    return f"> {levels[-1]:.0%}" if levels else "–"


def summary(runs: Records, to_own_end: bool = False) -> str:
    """The numbers behind a figure: median seconds of the seeds that recovered L, and how many did, if not all."""
    methods = [method.name for method in present(runs)]
    varied = [name for name in VARIED if len({record[name] for record in runs}) > 1]
    cases: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for record in runs:
        case = tuple(record[name] for name in varied)
        cases.setdefault(case, {name: [] for name in methods})[record["method"]].append(record)
    told = (
        "to ‖L − L*‖ ≤ 1e-6 ‖L*‖" if not to_own_end else f"to the method's own end, with ‖L − L*‖ ≤ {RECOVERED:g} ‖L*‖"
    )
    lines = [
        [" ".join(map(_word, case)), *(_told(cases[case][name], to_own_end) for name in methods)]
        for case in sorted(cases)
    ]
    return f"seconds {told}; how many seeds got there, if not all\n" + text_table([" ".join(varied), *methods], lines)


def _told(runs: Records, to_own_end: bool) -> str:
    if not runs:
        return "–"  # not run
    succeeded, column = (ended_right, "seconds") if to_own_end else (recovered, "seconds_recovery")
    seconds = [record[column] for record in runs if succeeded(record)]
    share = "" if len(seconds) == len(runs) else f"{len(seconds)}/{len(runs)}"
    return f"{np.median(seconds):.2g} {share}".strip() if seconds else share


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{value:.3g}" if np.isfinite(value) else "fails"
