"""Columns of features, from whichever library the frame is, in one form."""

from __future__ import annotations

import datetime
import decimal
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cached import cached_property
from ..dates import parse_dates
from ..lowrank import Array

KINDS = {
    "number": "numbers",
    "duration": "lengths of time",
    "boolean": "true or false",
    "text": "text",
    "date": "dates",
    "clock": "times of day",
    "missing": "only missing values",
}
YEARS = (1, 9999)  # what datetime.date can hold; microseconds count exactly between them
OFFSET = re.compile(r"(UTC)?[+-]\d\d:?\d\d")  # a time zone without a name


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one column; the type of the array follows from the kind.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    values : array of shape (n,)
        float64 with NaN for numbers, booleans (0 and 1), lengths of time and times of day (seconds); datetime64[us]
        with NaT for dates (clock time of a named time zone, else UTC); objects, str or None, for text.
    levels : tuple of str, or None
        Categories in the order that the frame gives them; None: in sorted order.
    """

    kind: str
    values: Array
    levels: tuple[str, ...] | None = None

    @cached_property
    def missing(self) -> Array:
        if self.kind == "text":
            return np.array([value is None for value in self.values], dtype=bool)
        return np.isnat(self.values) if self.kind == "date" else np.isnan(self.values)

    @cached_property
    def known(self) -> Array:
        return self.values[~self.missing]


def is_frame(F: Any) -> bool:
    """Whether F has named columns: a frame or series of pandas, polars or pyarrow, a dict, or a list of dicts."""
    return isinstance(F, Mapping) or _is_records(F) or _opened(F) is not None


def raw_columns(frame: Any, name: str) -> dict[str, Any]:
    """The columns as the frame's library has them, by name."""
    if isinstance(frame, Mapping):
        pairs = list(frame.items())
    elif _is_records(frame):
        keys = dict.fromkeys(key for record in frame for key in record)
        pairs = [(key, [record.get(key) for record in frame]) for key in keys]
    else:
        pairs = _pairs(frame, name)
    _check_unique([str(key) for key, _ in pairs], name)
    return {str(key): values for key, values in pairs}


def column(raw: Any, name: str) -> Column:
    """One column in our form, or an error that begins with `name`."""
    made = _from_series(raw, name) if _is_series(raw) else _from_array(raw, name)
    if made.kind == "number" and np.isinf(made.values).any():
        count = int(np.isinf(made.values).sum())
        raise ValueError(f"{name} has {count} infinite value{'s' * (count > 1)}; replace them, by NaN if unknown")
    if made.kind == "date":
        _check_years(made.known, name)
    return made


def read_dates(given: Column, name: str) -> Column | None:
    """Return a column of text as dates, None where any of it is no ISO date, or an error that begins with `name`."""
    try:
        dates = parse_dates(given.values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return None if dates is None else Column("date", dates)


def listed(items: Iterable[Any], most: int = 5) -> str:
    """Items in quotes, the first of them where there are many."""
    items = list(items)
    shown = ", ".join(repr(str(item)) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def _is_records(F: Any) -> bool:
    return isinstance(F, list) and bool(F) and all(isinstance(record, Mapping) for record in F)


def _opened(F: Any) -> Any:
    """F in narwhals' hands; None if it is no frame."""
    if F is None or isinstance(F, np.ndarray | list | tuple | str | Mapping) or hasattr(F, "tocsr"):
        return None
    import narwhals.stable.v2 as nw

    try:
        frame = nw.from_native(F, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError:  # a frame all the same; whoever reads it says what is wrong
        return F
    if isinstance(frame, nw.LazyFrame):
        return frame.collect()
    return frame if isinstance(frame, nw.DataFrame | nw.Series) else None


def _pairs(frame: Any, name: str) -> list[tuple[Any, Any]]:
    opened = _opened(frame)
    if opened is None:
        raise ValueError(
            f"{name} must be a frame (pandas, polars, pyarrow) or a dict of columns, got {type(frame).__name__}"
        )
    if _is_series(opened):
        return [(opened.name or "feature", opened)]
    if opened is frame:  # it did not open
        _check_unique([str(key) for key in getattr(frame, "column_names", None) or frame.columns], name)
    return list(zip(opened.columns, opened.iter_columns(), strict=True))


def _check_unique(names: list[str], name: str) -> None:
    twice = [key for key, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{name} has more than one column named {listed(twice)}; give each a name of its own")


def _is_series(raw: Any) -> bool:
    return hasattr(raw, "to_native") and hasattr(raw, "to_list")


def _from_series(series: Any, name: str) -> Column:
    import narwhals.stable.v2 as nw

    dtype = series.dtype
    if isinstance(dtype, nw.Datetime) and dtype.time_zone is not None:
        if OFFSET.fullmatch(dtype.time_zone):
            series = series.dt.convert_time_zone("UTC")
        series = series.dt.replace_time_zone(None)
    if dtype.is_numeric() and not dtype.is_decimal():
        return Column("number", series.to_numpy().astype(np.float64))
    if isinstance(dtype, nw.Datetime | nw.Date | nw.Duration):
        return _from_array(series.to_numpy(), name)
    native = series.to_native()
    if hasattr(getattr(native, "cat", None), "categories"):
        return _from_pandas_categories(native.cat)
    made = _from_objects(series.to_list(), name)
    levels = tuple(dtype.categories) if isinstance(dtype, nw.Enum) else None
    return Column(made.kind, made.values, levels) if made.kind == "text" else made


def _from_pandas_categories(cat: Any) -> Column:
    """By codes: among missing values, categories that are integers would turn into floats."""
    levels = [str(category) for category in cat.categories]
    values = np.array([*levels, None], dtype=object)[cat.codes.to_numpy()]  # -1: missing
    return Column("text" if (cat.codes >= 0).any() else "missing", _or_nan(values), tuple(dict.fromkeys(levels)))


def _or_nan(values: Array) -> Array:
    return values if any(value is not None for value in values) else np.full(len(values), np.nan)


def _from_array(raw: Any, name: str) -> Column:
    if isinstance(raw, np.ma.MaskedArray):
        raw = raw.tolist()
    opened = _opened(raw)
    if opened is not None and _is_series(opened):
        return _from_series(opened, name)
    if isinstance(raw, list | tuple):
        return _from_objects(list(raw), name)
    values = np.asarray(raw)
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {values.shape}")
    match values.dtype.kind:
        case "f" | "i" | "u":
            return Column("number", values.astype(np.float64))
        case "b":
            return Column("boolean", values.astype(np.float64))
        case "M":
            _check_years(values[~np.isnat(values)], name)  # before microseconds overflow
            return Column("date", values.astype("datetime64[us]"))
        case "m":
            return Column("duration", np.asarray(values / np.timedelta64(1, "s"), np.float64))
    return _from_objects(values.tolist(), name)


def _from_objects(values: list[Any], name: str) -> Column:
    """A column of Python objects; its kind is that of their types."""
    gone = _missing_types(set(map(type, values)))
    known = [value for value in values if not (type(value) in gone and _is_missing(value))]
    kinds = {_kind_of(kind, name) for kind in dict.fromkeys(map(type, known))}
    if kinds == {"boolean", "number"}:
        kinds = {"number"}
    if len(kinds) > 1:
        some = [next(value for value in known if _kind_of(type(value), name) == kind) for kind in sorted(kinds)]
        raise ValueError(
            f"{name} mixes {' and '.join(KINDS[kind] for kind in sorted(kinds))} ({', '.join(map(repr, some))}); "
            "convert it to one type"
        )
    kind = kinds.pop() if kinds else "missing"
    mask = np.array([type(value) in gone and _is_missing(value) for value in values], dtype=bool)
    return Column(kind, _filled(_converted(known, kind), mask, kind))


def _filled(known: Array, missing: Array, kind: str) -> Array:
    nothing: Any = {"text": None, "date": np.datetime64("NaT", "us")}.get(kind, np.nan)
    values = np.full(len(missing), nothing, dtype=known.dtype)
    values[~missing] = known
    return values


def _missing_types(types: set[type]) -> set[type]:
    """Those whose values may stand for a missing one."""
    names = ("NoneType", "NAType", "NaTType")
    return {
        kind
        for kind in types
        if kind.__name__ in names
        or issubclass(kind, float | np.floating | np.datetime64 | np.timedelta64 | decimal.Decimal)
    }


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _kind_of(kind: type, name: str) -> str:
    """The kind of column that values of a type make, or an error."""
    if issubclass(kind, bool | np.bool_):
        return "boolean"
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, datetime.timedelta | np.timedelta64):
        return "duration"
    if issubclass(kind, datetime.date | np.datetime64) or hasattr(kind, "to_timestamp"):  # of a pandas Period
        return "date"
    if issubclass(kind, datetime.time):
        return "clock"
    if issubclass(kind, int | float | np.integer | np.floating | decimal.Decimal) or hasattr(kind, "as_integer_ratio"):
        return "number"
    if issubclass(kind, complex | np.complexfloating):
        raise ValueError(f"{name} holds complex numbers; pass real and imaginary parts as two columns")
    if issubclass(kind, bytes):
        raise ValueError(f"{name} holds bytes; decode them to text")
    raise ValueError(
        f"{name} holds values of type {kind.__name__}, which are not single values; "
        "make columns of numbers, text, true or false, or dates from them, or leave it out"
    )


def _converted(known: list[Any], kind: str) -> Array:
    match kind:
        case "text":
            return np.array([str(value) for value in known], dtype=object)
        case "date":
            return np.array([_clock_time(value) for value in known], dtype="datetime64[us]")
        case "clock":
            return np.array([_since_midnight(value) for value in known], dtype=np.float64)
    return np.array([_number(value) for value in known], dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return float(np.timedelta64(value) / np.timedelta64(1, "s"))
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of floats
        return np.inf


def _clock_time(value: Any) -> np.datetime64:
    if hasattr(value, "to_timestamp"):
        value = value.to_timestamp()
    if isinstance(value, datetime.datetime):
        if isinstance(value.tzinfo, datetime.timezone):  # an offset, not a named zone
            value = value.astimezone(datetime.UTC)
        value = value.replace(tzinfo=None)
    return np.datetime64(value, "us")


def _since_midnight(time: datetime.time) -> float:
    return time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6


def _check_years(dates: Array, name: str) -> None:
    years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    outside = dates[(years < YEARS[0]) | (years > YEARS[1])]
    if len(outside):
        raise ValueError(f"{name} has dates outside the years {YEARS[0]} to {YEARS[1]}: {listed(outside)}")
