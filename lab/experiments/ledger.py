"""The CSV: one line per run, written as soon as it ends, never run again once it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lab.machine import PROVENANCE
from lab.rows import append, read, text

from .harness import CRITERIA
from .problems import Case

SETTINGS = 1  # raise it when a row would mean something else than before: then all is run anew

CASE = tuple(field.name for field in fields(Case))
KEY = ("experiment", *CASE, "method", "seed", "settings")
MEASURED = ("iterations", "reads", "seconds", "error", "residual", "density", "precision", "recall", "s_error")
REACHED = tuple(f"{what}_{name}" for name in CRITERIA for what in ("seconds", "iterations", "reads"))
AT_RESIDUAL = ("error_residual", "s_error_residual")
COLUMNS = (*KEY, "solver", "budget", "status", *MEASURED, *REACHED, *AT_RESIDUAL, *PROVENANCE)
WORDS = {"experiment", "features", "scale", "method", "solver", "status", *PROVENANCE} - {"cores"}

Key = tuple[str, ...]
Row = dict[str, str]


class Ledger:
    """The rows of one CSV file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.rows: list[Row] = read(path)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text: mend it, or move it away") from error
        if self.rows and tuple(self.rows[0]) != COLUMNS:
            raise ValueError(f"{path} has other columns than this version writes; move it away, or take its version")
        for number, row in enumerate(self.rows, 2):
            try:
                records([row])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}, cannot be read ({error}): mend it, or take it out") from error
        self._keys = {_key(row) for row in self.rows}

    def __contains__(self, row: Mapping[str, Any]) -> bool:
        return _key(_written(row)) in self._keys

    def append(self, row: Mapping[str, Any]) -> None:
        line = _written(row)
        append(self.path, line)
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
    return {column: text(row.get(column)) for column in COLUMNS}
