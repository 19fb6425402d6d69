"""Observations as a long table: one line ``(row, column, value)`` for each entry of M that was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arguments import is_whole, naming, shown
from .labels import Labels
from .lowrank import Array
from .wording import count, few, quote

MOST_CELLS = 2**63 - 1  # a cell is numbered row * n2 + column, in 64 bits
MAX_SHOWN_VALUES = 3  # values that a message shows


@dataclass(frozen=True, init=False, eq=False, repr=False)
class LongTable:
    """The observed entries of M, each once: ``M[rows[k], cols[k]] = values[k]``. All others are unknown, not zero.

    Parameters
    ----------
    rows, cols : arrays of integers of shape (m,)
        Positions, counted from 0.
    values : array of shape (m,)
        float32 is kept, everything else becomes float64.
    shape : (n1, n2) or None
        None: the largest position plus one on each side, or the number of labels.
    row_labels, col_labels : pandas Index, or what makes one, or None
        The names of all rows and of all columns, in the order of their positions.

    See Also
    --------
    LongTable.from_frame : the same from a data frame, whose labels may be anything.

    Examples
    --------
    >>> table = LongTable([0, 0, 2], [1, 0, 1], [5, 3, 4])
    >>> table
    LongTable(3 × 2, 3 observations)
    >>> table.dense()
    array([[ 3.,  5.],
           [nan, nan],
           [nan,  4.]])
    """

    rows: Array
    cols: Array
    values: Array
    shape: tuple[int, int]
    row_labels: Any
    col_labels: Any

    def __init__(
        self,
        rows: Any,
        cols: Any,
        values: Any,
        shape: tuple[int, int] | None = None,
        *,
        row_labels: Any = None,
        col_labels: Any = None,
    ) -> None:
        named = (("rows", rows), ("cols", cols), ("values", values))
        given = {name: _read_column(one, name) for name, one in named}
        _check_lengths(given)
        row_labels, col_labels = _read_index(row_labels, "row_labels"), _read_index(col_labels, "col_labels")
        sides = _read_shape(shape)
        rows, n1 = _check_positions(given["rows"], "rows", sides[0], row_labels)
        cols, n2 = _check_positions(given["cols"], "cols", sides[1], col_labels)
        self._fill(rows, cols, _read_numbers(given["values"], "values"), (n1, n2), row_labels, col_labels)
        self._check_values("values", "keep = np.isfinite(values); LongTable(rows[keep], cols[keep], values[keep])")
        frame = 'With frame = pd.DataFrame({"row": rows, "column": cols, "value": values}), '
        self._check_once(frame + _advise_to_merge("row", "column", "value"))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        row: str = "user",
        column: str = "item",
        value: str = "rating",
        *,
        rows: Any = None,
        columns: Any = None,
    ) -> LongTable:
        """The table in a data frame with one line for each observation.

        Parameters
        ----------
        frame : DataFrame, or anything that has its columns as ``frame[name]``
        row, column, value : str
            Names of three columns of it: the label of the row of M, that of the column of M, and the entry there.
        rows, columns : labels, or None
            All rows and all columns of M in the order wanted, such as ``users.index``: then features that have this
            index line up with M, and rows without any observation exist. None: the labels that occur, sorted.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"user": ["bo", "al", "bo"], "item": [7, 7, 3], "rating": [5, 4, 1]})
        >>> table = LongTable.from_frame(frame)
        >>> list(table.row_labels), list(table.col_labels)
        (['al', 'bo'], [3, 7])
        >>> LongTable.from_frame(frame, rows=["al", "bo", "cy"])
        LongTable(3 × 2, 3 observations)
        """
        _check_names(row=row, column=column, value=value)
        labels = _read_labels(frame, row, "row"), _read_labels(frame, column, "column")
        numbers = _read_column(_take_column(frame, value, "value"), _spell_column(value))
        _check_lengths(dict(zip(map(_spell_column, (row, column, value)), (*labels, numbers), strict=True)))
        at_row, row_labels = _place_labels(labels[0], row, rows, "rows")
        at_col, col_labels = _place_labels(labels[1], column, columns, "columns")
        numbers = _read_numbers(numbers, _spell_column(value))
        table: LongTable = object.__new__(cls)
        table._fill(at_row, at_col, numbers, (len(row_labels), len(col_labels)), row_labels, col_labels)
        infinite = np.isinf(numbers).any()
        drop = f"frame[np.isfinite({_spell_column(value)})]" if infinite else f"frame.dropna(subset=[{value!r}])"
        table._check_values(_spell_column(value), drop)
        table._check_once("In pandas, " + _advise_to_merge(row, column, value))
        return table

    def with_values(self, values: Any) -> LongTable:
        """The same cells with other values, one for each, such as residuals."""
        values = _read_column(values, "values")
        _check_lengths({"the table": self.values, "values": values})
        return self._replace_values(self.rows, self.cols, _read_numbers(values, "values"))

    def take(self, index: Any) -> LongTable:
        """Some of the observations, for example to hold the others out; shape and labels stay.

        Parameters
        ----------
        index : array of bool of shape (m,), array of positions, each once, or slice

        Examples
        --------
        >>> import numpy as np
        >>> table = LongTable([0, 0, 2], [1, 0, 1], [5, 3, 4])
        >>> held_out = np.array([False, True, False])
        >>> table.take(~held_out), table.take(held_out)
        (LongTable(3 × 2, 2 observations), LongTable(3 × 2, 1 observation))
        """
        picked = _pick(index, len(self))
        return self._replace_values(self.rows[picked], self.cols[picked], self.values[picked])

    def dense(self) -> Array:
        """The full matrix, n1 × n2, with NaN where nothing was observed."""
        full = np.full(self.shape, np.nan, self.values.dtype)
        full[self.rows, self.cols] = self.values
        return full

    def __irpca_observed__(self) -> tuple[Array, Array, Array, tuple[int, int]]:
        """``rows, cols, values, shape``: by this an engine knows that entries are missing, and which are there."""
        return self.rows, self.cols, self.values, self.shape

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        n1, n2 = self.shape
        return f"LongTable({n1} × {n2}, {count(len(self), 'observation')})"

    def _fill(self, *fields: Any) -> None:
        for name, field in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, field)  # frozen for everyone else

    def _replace_values(self, rows: Array, cols: Array, values: Array) -> LongTable:
        """Cells of this table, which need no second check, with values that may."""
        table: LongTable = object.__new__(type(self))
        table._fill(rows, cols, values, self.shape, self.row_labels, self.col_labels)
        table._check_values("values", "table.take(np.isfinite(values)).with_values(values[np.isfinite(values)])")
        return table

    def _check_values(self, name: str, advice: str) -> None:
        finite = np.isfinite(self.values)
        if finite.all():
            return
        first, total = int(np.argmin(finite)), f"of {len(finite):,}"
        raise ValueError(
            f"{name}: {count(int((~finite).sum()), f'value {total} is', f'values {total} are')} NaN or infinite, "
            f"the first at position {first} ({self._spell_cell(first)}). An entry that was not observed has no line in "
            f"the table: drop it, with {advice}"
        )

    def _check_once(self, advice: str) -> None:
        n1, n2 = self.shape
        if n1 * n2 > MOST_CELLS:
            raise ValueError(
                f"M would be {n1} × {n2}, with more cells than can be numbered. If these are ids rather than "
                "positions 0, 1, 2, …, use LongTable.from_frame, which leaves no gaps between them"
            )
        cell = self.rows * n2 + self.cols
        if (cell[1:] > cell[:-1]).all():  # as many tables are stored: nothing to sort
            return
        ordered = np.sort(cell)
        again = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(again) == 0:
            return
        where = np.nonzero(cell == again[0])[0]
        raise ValueError(
            f"{self._spell_cell(where[0])} is there {len(where)} times, with values "
            f"{few(self.values[where], MAX_SHOWN_VALUES)}; {count(len(np.unique(again)), 'cell is', 'cells are')} "
            f"repeated, and only you can say which value counts. {advice}"
        )

    def _spell_cell(self, k: int) -> str:
        row, col = self.rows[k], self.cols[k]
        row = row if self.row_labels is None else quote(self.row_labels[row])
        col = col if self.col_labels is None else quote(self.col_labels[col])
        return f"row {row}, column {col}"


def _read_column(given: Any, name: str) -> Array:
    """One argument as an array with one dimension."""
    if np.ma.is_masked(given):
        raise ValueError(
            f"{name} is a masked array: an entry that was not observed has no line in the table: drop it, "
            f"with {name}.compressed(), and the same of the others"
        )
    with naming(name):
        array = np.asarray(given)
    if array.ndim != 1:
        hint = ". For a data frame, use LongTable.from_frame" if hasattr(given, "columns") else ""
        raise ValueError(f"{name} must be one list of numbers, one for each observation; got shape {array.shape}{hint}")
    return array


def _check_lengths(given: dict[str, Any]) -> None:
    lengths = {name: len(one) for name, one in given.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"there must be one entry for each observation, but {found}")
    if 0 in lengths.values():
        raise ValueError(f"there are no observations: {' and '.join(lengths)} are empty")


def _read_shape(shape: Any) -> tuple[int, int] | tuple[None, None]:
    if shape is None:
        return None, None
    sides = tuple(shape) if isinstance(shape, tuple | list) else ()
    if len(sides) != 2 or not all(is_whole(n) and n > 0 for n in sides):
        raise ValueError(f"shape must be two positive integers, (rows, columns) of M, or None; got {shape!r}")
    return int(sides[0]), int(sides[1])


def _check_positions(ids: Array, name: str, n: int | None, labels: Any) -> tuple[Array, int]:
    """Positions as NumPy's own integers, and how many rows, or columns, M has."""
    side = {"rows": "row", "cols": "column"}[name]
    if ids.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be integers, positions counted from 0; got {_name_kind(ids)}. For labels use "
            f"LongTable.from_frame; if they are whole numbers, pass {name}.astype(int), and for a mask np.nonzero(mask)"
        )
    if labels is not None and n not in (None, len(labels)):
        raise ValueError(
            f"{name[:3]}_labels has {count(len(labels), 'label')}, but shape asks for {count(n or 0, side)}; give one "
            "for each"
        )
    n = n if labels is None else len(labels)
    least, largest = int(ids.min()), int(ids.max())
    if least < 0 or largest >= (MOST_CELLS if n is None else n):
        first = int(np.argmax(ids < 0 if least < 0 else ids == largest))
        known = "count from 0 and are never negative" if n is None else f"of {count(n, side)} run from 0 to {n - 1}"
        from_one = f"Yours seem to count from 1: pass {name} - 1" if least == 1 and largest == n else ""
        advice = "Give a larger shape, or all labels; for ids that are names use LongTable.from_frame"
        raise ValueError(f"{name}[{first}] is {ids[first]}, but positions {known}. {from_one or advice}")
    return ids.astype(np.intp, copy=False), largest + 1 if n is None else n


def _read_numbers(values: Array, name: str) -> Array:
    """Values as float32 if that is what they are, else as float64; of objects, None and pandas' NA are NaN."""
    kind = values.dtype.kind
    if kind == "O":
        for k, value in enumerate(values):
            if isinstance(value, str):  # which NumPy would convert
                raise ValueError(f"{name} must be numbers, but at position {k} there is {value!r}: use pd.to_numeric")
        with naming(name):
            missing = [value is None or type(value).__name__ == "NAType" for value in values]
            return np.where(missing, np.nan, values).astype(np.float64)
    if kind not in "iufb":
        hint = ": pd.to_numeric does that" if kind in "UST" else ""
        raise ValueError(f"{name} must be numbers, got {_name_kind(values)}; convert them first{hint}")
    return values.astype(np.float32 if kind == "f" and values.dtype.itemsize == 4 else np.float64, copy=False)


def _name_kind(array: Array) -> str:
    return "text" if array.dtype.kind in "UST" else str(array.dtype)


def _take_column(frame: Any, name: str, option: str) -> Any:
    """One column of whatever has columns."""
    try:
        column = frame[name]
    except Exception as error:  # every library has its own for this
        raise ValueError(_describe_lacking_column(frame, name, option)) from error
    column = column if hasattr(column, "iloc") else np.asarray(column)  # a pandas Series knows its kind of labels
    if column.ndim != 1:
        raise ValueError(
            f"{_spell_column(name)} is a block of shape {column.shape}, not one column; give each its own name"
        )
    return column


def _check_names(**names: Any) -> None:
    """Three different names; integers are names too."""
    for option, name in names.items():
        if name is None or not isinstance(name, Hashable):
            raise ValueError(f"{option} must be the name of one column of frame, got {name!r}")
    if len(set(names.values())) < len(names):
        given = ", ".join(f"{option}={name!r}" for option, name in names.items())
        raise ValueError(f"row, column and value must be three different columns of frame, got {given}")


def _describe_lacking_column(frame: Any, name: str, option: str) -> str:
    message = f"frame has no column {name!r}"
    if name in getattr(getattr(frame, "index", None), "names", ()):
        return f"{message}: it is in the index. Pass frame.reset_index()"
    names = frame.dtype.names if isinstance(frame, np.ndarray) else getattr(frame, "columns", None)
    if names is None and hasattr(frame, "keys"):
        names = frame.keys()
    if names is None:
        kind = type(frame).__name__
        return f"{message}: it is a {kind}. Pass a data frame; for arrays, use LongTable(rows, cols, values)"
    return f"{message}; it has {few(list(names), 20)}. Name the right one as {option}=…"


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        advice = 'pip install "irpca[pandas]", or use LongTable(rows, cols, values) with positions and no labels'
        raise ImportError(f"a LongTable with labels needs pandas: {advice}") from error
    return pandas


def _read_labels(frame: Any, name: str, option: str) -> Any:
    """The labels of the rows, or of the columns, of M, one for each observation."""
    pd = _import_pandas()
    column = _take_column(frame, name, option)
    labels = pd.Index(column)
    missing = np.asarray(labels.isna())
    if missing.any():
        total = f"of {len(labels):,}"
        raise ValueError(
            f"{_spell_column(name)}: {count(int(missing.sum()), f'label {total} is', f'labels {total} are')} missing, "
            f"the first at position {int(np.argmax(missing))}. These observations belong to no cell: drop them, with "
            f"frame.dropna(subset=[{name!r}])"
        )
    return labels


def _read_index(given: Any, name: str) -> Any:
    """All rows, or columns, of M by their labels, each once."""
    if given is None:
        return None
    if isinstance(given, Labels):
        index, distinct = given, len(set(given))
    else:
        if hasattr(given, "columns"):
            raise ValueError(f"{name} takes labels, not a table: pass the index of that, such as users.index")
        if isinstance(given, str) or np.ndim(given) != 1:
            raise ValueError(
                f"{name} takes all labels in the order wanted, as a list, array or index; got {shown(given)}. "
                "The column of frame that holds them is named by row= or column="
            )
        index = _import_pandas().Index(given)
        if index.hasnans:
            raise ValueError(f"{name} holds a missing label, at position {int(np.argmax(index.isna()))}: drop it")
        distinct = index.nunique()
    if distinct < len(index):
        label, times = Counter(index).most_common(1)[0]
        raise ValueError(f"{name} must hold each label once, but {quote(label)} is there {times} times")
    return index


def _place_labels(labels: Any, name: str, every: Any, option: str) -> tuple[Array, Any]:
    """Positions of labels among all of them, and those."""
    index = _read_index(every.pandas() if isinstance(every, Labels) else every, option)
    try:
        positions, index = labels.factorize(sort=True) if index is None else (index.get_indexer(labels), index)
    except TypeError as error:
        raise ValueError(
            f"the labels in {_spell_column(name)} cannot be sorted ({error}): give all of them, in the order "
            f"wanted, as {option}=…"
        ) from error
    if (unknown := positions < 0).any():
        first, others = int(np.argmax(unknown)), count(labels[unknown].nunique(), "label is", "labels are")
        advice = f"Add it to {option}, or leave these observations out: frame[{_spell_column(name)}.isin({option})]"
        if unknown.all() and labels.dtype != index.dtype:
            advice = f"These labels are {labels.dtype}, those in {option} {index.dtype}: convert one of them"
        raise ValueError(
            f"{_spell_column(name)} holds {quote(labels[first])}, at position {first}, which is not in {option}; "
            f"{others} unknown there. {advice}"
        )
    return positions.astype(np.intp, copy=False), index


def _pick(index: Any, length: int) -> Array:
    """The positions that a mask, positions or a slice stand for, each once."""
    if not isinstance(index, slice):
        index = np.asarray(index) if np.size(index) else slice(0)  # an empty list is none of integers
    try:
        picked = np.arange(length)[index]
    except IndexError as error:
        raise ValueError(f"index must be a mask, positions or a slice of {length} observations: {error}") from error
    if picked.ndim != 1:
        raise ValueError(f"index must be a mask, positions or a slice; got an array of shape {picked.shape}")
    if len(picked) == 0:
        raise ValueError(f"index takes none of the {length} observations; a table has at least one")
    if (times := np.bincount(picked)).max() > 1:
        raise ValueError(f"index takes observation {np.argmax(times > 1)} more than once; a table has every cell once")
    return picked


def _advise_to_merge(row: str, column: str, value: str) -> str:
    """How to make one value of several."""
    cell = f"[{row!r}, {column!r}]"
    return (
        f"frame.drop_duplicates({cell}, keep='last') keeps the last, "
        f"frame.groupby({cell}, as_index=False)[{value!r}].mean() the mean"
    )


def _spell_column(name: str) -> str:
    return f"frame[{name!r}]"
