"""Outliers and repaired tables as files, spelt as in the file that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..lowrank import Array
from ..readers import Data, FileLabels
from . import writers

FIELDS = ("row", "column", "observed", "expected", "difference", "std", "score", "probability")


def outliers(model: Any, data: Data, options: dict[str, Any]) -> dict[str, list[Any]]:
    """The outliers as lists, with labels as they are spelt in the file, and positions beside them."""
    if model.sparse_ is None:
        return {name: [] for name in (*FIELDS, "at")}
    table = model.outliers(**options)
    found: dict[str, list[Any]] = {name: np.asarray(table[name]).tolist() for name in FIELDS}
    places = [_positions(found[name], side) for name, side in (("row", data.rows), ("column", data.columns))]
    found["at"] = list(zip(*places, strict=True))
    found["row"], found["column"] = ([side.text(k) for k in at] for side, at in zip(_sides(data), places, strict=True))
    found["observed"] = writers.exact_list(np.asarray(table["observed"]))
    return found


def _sides(data: Data) -> tuple[FileLabels, FileLabels]:
    return data.rows, data.columns


def _positions(labels: list[Any], side: FileLabels) -> list[int]:
    if side.labels is None:
        return labels
    at = {label: k for k, label in enumerate(side.labels.levels[0].tolist())}
    return [at[label] for label in labels]


def write_outliers(path: Path, found: dict[str, list[Any]]) -> None:
    columns = [found["row"], found["column"], writers.full(found["observed"])]
    columns += [writers.rounded(found[name]) for name in FIELDS[3:]]
    writers.write_csv(path, FIELDS, zip(*columns, strict=True))


def write_repaired(path: Path, model: Any, data: Data, cut: dict[str, Any]) -> None:
    if data.cells is not None:
        _write_long(path, model, data, cut)
    elif model.sparse_ is None:
        write_wide(path, data, _values(data.M))
    else:
        write_wide(path, data, _values(model.repaired(**cut)))


def _values(table: Any) -> Array:
    return np.asarray(getattr(table, "values", table))


def write_wide(path: Path, data: Data, values: Array) -> None:
    """A table like the one that was given: labels only where it had some."""
    rows, columns = _sides(data)
    labelled = rows.texts is not None
    header = None if columns.texts is None else [*([rows.name or ""] if labelled else []), *columns.texts]
    lines = (
        [*([rows.text(i)] if labelled else []), *writers.full(writers.exact_list(line))]
        for i, line in enumerate(values)
    )
    writers.write_csv(path, header, lines)


def _write_long(path: Path, model: Any, data: Data, cut: dict[str, Any]) -> None:
    """The lines that were given, in their order, with outliers and missing values replaced."""
    assert data.cells is not None
    rows, cols, values = data.cells
    values = np.where(np.isnan(values), _expected(model, rows, cols), values)
    if model.sparse_ is not None:
        n2, found = data.shape[1], outliers(model, data, cut)
        wrong = {i * n2 + j: expected for (i, j), expected in zip(found["at"], found["expected"], strict=True)}
        cells = rows.astype(np.int64) * n2 + cols
        for k in np.flatnonzero(np.isin(cells, np.array(list(wrong), np.int64))):
            values[k] = wrong[int(cells[k])]
    names = data.rows.name or "row", data.columns.name or "column", data.value
    texts = ([side.text(k) for k in at] for side, at in zip(_sides(data), (rows, cols), strict=True))
    writers.write_csv(path, names, zip(*texts, writers.full(values.tolist()), strict=True))


def _expected(model: Any, rows: Array, cols: Array) -> Array:
    expected = np.asarray(model.result_.L.entries(rows, cols), float)
    known = model.result_.known
    return expected if known is None else np.where(known[0][rows] & known[1][cols], expected, np.nan)
