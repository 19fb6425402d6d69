"""From the columns of a file to M, its labels and its features."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..containers import Labelled
from ..dates import has_offset, parse_dates
from ..labels import Labels
from ..longtable import LongTable
from ..lowrank import Array
from ..wording import count, few
from .table import UNNAMED, FileTable, ReaderError, objects, shorten

INTEGER = re.compile(r"-?[1-9]\d{0,17}|0")  # those that are spelt in one way, and fit into 64 bits
NUMBER = re.compile(r"-?(0|[1-9]\d{0,11})(\.\d{1,4})?")  # codes such as 007, and ids with more digits, are text
MONTH = re.compile(r"\d{4}-\d\d")  # as a date it would come back as its first day


@dataclass(frozen=True, eq=False)
class Data:
    """M as it was given.

    Attributes
    ----------
    name : str
        Of the file.
    M : Labelled, LongTable, array or sparse array
        What fit takes.
    rows, columns : Labels or None
    features : dict of arrays, or None
        Columns of the file that describe its rows.
    cells : (rows, columns, values), or None
        Of a long table: the positions of all lines, and their values, NaN where missing.
    value : str
        What the values of a long table are called.
    notes : tuple of str
        What was decided about the file.
    """

    name: str
    M: Any
    rows: Labels | None = None
    columns: Labels | None = None
    features: dict[str, Array] | None = None
    cells: tuple[Array, Array, Array] | None = None
    value: str = "value"
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        shape: tuple[int, int] = (self.M.values if isinstance(self.M, Labelled) else self.M).shape
        return shape

    @classmethod
    def of_matrix(cls, name: str, matrix: Any) -> Data:
        """Return a matrix without labels; of a sparse one, the stored entries are the observed ones."""
        data = cls(name, matrix)
        if not hasattr(matrix, "tocoo"):
            return data
        stored = matrix.tocoo()
        note = f"entries that {name} does not store are unknown, not zero"
        return replace(data, cells=(stored.row, stored.col, stored.data), notes=(note,))


def wide(
    table: FileTable, index: str | None = None, features: Sequence[str] = (), columns: Labels | None = None
) -> Data:
    """Return M from a table with one row of it in each line.

    Parameters
    ----------
    table : FileTable
    index : str or None
        The column with the labels of the rows. None: one without a name at the beginning, or the first column of text
        or dates, if each of its values is there once.
    features : names of columns that describe the rows, and are no part of M
    columns : Labels or None
        The columns that M must have, in this order; None: all.
    """
    for name in features:
        table.check_column(name, "--feature")
    if index is not None:
        table.check_column(index, "--index")
    body, notes = table.without(features), list(table.notes)
    label = _find_index(body) if index is None else index
    if label is None:
        notes += _note_counter(body)
    elif index is None:
        notes.append(f"the rows are labelled by the column {label!r}")
    body = body.without([label] if label else [])
    _refuse_text(body, label)
    if columns is not None:
        body = _reorder(body, columns, notes)
    elif table.named:
        columns = as_labels(list(body.columns), None)
    rows = None if label is None else _label_rows(table, label)
    values = np.column_stack([column.astype(float) for column in body.columns.values()])
    described = {name: table.columns[name] for name in features} or None
    return Data(table.name, Labelled(values, rows, columns), rows, columns, described, notes=tuple(notes))


def _find_index(table: FileTable) -> str | None:
    """Return the column that seems to label the rows."""
    first = next(iter(table.columns), "")
    if first.startswith(UNNAMED) and len(table.columns) > 1 and table.named:
        return first
    named = next((name for name, values in table.columns.items() if values.dtype.kind in "OM"), None)
    texts = [] if named is None else table.spell(named)
    return named if texts and len({*texts} - {""}) == len(table) else None


def _label_rows(table: FileTable, name: str) -> Labels:
    texts = _labels_in(table, name)
    if (k := _find_repeated(texts)) is not None:
        raise ReaderError(
            f"{table.name}, {table.line_of(k)}: {texts[k]!r} is there for the second time in the column {name!r}, "
            "which labels the rows. With one line for each observation, pass --long ROW,COLUMN,VALUE; else choose "
            "another column as --index"
        )
    return as_labels(texts, None if name.startswith(UNNAMED) else name)


def _find_repeated(things: Sequence[Any]) -> int | None:
    """Return the position of the first thing that was there before."""
    first: dict[Any, int] = {}
    return next((k for k, thing in enumerate(things) if first.setdefault(thing, k) != k), None)


def _labels_in(table: FileTable, name: str) -> list[str]:
    texts = table.spell(name)
    if "" in texts:
        raise ReaderError(
            f"{table.name}, {table.line_of(texts.index(''))}: no label in the column {name!r}; "
            "fill it in, or remove the line: nobody knows where it belongs"
        )
    return texts


def _note_counter(body: FileTable) -> list[str]:
    """Return a note on a first column of 1, 2, 3, … or of years, which is more often a label than data."""
    name, values = next(iter(body.columns.items()), ("", np.empty(0)))
    counts = values.dtype == float and len(values) > 2 and len(body.columns) > 1
    if not counts or not (np.diff(values) > 0).all() or (values != np.floor(values)).any():
        return []
    return [f"the column {name!r} is taken for data; if it labels the rows, pass --index {shlex.quote(name)}"]


def _refuse_text(body: FileTable, index: str | None) -> None:
    if not body.columns:
        raise ReaderError(f"{body.name} has no column of numbers beside the labels of the rows")
    wrong = [name for name, values in body.columns.items() if values.dtype.kind in "OM"]
    if not wrong:
        return
    shown = few(wrong, spell=lambda name: f"{name!r} such as {_example(body, name)}")
    name = shlex.quote(wrong[0])
    unique = len(set(body.spell(wrong[0]))) == len(body)
    labels = f"--index {name} if it labels the rows, " if index is None and unique else ""
    raise ReaderError(
        f"{body.name} has columns that are not numbers ({shown}). Say what each is: {labels}--feature {name} to use "
        f"it as a description of the rows, --drop {name} to leave it out. If each line is one measurement: "
        "--long ROW,COLUMN,VALUE"
    )


def _example(table: FileTable, name: str) -> str:
    return shorten(next(filter(None, table.spell(name)), ""), 30)


def _reorder(body: FileTable, columns: Labels, notes: list[str]) -> FileTable:
    """Return the columns of a model, in its order."""
    names, wanted = list(body.columns), columns.spell()
    places = _find(wanted, names)
    lacking = [text for text, k in zip(wanted, places, strict=True) if k < 0]
    more = [name for k, name in enumerate(names) if k not in places]
    if lacking:
        raise ReaderError(
            f"{body.name} lacks columns that the model has: {few(lacking)}; "
            f"it has {few(names)}. If their values are not known, add them and leave them empty"
        )
    if more:
        options = " ".join(f"--drop {shlex.quote(name)}" for name in more[:5])
        raise ReaderError(f"{body.name} has columns that the model does not have: {few(more)}; {options}")
    if (np.diff(places) < 0).any():
        notes.append(f"the columns of {body.name} are in another order than those of the model, and matched by name")
    return replace(body, columns={names[k]: body.columns[names[k]] for k in places})


def long(table: FileTable, names: Sequence[str], columns: Labels | None = None) -> Data:
    """Return M from a table with one observation in each line.

    Parameters
    ----------
    table : FileTable
    names : three names of columns: label of the row, label of the column, value
    columns : Labels or None
        The columns that M must have, in this order; None: those that occur, sorted.
    """
    for name in names:
        table.check_column(name, "--long")
    row, column, value = names
    if table.columns[value].dtype.kind in "OM":
        raise ReaderError(
            f"--long: the column {value!r} of {table.name} holds no numbers, but {_example(table, value)}"
        )
    values = table.columns[value].astype(float)
    i, rows = _place(table, row, None)
    j, cols = _place(table, column, columns)
    known = ~np.isnan(values)
    if not known.any():
        raise ReaderError(f"{table.name} has no value in the column {value!r}")
    shape = len(rows), len(cols)
    cells = (i * shape[1] + j).tolist()
    if (again := _find_repeated(cells)) is not None:
        raise ReaderError(
            f"{table.name}: row {rows.spell()[i[again]]!r}, column {cols.spell()[j[again]]!r} is there twice, in "
            f"{table.line_of(cells.index(cells[again]))} and {table.line_of(again)}; lines that repeat a cell: "
            f"{len(cells) - len(set(cells))}. Keep one line for each, or their mean: only you know which value counts"
        )
    M = LongTable(i[known], j[known], values[known], shape, row_labels=rows, col_labels=cols)
    gaps = len(values) - len(M)
    notes = (f"lines without a value: {gaps}; these cells are unknown",) if gaps else ()
    return Data(table.name, M, rows, cols, cells=(i, j, values), value=value, notes=(*table.notes, *notes))


def _place(table: FileTable, name: str, side: Labels | None) -> tuple[Array, Labels]:
    """Return the position of each line on one side of M, and that side: the one given, or all labels that occur."""
    texts = _labels_in(table, name)
    spelt = list(dict.fromkeys(texts))
    if side is None:  # numbers by size, dates in time, text by alphabet
        spelt.sort()
        order = np.argsort(as_labels(spelt, name).levels[0], kind="stable")
        side = as_labels([spelt[k] for k in order], name)
    places = dict(zip(spelt, _find(spelt, side.spell()), strict=True))
    unknown = [text for text in spelt if places[text] < 0]
    if unknown:
        first = texts.index(unknown[0])
        raise ReaderError(
            f"{table.name}, {table.line_of(first)}: the model has no column {unknown[0]!r}; labels in the column "
            f"{name!r} that it does not know: {len(unknown)}. Leave these lines out, or fit again"
        )
    return np.array([places[text] for text in texts], np.intp), side


def as_labels(texts: Sequence[str], name: str | None) -> Labels:
    """Return labels from their spelling: integers, dates, other numbers, or text; all stay different."""
    values, dtype = objects(texts), "str"
    if texts and all(map(INTEGER.fullmatch, texts)):
        values, dtype = np.array(list(map(int, texts)), np.int64), "int64"
    elif (dates := _read_dates(texts)) is not None and len(np.unique(dates)) == len(set(texts)):
        values, dtype = dates, "datetime64[us, UTC]" if has_offset(texts[0]) else "datetime64[us]"
    elif texts and all(map(NUMBER.fullmatch, texts)) and len(set(map(float, texts))) == len(set(texts)):
        values, dtype = np.array(list(map(float, texts))), "float64"
    labels = Labels((values,), (name,), (dtype,))
    object.__setattr__(labels, "_spelt", list(texts))
    return labels


def _read_dates(texts: Sequence[str]) -> Array | None:
    try:
        return None if any(map(MONTH.fullmatch, texts)) else parse_dates(texts)
    except ValueError:  # with and without an offset from UTC
        return None


def _find(texts: Sequence[str], among: Sequence[str]) -> Array:
    """Return where labels are among others, dates and numbers however they are spelt; -1 where they are not."""
    places = {key: k for k, key in enumerate(_keys(among))}
    return np.array([places.get(key, -1) for key in _keys(texts)], np.intp)


def _keys(texts: Sequence[str]) -> list[Any]:
    """Return what labels are matched by: equal for dates and numbers that are spelt in other ways."""
    keys = [float(text) if NUMBER.fullmatch(text) else _as_date(text) for text in texts]
    return keys if len(set(keys)) == len(set(texts)) else list(texts)


def _as_date(text: str) -> Any:
    dates = _read_dates([text])
    return text if dates is None else dates[0]


def align(table: FileTable, side: Labels | None, n: int, option: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the features of the rows, or columns, of M, in their order, from a table of its own; and notes.

    Parameters
    ----------
    table : FileTable
        One column of it holds the labels of M: the first that holds all of them.
    side : Labels or None
        The rows, or columns, of M. Without labels the table must have a line for each, in the same order.
    n : int
        How many there are.
    option : str
        Of the command, for messages.
    """
    if side is None and len(table) != n:
        raise ReaderError(
            f"{option}: {table.name} has {count(len(table), 'line')} and M has {n} rows or columns there, without "
            "labels by which to match them; give one line for each, in the same order, or label M (--index)"
        )
    if side is None:
        return table.columns, (*table.notes, f"{table.name} is matched with M by position: line by line")
    wanted = side.spell()
    name = _find_labels(table, wanted, option)
    texts = table.spell(name)
    if (twice := _find_repeated(_keys(texts))) is not None:
        raise ReaderError(f"{option}: {texts[twice]!r} is there more than once in the column {name!r} of {table.name}")
    places = _find(wanted, texts)
    features = {other: values[places] for other, values in table.columns.items() if other != name}
    if not features:
        raise ReaderError(f"{option}: {table.name} has labels, in the column {name!r}, but no features beside them")
    notes = [*table.notes, f"{table.name} is matched by its column {name!r}"]
    if len(texts) > len(places):
        more = count(len(texts) - len(places), f"line of {table.name} is", f"lines of {table.name} are")
        notes.append(f"{more} not in M, and not used")
    return features, tuple(notes)


def _find_labels(table: FileTable, texts: Sequence[str], option: str) -> str:
    """Return the first column that holds all labels."""
    lacking = {
        name: [text for text, k in zip(texts, _find(texts, table.spell(name)), strict=True) if k < 0]
        for name in table.columns
    }
    name = min(lacking, key=lambda name: len(lacking[name]))
    if len(lacking[name]) == len(texts):
        raise ReaderError(
            f"{option}: no column of {table.name} holds the labels {few(texts)}; its columns are {few(table.columns)}"
        )
    if lacking[name]:
        raise ReaderError(
            f"{option}: {table.name} has no line for {len(lacking[name])} of the {len(texts)} labels, in its column "
            f"{name!r}: {few(lacking[name])}. Add them; a feature that is not known may be left empty"
        )
    return name
