"""Outliers and repaired tables as files, spelt as in the file that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..labels import Labels
from ..lowrank import Array
from ..readers import Data
from . import writers

NUMBERS = ("observed", "expected", "difference", "std", "lower", "upper", "score", "probability")
FIELDS = ("row", "column", *NUMBERS, "kind")


def outliers(model: Any, data: Data, options: dict[str, Any]) -> dict[str, list[Any]]:
    """The outliers as lists, with labels as they are spelt in the file, and positions beside them."""
    if model.sparse_ is None:
        return {name: [] for name in (*_fields(options), "at")}
    table = model.outliers(**options)
    found: dict[str, list[Any]] = {name: np.asarray(table[name]).tolist() for name in _fields(options)}
    rows, columns = _find_positions(found["row"], data.rows), _find_positions(found["column"], data.columns)
    found["at"] = list(zip(rows, columns, strict=True))
    found["row"], found["column"] = _spell(data.rows, rows), _spell(data.columns, columns)
    found["observed"] = writers.exact_list(np.asarray(table["observed"]))
    return found


def _fields(options: dict[str, Any]) -> tuple[str, ...]:
    return (*FIELDS, "why") if options.get("explain") else FIELDS


def _find_positions(labels: list[Any], side: Labels | None) -> list[int]:
    if side is None:
        return labels
    at = {label: k for k, label in enumerate(side.levels[0].tolist())}
    return [at[label] for label in labels]


def _spell(side: Labels | None, positions: Any) -> list[str]:
    """Labels as the file spells them, or positions."""
    texts = None if side is None else side.spell()
    return [str(k) if texts is None else texts[k] for k in positions]


def write_outliers(path: Path, found: dict[str, list[Any]]) -> None:
    columns = [found["row"], found["column"], writers.full(found["observed"])]
    columns += [writers.rounded(found[name]) for name in NUMBERS[1:]] + [found["kind"]]
    columns += [found["why"]] if "why" in found else []
    writers.write_csv(path, (*FIELDS, "why")[: len(columns)], zip(*columns, strict=True))


def write_repaired(path: Path, model: Any, data: Data, cut: dict[str, Any]) -> None:
    if data.cells is not None:
        _write_long(path, model, data, cut)
    elif model.sparse_ is None:
        write_wide(path, data, _to_array(data.M))
    else:
        write_wide(path, data, _to_array(model.repaired(**cut, force=True)))


def _to_array(table: Any) -> Array:
    return np.asarray(getattr(table, "values", table))


def write_wide(path: Path, data: Data, values: Array) -> None:
    """A table like the one that was given: labels only where it had some."""
    rows, columns = data.rows, data.columns
    corner, texts = ([], None) if rows is None else ([rows.names[0] or ""], rows.spell())
    header = None if columns is None else [*corner, *columns.spell()]
    lines = (writers.full(writers.exact_list(line)) for line in values)
    writers.write_csv(path, header, lines if texts is None else ([a, *b] for a, b in zip(texts, lines, strict=True)))


def _write_long(path: Path, model: Any, data: Data, cut: dict[str, Any]) -> None:
    """The lines that were given, in their order, with outliers and missing values replaced."""
    assert data.cells is not None
    rows, cols, values = data.cells
    values = np.where(np.isnan(values), _expect(model, rows, cols), values)
    if model.sparse_ is not None:
        n2, found = data.shape[1], outliers(model, data, cut)
        wrong = {i * n2 + j: expected for (i, j), expected in zip(found["at"], found["expected"], strict=True)}
        cells = rows.astype(np.int64) * n2 + cols
        for k in np.flatnonzero(np.isin(cells, np.array(list(wrong), np.int64))):
            values[k] = wrong[int(cells[k])]
    sides = ((data.rows, "row", rows), (data.columns, "column", cols))
    names = [(side and side.names[0]) or name for side, name, _ in sides]
    texts = (_spell(side, at) for side, _, at in sides)
    writers.write_csv(path, [*names, data.value], zip(*texts, writers.full(values.tolist()), strict=True))


def _expect(model: Any, rows: Array, cols: Array) -> Array:
    expected = np.asarray(model.result_.L.entries(rows, cols), float)
    known = model.result_.known
    return expected if known is None else np.where(known[0][rows] & known[1][cols], expected, np.nan)
