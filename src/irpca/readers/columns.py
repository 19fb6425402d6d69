"""What a file is read as: columns with names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ..lowrank import Array

UNNAMED = "Unnamed: "  # and the position of the column, as pandas writes it
SHOWN = 20  # names in a message


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


@dataclass(frozen=True, eq=False)
class Table:
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

    def without(self, names: Iterable[str]) -> Table:
        """The same table without these columns."""
        left_out = set(names)
        return replace(self, columns={name: values for name, values in self.columns.items() if name not in left_out})

    def spelt(self, name: str) -> list[str]:
        """One column as text, as in the file where that is known; "" where missing."""
        return self.texts[name] if name in self.texts else as_texts(self.columns[name])


def as_texts(values: Array) -> list[str]:
    """Values of a column, spelt the same whatever file they come from: what labels are matched by."""
    if values.dtype.kind == "M":
        return _dates_as_texts(values)
    if values.dtype.kind in "iub":
        return [str(value) for value in values.tolist()]
    if values.dtype.kind == "f":
        return ["" if math.isnan(x) else str(int(x)) if x.is_integer() else repr(x) for x in values.tolist()]
    return ["" if value is None else str(value) for value in values]


def _dates_as_texts(values: Array) -> list[str]:
    days, there = values.astype("datetime64[D]"), ~np.isnat(values)
    whole = bool((values[there] == days[there]).all())
    texts = np.datetime_as_string(days if whole else values.astype("datetime64[us]")).tolist()
    return ["" if text == "NaT" else text for text in texts]


def objects(values: Iterable[object]) -> Array:
    """A 1-D array of objects, whatever they are."""
    return np.array([*values, None], object)[:-1]


def check_known(file: str, names: Iterable[str], options: Options) -> None:
    """Refuse columns to drop, or to keep as text, that are not there."""
    names = list(names)
    if options.loose:
        return
    for option, wanted in (("--drop", options.drop), ("--text", options.text)):
        for name in wanted:
            if name not in names:
                raise ReaderError(no_column(file, name, names, option))


def no_column(file: str, name: str, names: Iterable[str], option: str) -> str:
    """What to say of a column that is asked for, and not there."""
    return f"{option}: {file} has no column {name!r}; it has {few(names)}"


def few(names: Iterable[str], most: int = SHOWN) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:most])) + (f" … ({len(names)} in all)" if len(names) > most else "")


def quoted(text: str) -> str:
    """As a shell takes it."""
    return text if re.fullmatch(r"[\w.+-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def short(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
