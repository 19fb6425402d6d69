"""From the columns of a file to M, its labels and its features."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..containers import Labelled
from ..dates import has_offset, parse_dates
from ..labels import Labels
from ..longtable import LongTable
from ..lowrank import Array
from .columns import UNNAMED, ReaderError, Table, as_texts, few, no_column, objects, quoted

INTEGER = re.compile(r"-?[1-9]\d{0,17}|0")  # those that are spelt in one way, and fit into 64 bits
MONTH = re.compile(r"\d{4}-\d\d")  # as a date it would come back as its first day
LISTED = 5  # things in a message


@dataclass(frozen=True, eq=False)
class Side:
    """The rows, or the columns, of M.

    Attributes
    ----------
    labels : Labels or None
    texts : list of str or None
        The labels as they are spelt in the file.
    name : str or None
        What the labels are called in the file.
    """

    labels: Labels | None = None
    texts: Sequence[str] | None = None
    name: str | None = None

    @classmethod
    def of(cls, texts: Sequence[str], name: str | None) -> Side:
        return cls(as_labels(texts, name), texts, name)

    def text(self, i: int) -> str:
        return str(i) if self.texts is None else self.texts[i]


@dataclass(frozen=True, eq=False)
class Data:
    """M as it was given.

    Attributes
    ----------
    name : str
        Of the file.
    M : Labelled, LongTable, array or sparse array
        What fit takes.
    rows, columns : Side
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
    rows: Side
    columns: Side
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
        """A matrix without labels; of a sparse one, the stored entries are the observed ones."""
        data = cls(name, matrix, Side(), Side())
        if not hasattr(matrix, "tocoo"):
            return data
        listed = matrix.tocoo()
        note = f"entries that {name} does not store are unknown, not zero"
        return replace(data, cells=(listed.row, listed.col, listed.data), notes=(note,))


def wide(table: Table, index: str | None = None, features: Sequence[str] = (), columns: Side | None = None) -> Data:
    """A table with one row of M in each line.

    Parameters
    ----------
    table : Table
    index : str or None
        The column with the labels of the rows. None: one without a name at the beginning, or the first column of text
        or dates, if each of its values is there once.
    features : names of columns that describe the rows, and are no part of M
    columns : Side or None
        The columns that M must have, in this order; None: all.
    """
    for name in features:
        if name not in table.columns:
            raise ReaderError(no_column(table.name, name, table.columns, "--feature"))
    described = {name: table.columns[name] for name in features}
    body, notes = table.without(features), list(table.notes)
    chosen = _index(body, index)
    if chosen is not None:
        body = body.without([chosen])
    if chosen is not None and index is None:
        notes.append(f"the rows are labelled by the column {chosen!r}")
    elif chosen is None:
        notes += _about_counter(table, body)
    _refuse_text(body, table, chosen)
    if columns is not None and columns.texts is not None:
        body = _in_order(body, columns, notes)
    values = np.column_stack([column.astype(float) for column in body.columns.values()])
    rows = Side() if chosen is None else _unique_side(table, chosen)
    fitted = columns is not None and columns.texts is not None
    sides = rows, columns if fitted and columns else Side.of(list(body.columns), None) if table.named else Side()
    M = Labelled(values, sides[0].labels, sides[1].labels)
    return Data(table.name, M, *sides, features=described or None, notes=tuple(notes))


def _index(table: Table, given: str | None) -> str | None:
    """The column that labels the rows."""
    if given is not None:
        if given not in table.columns:
            raise ReaderError(no_column(table.name, given, table.columns, "--index"))
        return given
    first = next(iter(table.columns), None)
    if first is not None and first.startswith(UNNAMED) and len(table.columns) > 1 and table.named:
        return first
    named = [name for name, values in table.columns.items() if values.dtype.kind in "OM"]
    if not named or len(set(table.spelt(named[0]))) < len(table) or "" in table.spelt(named[0]):
        return None
    return named[0]


def _unique_side(table: Table, name: str) -> Side:
    texts = table.spelt(name)
    _refuse_missing(table, name, texts)
    if len(set(texts)) < len(texts):
        seen: set[str] = set()
        k = next(k for k, text in enumerate(texts) if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise ReaderError(
            f"{table.name}, {table.line_of(k)}: {texts[k]!r} is there for the second time in the column {name!r}, "
            "which labels the rows. With one line for each observation, pass --long ROW,COLUMN,VALUE; else choose "
            "another column as --index"
        )
    return Side.of(texts, None if name.startswith(UNNAMED) else name)


def _refuse_missing(table: Table, name: str, texts: list[str]) -> None:
    if "" in texts:
        k = texts.index("")
        raise ReaderError(
            f"{table.name}, {table.line_of(k)}: no label in the column {name!r}; "
            "fill it in, or remove the line: nobody knows where it belongs"
        )


def _about_counter(table: Table, body: Table) -> list[str]:
    """A first column of 1, 2, 3, … or of years is more often a label than data."""
    name, values = next(iter(body.columns.items()), ("", np.empty(0)))
    counts = values.dtype == float and len(values) > 2 and len(body.columns) > 1
    if not counts or not (np.diff(values) > 0).all() or (values != np.floor(values)).any():
        return []
    return [f"the column {name!r} is taken for data; if it labels the rows, pass --index {quoted(name)}"]


def _refuse_text(body: Table, table: Table, index: str | None) -> None:
    wrong = [name for name, values in body.columns.items() if values.dtype.kind in "OM"]
    if not body.columns:
        raise ReaderError(f"{table.name} has no column of numbers beside the labels of the rows")
    if not wrong:
        return
    shown = "; ".join(f"{name!r}, such as {_example(body, name)}" for name in wrong[:LISTED])
    more = f"; and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
    name = quoted(wrong[0])
    unique = len(set(body.spelt(wrong[0]))) == len(body)
    labels = f"--index {name} if it labels the rows, " if index is None and unique else ""
    raise ReaderError(
        f"{table.name} has columns that are not numbers ({shown}{more}). Say what each is: "
        f"{labels}--feature {name} to use "
        f"it as a description of the rows, --drop {name} to leave it out. If each line is one measurement: "
        "--long ROW,COLUMN,VALUE"
    )


def _example(table: Table, name: str) -> str:
    text = next(filter(None, table.spelt(name)), "")
    return repr(text if len(text) <= 30 else text[:29] + "…")


def _in_order(body: Table, columns: Side, notes: list[str]) -> Table:
    """The columns of a model, in its order."""
    assert columns.texts is not None
    own = dict(zip(_keys(list(body.columns)), body.columns, strict=True))
    wanted = _keys(columns.texts)
    lacking, more = [key for key in wanted if key not in own], sorted(set(own) - set(wanted))
    if lacking:
        raise ReaderError(
            f"{body.name} lacks columns that the model has: {few(lacking, LISTED)}; "
            f"it has {few(body.columns, LISTED)}. If their values are not known, add them and leave them empty"
        )
    if more:
        names = " ".join(f"--drop {quoted(own[key])}" for key in more[:LISTED])
        raise ReaderError(f"{body.name} has columns that the model does not have: {few(more, LISTED)}; {names}")
    if list(own) != wanted:
        notes.append(f"the columns of {body.name} are in another order than those of the model, and matched by name")
    return replace(body, columns={own[key]: body.columns[own[key]] for key in wanted})


def long(table: Table, names: Sequence[str], columns: Side | None = None) -> Data:
    """A table with one observation in each line.

    Parameters
    ----------
    table : Table
    names : three names of columns: label of the row, label of the column, value
    columns : Side or None
        The columns that M must have, in this order; None: those that occur, sorted.
    """
    for name in names:
        if name not in table.columns:
            raise ReaderError(no_column(table.name, name, table.columns, "--long"))
    row, column, value = names
    values = _observed(table, value)
    i, rows = _placed(table, row, None)
    j, cols = _placed(table, column, columns)
    there = ~np.isnan(values)
    if not there.any():
        raise ReaderError(f"{table.name} has no value in the column {value!r}")
    assert rows.texts is not None and cols.texts is not None
    _refuse_repeated(table, i, j, len(cols.texts), rows, cols)
    shape = len(rows.texts), len(cols.texts)
    M = LongTable(i[there], j[there], values[there], shape, row_labels=rows.labels, col_labels=cols.labels)
    gaps = int((~there).sum())
    notes = (f"lines without a value: {gaps}; these cells are unknown",) if gaps else ()
    return Data(table.name, M, rows, cols, cells=(i, j, values), value=value, notes=(*table.notes, *notes))


def _observed(table: Table, name: str) -> Array:
    values = table.columns[name]
    if values.dtype.kind in "OM":
        raise ReaderError(f"--long: the column {name!r} of {table.name} holds no numbers, but {_example(table, name)}")
    return values.astype(float)


def _placed(table: Table, name: str, side: Side | None) -> tuple[Array, Side]:
    """The position of each line on one side of M."""
    texts = table.spelt(name)
    _refuse_missing(table, name, texts)
    if side is None or side.texts is None:
        side = _sorted_side(set(texts), name)
        assert side.texts is not None
        at = {text: k for k, text in enumerate(side.texts)}
    else:
        of_key = {key: k for k, key in enumerate(_keys(side.texts))}
        spelt = list(dict.fromkeys(texts))
        keys = dict(zip(spelt, _keys(spelt), strict=True))
        unknown = [text for text in spelt if keys[text] not in of_key]
        if unknown:
            raise ReaderError(
                f"{table.name}, {table.line_of(texts.index(unknown[0]))}: the model has no column {unknown[0]!r}; "
                f"{len(unknown)} labels in the column {name!r} are unknown to it. Leave these lines out, or fit again"
            )
        at = {text: of_key[key] for text, key in keys.items()}
    return np.fromiter(map(at.__getitem__, texts), np.intp, len(texts)), side


def _sorted_side(texts: Iterable[str], name: str) -> Side:
    """All labels that occur: numbers by size, dates in time, text by alphabet."""
    spelt = sorted(texts)
    order = np.argsort(as_labels(spelt, name).levels[0], kind="stable")
    return Side.of([spelt[k] for k in order], name)


def _refuse_repeated(table: Table, i: Array, j: Array, n2: int, rows: Side, cols: Side) -> None:
    cell = i * n2 + j
    order = np.argsort(cell, kind="stable")
    again = np.flatnonzero(np.diff(cell[order]) == 0)
    if not len(again):
        return
    first, second = order[again[0]], order[again[0] + 1]
    raise ReaderError(
        f"{table.name}: row {rows.text(i[first])!r}, column {cols.text(j[first])!r} is there twice, in "
        f"{table.line_of(int(first))} and {table.line_of(int(second))}; lines that repeat a cell: {len(again)}. Keep "
        "one line for each, or their mean: only you can say which value counts"
    )


def as_labels(texts: Sequence[str], name: str | None) -> Labels:
    """Labels from their spelling: integers, dates, other numbers, or text; each must stay different from the others."""
    values, dtype = _label_values(texts)
    return Labels((values,), (name,), (dtype,))


def _label_values(texts: Sequence[str]) -> tuple[Array, str]:
    if texts and all(map(INTEGER.fullmatch, texts)):
        return np.array(list(map(int, texts)), np.int64), "int64"
    dates = _dates(texts)
    if dates is not None and len(np.unique(dates)) == len(set(texts)):
        return dates, "datetime64[us, UTC]" if has_offset(texts[0]) else "datetime64[us]"
    numbers = _plain_numbers(texts)
    if numbers is not None and len(np.unique(numbers)) == len(set(texts)):
        return numbers, "float64"
    return objects(texts), "str"


def _dates(texts: Sequence[str]) -> Array | None:
    try:
        return None if any(map(MONTH.fullmatch, texts)) else parse_dates(texts)
    except ValueError:  # with and without an offset from UTC
        return None


def _plain_numbers(texts: Sequence[str]) -> Array | None:
    if not texts or not all(re.fullmatch(r"-?(0|[1-9]\d{0,11})(\.\d{1,4})?", text) for text in texts):
        return None  # codes such as 007, and ids of more digits than a float has, are text
    return np.array(list(map(float, texts)))


def _keys(texts: Sequence[str]) -> list[str]:
    """Labels in one spelling, for comparison."""
    return as_texts(_label_values(texts)[0])


def align(table: Table, side: Side, n: int, option: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The features of the rows, or columns, of M, in their order, from a table of its own.

    Parameters
    ----------
    table : Table
        One column of it holds the labels of M: the first that holds all of them.
    side : Side
        The rows, or columns, of M. Without labels the table must have a line for each, in the same order.
    n : int
        How many there are.
    option : str
        Of the command, for messages.

    Returns
    -------
    dict of columns, and notes
    """
    if side.texts is None:
        return _by_position(table, n, option)
    wanted = _keys(side.texts)
    name, keys = _matching(table, wanted, side, option)
    at = {key: k for k, key in enumerate(keys)}
    if len(at) < len(keys):
        twice = next(k for k, key in enumerate(keys) if at[key] != k)
        raise ReaderError(f"{option}: {keys[twice]!r} is there more than once in the column {name!r} of {table.name}")
    places = np.array([at[key] for key in wanted], np.intp)
    features = {other: values[places] for other, values in table.columns.items() if other != name}
    if not features:
        raise ReaderError(f"{option}: {table.name} has labels, in the column {name!r}, but no features beside them")
    notes = [*table.notes, f"{table.name} is matched by its column {name!r}"]
    if len(keys) > len(wanted):
        notes.append(f"{len(keys) - len(wanted)} lines of {table.name} are not in M, and not used")
    return features, tuple(notes)


def _by_position(table: Table, n: int, option: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    if len(table) != n:
        raise ReaderError(
            f"{option}: {table.name} has {len(table)} lines and M has {n} rows or columns there, without labels by "
            "which to match them; give one line for each, in the same order, or label M (--index)"
        )
    return table.columns, (
        *table.notes,
        f"{table.name} is matched with M by position: line by line",
    )


def _matching(table: Table, wanted: list[str], side: Side, option: str) -> tuple[str, list[str]]:
    """The column that holds all labels, and its keys."""
    every, best = set(wanted), ("", [""], -1)
    for name in table.columns:
        keys = _keys(table.spelt(name))
        found = len(every.intersection(keys))
        if found == len(every):
            return name, keys
        best = max(best, (name, keys, found), key=lambda candidate: candidate[2])
    name, keys, found = best
    if not found:
        raise ReaderError(
            f"{option}: no column of {table.name} holds the labels {few(side.texts or [], LISTED)}; its columns are "
            f"{few(table.columns, LISTED)}"
        )
    known = set(keys)
    lacking = [text for text, key in zip(side.texts or [], wanted, strict=True) if key not in known]
    raise ReaderError(
        f"{option}: {table.name} has no line for {len(lacking)} of the {len(wanted)} labels, in its column {name!r}: "
        f"{few(lacking, LISTED)}. Add them; a feature that is not known may be left empty"
    )
