"""Experiments that are held against a bar instead of raced: one line of a CSV per run, and a table of them."""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from benchmarks.runner import cores
from irpca.result import Result

from .running import provenance

RESULTS = Path(__file__).resolve().parent / "results"
MACHINE = ("cpu", "cores", "python", "numpy", "scipy", "numba", "commit", "date")
SOLVED = ("status", "rank_found", "extra_rank", "iterations", "reads", "seconds")

Case = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What is tried, how one case of it is measured, and what is said of all.

    Attributes
    ----------
    name : of the CSV
    cases : every case, or a few small ones if asked to be quick; all have the same columns, the last of which is "seed"
    measure : one case, as further columns
    measured : the names of these
    report : what is to be read of the rows
    """

    name: str
    cases: Callable[[bool], list[Case]]
    measure: Callable[[Case], Row]
    measured: tuple[str, ...]
    report: Callable[[list[Row]], str]

    def run(
        self, folder: Path = RESULTS, *, quick: bool = False, seeds: int | None = None, draw: bool = False
    ) -> list[Row]:
        """Run what is not in ``folder/name.csv`` yet, print the report, return the rows. ``draw``: run nothing."""
        cases = [case for case in self.cases(quick) if seeds is None or case["seed"] < seeds]
        path = folder / f"{self.name}.csv"
        done = {_key(row, cases[0]) for row in _read(path)}
        missing = [case for case in cases if _key(case, case) not in done and not draw]
        if missing and not quick:
            for case in self.cases(True):  # compiles what is needed, outside every clock
                self.measure(case)
        for count, row in enumerate(self._measured(missing), 1):
            _append(path, row)
            print(f"{self.name} {count}/{len(missing)}  {_told(row)}", file=sys.stderr, flush=True)
        rows = self.rows(folder)
        print(self.report(rows))
        return rows

    def rows(self, folder: Path = RESULTS) -> list[Row]:
        """What is in ``folder/name.csv``."""
        path = folder / f"{self.name}.csv"
        rows = [_numbers(row) for row in _read(path)]
        if not rows:
            sys.exit(f"no rows in {path}: leave out --draw to run {self.name}")
        return rows

    def _measured(self, cases: Iterable[Case]) -> Iterator[Row]:
        where = provenance() | {"cores": cores(), "date": time.strftime("%Y-%m-%d")}
        for case in cases:
            found = self.measure(case)
            yield case | {name: found.get(name) for name in self.measured} | {name: where[name] for name in MACHINE}


def solved(M: Any, *features: Any, **options: Any) -> tuple[Result | None, Row]:
    """A result and what it cost; None and the words of a refusal if there is none."""
    started = time.perf_counter()
    try:
        result = irpca.solve(M, *features, **options)
    except ValueError as error:
        return None, {"status": f"REFUSED: {' '.join(str(error).split())[:120]}"}
    return result, {
        "status": result.status.name,
        "rank_found": result.rank,
        "extra_rank": next((choice.value for choice in result.choices if choice.name == "extra_rank"), None),
        "iterations": len(result.history),
        "reads": float(result.reads),
        "seconds": time.perf_counter() - started,
    }


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> list[float]:
    """A column, infinite where there is none: a refusal is no success."""
    return [np.inf if row[name] == "" else row[name] for row in rows]


def worst(rows: Iterable[Row], name: str) -> float:
    return max(values(rows, name), default=np.nan)


def median(rows: Iterable[Row], name: str) -> float:
    return statistics.median(values(rows, name) or [np.nan])


def in_order(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a column, as they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def _key(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(_text(row[name]) for name in names)


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _numbers(row: Mapping[str, str]) -> Row:
    return {name: text if name in MACHINE else _number(text) for name, text in row.items()}


def _number(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return text if number != number else number  # a number that is not known is empty: NaN is a word here


def _told(row: Row) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in row.items() if name not in MACHINE and _text(value))


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _append(path: Path, row: Row) -> None:
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({name: _text(value) for name, value in row.items()})
