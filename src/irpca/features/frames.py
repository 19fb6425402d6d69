"""Columns of features in one form, whichever library the frame is from."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from ..cached import cached_property
from ..dates import parse_dates
from ..lowrank import Array
from ..wording import count, few

KINDS: dict[str, tuple[str, Any]] = {  # in words, and the types of single values
    "boolean": ("true or false", bool | np.bool_),
    "text": ("text", str),
    "duration": ("lengths of time", datetime.timedelta | np.timedelta64),
    "date": ("dates", datetime.date | np.datetime64),
    "clock": ("times of day", datetime.time),
    "number": ("numbers", Real | Decimal),
    "missing": ("only missing values", ()),
}
YEARS = (1, 9999)  # what datetime.date can hold; microseconds count exactly between them
OFFSET = re.compile(r"(UTC)?[+-]\d\d:?\d\d")  # a time zone without a name


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one column.

    Attributes
    ----------
    kind : str
        One of ``KINDS``.
    values : array of shape (n,)
        float64 with NaN for numbers, booleans (0 and 1), lengths of time and times of day (seconds); datetime64[us]
        with NaT for dates (clock time of a named time zone, else UTC); objects, str or None, for text.
    levels : tuple of str, or None
        Categories in the order that the frame gives them; None: in sorted order.
    ordered : bool
        Whether numbers are ordered times, which may count as a curve.
    """

    kind: str
    values: Array
    levels: tuple[str, ...] | None = None
    ordered: bool = False

    @cached_property
    def missing(self) -> Array:
        if self.kind == "text":
            return np.array([value is None for value in self.values], bool)
        return self.values != self.values

    @cached_property
    def known(self) -> Array:
        return self.values[~self.missing]


def name_column(key: str, frame: str) -> str:
    """Return what messages call a column."""
    return f"column {key!r} of {frame}"


def read_columns(frame: Any, name: str) -> dict[str, Column]:
    """Return the columns of a frame by their names; errors call the frame ``name``."""
    return {key: read_column(values, name_column(key, name)) for key, values in raw_columns(frame, name).items()}


def raw_columns(frame: Any, name: str) -> dict[str, Any]:
    """Return the columns as the frame's library has them, by their names as text."""
    opened = _open(frame)
    if isinstance(frame, Mapping):
        pairs = list(frame.items())
    elif _is_records(frame):
        keys = dict.fromkeys(key for line in frame for key in line)
        pairs = [(key, [line.get(key) for line in frame]) for key in keys]
    elif opened is None:
        raise ValueError(
            f"{name} must be a frame (pandas, polars, pyarrow) or a dict of columns, got {type(frame).__name__}"
        )
    elif hasattr(opened, "to_list"):
        pairs = [(opened.name or "feature", opened)]
    elif opened is frame:
        pairs = [(key, None) for key in getattr(frame, "column_names", None) or frame.columns]
    else:
        pairs = list(zip(opened.columns, opened.iter_columns(), strict=True))
    twice = [key for key, times in Counter(str(key) for key, _ in pairs).items() if times > 1]
    if twice:
        raise ValueError(f"{name} has more than one column named {few(twice)}; give each a name of its own")
    return {str(key): values for key, values in pairs}


def needs_encoding(F: Any) -> bool:
    """Tell whether F is a frame that has to be made into numbers: with text, dates or missing values.

    False for arrays, and for frames of numbers (or true and false) without missing values: they serve as they are.
    """
    if not (isinstance(F, Mapping) or _is_records(F) or _open(F) is not None):
        return False
    try:
        columns = read_columns(F, "the frame").values()
    except ValueError:  # whoever uses F says what is wrong with it
        values = np.asarray(F)
        return values.ndim != 2 or values.dtype.kind not in "fiub" or bool(np.isnan(values).any())
    return any(column.kind not in ("number", "boolean") or column.missing.any() for column in columns)


def as_array(F: Any) -> Array:
    """Return the columns of a frame that needs no encoding as one array."""
    columns = [column.values for column in read_columns(F, "the frame").values()]
    return np.column_stack(columns) if columns else np.empty((0, 0))


def index_column(labels: Any, name: str) -> dict[str, Column]:
    """Return labels of M as a frame of one column, for `Encoder`: dates or numbers, or text that reads as either."""
    called = f"the index {name!r}"
    column = read_column(labels, called)
    if column.kind == "text" and (dates := read_dates(column, called)) is not None:
        column = dates
    elif column.kind == "text":
        with suppress(ValueError):
            column = read_column(column.values.astype(np.float64), called)
    if column.kind not in ("missing", "date", "number", "duration"):
        raise ValueError(
            f"'index' makes features from dates or numbers, but the labels of {name!r} are neither "
            f"({few(np.asarray(labels, dtype=object), 3)}); pass a frame of features, or convert the labels, for "
            "example with pandas.to_datetime"
        )
    if not len(column.known):
        raise ValueError(f"'index' makes features from dates or numbers, but all labels of {name!r} are missing")
    return {name: Column(column.kind, column.values, ordered=True)}


def read_dates(given: Column, name: str) -> Column | None:
    """Return a column of text as dates, None where any of it is no ISO date, or an error that begins with `name`."""
    try:
        dates = parse_dates(given.values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return None if dates is None else Column("date", dates)


def read_column(raw: Any, name: str) -> Column:
    """Return one column in our form, or an error that begins with `name`."""
    if isinstance(raw, Column):
        return raw
    series = raw if hasattr(raw, "to_native") else _open(raw)
    column = _from_array(raw, name) if series is None else _from_series(series, name)
    if column.kind == "number" and (infinite := int(np.isinf(column.values).sum())):
        raise ValueError(f"{name} has {count(infinite, 'infinite value')}; replace them, by NaN if unknown")
    return column


def _is_records(F: Any) -> bool:
    return isinstance(F, list) and bool(F) and all(isinstance(line, Mapping) for line in F)


def _open(F: Any) -> Any:
    """Return F as a frame or series of narwhals; None if it is neither, F itself if names of its columns repeat."""
    if F is None or isinstance(F, np.ndarray | list | tuple | str | Mapping) or hasattr(F, "tocsr"):
        return None
    import narwhals.stable.v2 as nw

    try:
        opened = nw.from_native(F, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        return F
    if isinstance(opened, nw.LazyFrame):
        return opened.collect()
    return opened if isinstance(opened, nw.DataFrame | nw.Series) else None


def _from_series(series: Any, name: str) -> Column:
    import narwhals.stable.v2 as nw

    dtype, native = series.dtype, series.to_native()
    if isinstance(dtype, nw.Datetime) and dtype.time_zone is not None:
        if OFFSET.fullmatch(dtype.time_zone):
            series = series.dt.convert_time_zone("UTC")
        series = series.dt.replace_time_zone(None)
    if dtype.is_numeric() and not dtype.is_decimal():
        return Column("number", series.to_numpy().astype(np.float64))
    if isinstance(dtype, nw.Datetime | nw.Date | nw.Duration):
        return _from_array(series.to_numpy(), name)
    values, levels = series.to_list(), list(dtype.categories) if isinstance(dtype, nw.Enum) else []
    if hasattr(getattr(native, "cat", None), "categories"):  # of pandas: by codes, else integers turn into floats
        levels = [str(category) for category in native.cat.categories]
        values = [levels[code] if code >= 0 else None for code in native.cat.codes]
    column = _from_objects(values, name)
    return Column("text", column.values, tuple(dict.fromkeys(levels)) or None) if column.kind == "text" else column


def _from_array(raw: Any, name: str) -> Column:
    if isinstance(raw, list | tuple | np.ma.MaskedArray):
        return _from_objects(raw.tolist() if isinstance(raw, np.ndarray) else list(raw), name)
    values = np.asarray(raw)
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {values.shape}")
    match values.dtype.kind:
        case "f" | "i" | "u":
            return Column("number", values.astype(np.float64))
        case "b":
            return Column("boolean", values.astype(np.float64))
        case "M":
            return Column("date", _check_years(values, name).astype("datetime64[us]"))
        case "m":
            return Column("duration", np.asarray(values / np.timedelta64(1, "s"), np.float64))
    return _from_objects(values.tolist(), name)


def _from_objects(values: list[Any], name: str) -> Column:
    """Return a column of Python objects; its kind is that of their types."""
    missing = [_is_missing(value) for value in values]
    known = [value for value, gap in zip(values, missing, strict=True) if not gap]
    example = {_kind_of(one, name): one for one in dict.fromkeys(map(type, known))}
    if set(example) == {"boolean", "number"}:
        del example["boolean"]
    if len(example) > 1:
        both = sorted(example)
        some = few([next(value for value in known if type(value) is example[kind]) for kind in both])
        raise ValueError(
            f"{name} mixes {' and '.join(KINDS[kind][0] for kind in both)} ({some}); convert it to one type"
        )
    kind = next(iter(example), "missing")
    convert: Any = {"text": str, "date": _clock_time}.get(kind, _number)
    nothing = {"text": None, "date": np.datetime64("NaT", "us")}.get(kind, np.nan)
    dtype = {"text": "object", "date": "datetime64[us]"}.get(kind, "float64")
    column = np.array([nothing if gap else convert(value) for value, gap in zip(values, missing, strict=True)], dtype)
    return Column(kind, _check_years(column, name) if kind == "date" else column)


def _is_missing(value: Any) -> bool:
    if type(value).__name__ in ("NoneType", "NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | np.datetime64 | np.timedelta64 | Decimal) and bool(value != value)


def _kind_of(one: type, name: str) -> str:
    """Return the kind of column that values of a type make, or an error."""
    for kind, (_, types) in KINDS.items():
        if issubclass(one, types):
            return kind
    if hasattr(one, "to_timestamp"):  # a pandas Period
        return "date"
    if issubclass(one, complex | np.complexfloating):
        raise ValueError(f"{name} holds complex numbers; pass real and imaginary parts as two columns")
    if issubclass(one, bytes):
        raise ValueError(f"{name} holds bytes; decode them to text")
    raise ValueError(
        f"{name} holds values of type {one.__name__}, which are not single values; "
        "make columns of numbers, text, true or false, or dates from them, or leave it out"
    )


def _number(value: Any) -> float:
    """Return a number as a float, infinite if it is too large for one; lengths of time and times of day in seconds."""
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(datetime.date.min, value.replace(tzinfo=None)) - datetime.datetime.min
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return float(np.timedelta64(value) / np.timedelta64(1, "s"))
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _clock_time(value: Any) -> np.datetime64:
    if hasattr(value, "to_timestamp"):
        value = value.to_timestamp()
    if isinstance(value, datetime.datetime):
        if isinstance(value.tzinfo, datetime.timezone):  # an offset, not a named zone
            value = value.astimezone(datetime.UTC)
        value = value.replace(tzinfo=None)
    return np.datetime64(value, "us")


def _check_years(dates: Array, name: str) -> Array:
    """Return the dates; in microseconds, years beyond `YEARS` would overflow."""
    years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    outside = dates[~np.isnat(dates) & ((years < YEARS[0]) | (years > YEARS[1]))]
    if len(outside):
        raise ValueError(f"{name} has dates outside the years {YEARS[0]} to {YEARS[1]}: {few(outside)}")
    return dates
