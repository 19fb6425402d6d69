"""The CSV: one line per run, written as soon as it ends, never run again once it is there."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .harness import CRITERIA
from .problems import Case

SETTINGS = 1  # raise it when a row would mean something else than before: then all is run anew

CASE = tuple(field.name for field in fields(Case))
KEY = ("experiment", *CASE, "method", "seed", "settings")
MEASURED = ("iterations", "reads", "seconds", "error", "residual", "density", "precision", "recall", "s_error")
REACHED = tuple(f"{what}_{name}" for name in CRITERIA for what in ("seconds", "iterations", "reads"))
AT_RESIDUAL = ("error_residual", "s_error_residual")
MACHINE = ("cpu", "cores", "python", "numpy", "scipy", "numba", "commit", "date")
COLUMNS = (*KEY, "solver", "budget", "status", *MEASURED, *REACHED, *AT_RESIDUAL, *MACHINE)
WORDS = {"experiment", "features", "scale", "method", "solver", "status", *MACHINE} - {"cores"}

Key = tuple[str, ...]
Row = dict[str, str]


class Ledger:
    """The rows of one CSV file.

    A last line that was cut off while it was written does not count, and goes with the next append.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            whole, _, self._rest = (path.read_text() if path.exists() else "").rpartition("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text: mend it, or move it away") from error
        reader = csv.DictReader(io.StringIO(whole))
        if whole and tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path} has other columns than this version writes; move it away, or take its version")
        self.rows: list[Row] = list(reader)
        for number, row in enumerate(self.rows, 2):
            try:
                records([row])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}, cannot be read ({error}): mend it, or take it out") from error
        self._started = bool(whole)
        self._keys = {_key(row) for row in self.rows}

    def __contains__(self, row: Mapping[str, Any]) -> bool:
        return _key(_written(row)) in self._keys

    def append(self, row: Mapping[str, Any]) -> None:
        line = _written(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._rest:
            text = self.path.read_bytes()
            self.path.write_bytes(text[: text.rfind(b"\n") + 1])
            self._rest = ""
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not self._started:
                writer.writeheader()
                self._started = True
            writer.writerow(line)
        self.rows.append(line)
        self._keys.add(_key(line))


def records(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows with numbers for numbers, NaN where there is none."""
    return [{k: v if k in WORDS else float(v) if v else float("nan") for k, v in row.items()} for row in rows]


def _key(row: Mapping[str, str]) -> Key:
    return tuple(row[column] for column in KEY)


def _written(row: Mapping[str, Any]) -> Row:
    if unknown := set(row) - set(COLUMNS):
        raise KeyError(f"no such columns: {', '.join(sorted(unknown))}")
    return {column: _text(row.get(column)) for column in COLUMNS}


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
