"""What a file is read as: columns with names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..lowrank import Array
from ..wording import few

UNNAMED = "Unnamed: "  # and the position of the column, as pandas writes it
MOST_NAMES = 20  # in a message about a column that is not there


class ReaderError(ValueError):
    """A file that cannot be read, or not as what is asked for; the message says where, and what to do."""

    exit_code = 3


@dataclass(frozen=True)
class Options:
    """How to read a file.

    Attributes
    ----------
    missing : tuple of str
        What stands for a missing value, beside :data:`irpca.readers.csvfiles.MISSING`. Of a number, whatever equals it
        does.
    drop, only, text, labels : tuples of str
        Columns to leave out; the only ones to read, if some are named; to keep as text whatever they look like; that
        hold labels, in which only an empty field is missing, and codes such as 007 stay as they are.
    delimiter, decimal, encoding : str or None
        Of csv files. None: found out.
    header : bool
        Whether the first line of a csv file has the names of its columns.
    loose : bool
        Whether columns named in ``drop`` and ``text`` may be absent.
    key : str or None
        Which array of an npz or zarr file.
    """

    missing: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool = True
    loose: bool = False
    key: str | None = None

    def choose(self, file: str, names: list[str]) -> list[str]:
        """Return the columns to read, of those that a file has; refuse options about others, and to read none."""
        for option, asked in (("--drop", self.drop), ("--text", self.text)):
            for name in asked:
                if name not in names and not self.loose:
                    raise ReaderError(no_column(file, name, names, option))
        wanted = [name for name in names if name not in self.drop and (not self.only or name in self.only)]
        if not wanted:
            raise ReaderError(f"every column of {file} is dropped")
        return wanted


@dataclass(frozen=True, eq=False)
class FileTable:
    """Columns of a file, in its order.

    Attributes
    ----------
    name : str
        Of the file.
    columns : dict of 1-D arrays
        float64 with NaN, objects (str or None), datetime64 with NaT, or bool.
    texts : dict of lists of str
        Columns that are no numbers, and labels, as they are spelt in the file.
    named : bool
        Whether the columns have names in the file.
    notes : tuple of str
        What the owner of the file should know.
    line_of : callable
        Where a record is in the file, in words.
    """

    name: str
    columns: dict[str, Array]
    texts: dict[str, list[str]] = field(default_factory=dict)
    named: bool = True
    notes: tuple[str, ...] = ()
    line_of: Callable[[int], str] = field(default="record {}".format, repr=False)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def without(self, names: Iterable[str]) -> FileTable:
        """Return the table without these columns."""
        left_out = set(names)
        return replace(self, columns={name: values for name, values in self.columns.items() if name not in left_out})

    def check_column(self, name: str, option: str) -> None:
        """Refuse a column that an option names, and the table does not have."""
        if name not in self.columns:
            raise ReaderError(no_column(self.name, name, self.columns, option))

    def spell(self, name: str) -> list[str]:
        """Return one column as text, as in the file where that is known; "" where missing."""
        return self.texts[name] if name in self.texts else spell_values(self.columns[name])


def spell_values(values: Array) -> list[str]:
    """Return values as text, spelt the same whatever file they come from; "" where missing."""
    if values.dtype.kind == "M":
        days, known = values.astype("datetime64[D]"), ~np.isnat(values)
        whole_days = bool((values == days)[known].all())
        texts = np.datetime_as_string(days if whole_days else values.astype("datetime64[us]")).tolist()
        return ["" if text == "NaT" else text for text in texts]
    if values.dtype.kind == "f":
        return ["" if math.isnan(x) else str(int(x)) if x.is_integer() else repr(x) for x in values.tolist()]
    return ["" if value is None else str(value) for value in values.tolist()]


def objects(values: Iterable[Any]) -> Array:
    """Return a 1-D array of objects, whatever they are."""
    return np.array([*values, None], object)[:-1]


def no_column(file: str, name: str, names: Any, option: str) -> str:
    """Return what to say of a column that is asked for, and not there."""
    return f"{option}: {file} has no column {name!r}; it has {few(names, MOST_NAMES)}"


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def shorten(text: str, most: int) -> str:
    """Return text in quotes, cut if it is long."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")
