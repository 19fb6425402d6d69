"""Index, Series and DataFrame as parts of a model file, and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .registry import ModelFileError, require

if TYPE_CHECKING:
    from .decoding import Decoding
    from .encoding import Encoding

# Extension types whose values are plain objects; pandas makes an index of them again from those and the name.
PLAIN = re.compile(r"object|str|string(\[(python|pyarrow)\])?|boolean|U?Int(8|16|32|64)|Float(32|64)")
SCALARS = (pd.Timestamp, pd.Timedelta, pd.Period, pd.Interval)


def encode(encoding: Encoding, value: Any, at: str) -> Any:
    if value is pd.NA or value is pd.NaT:
        return {"pandas": "NA" if value is pd.NA else "NaT"}
    if isinstance(value, SCALARS):
        return {"pandas": "element", "of": encoding.node(pd.Index([value]), at)}
    try:
        parts = _frame(value) if type(value) in (pd.DataFrame, pd.Series) else _index(value)
    except NotImplementedError:  # pandas has no index of float16
        parts = None
    if parts is None or not _same_again(parts, value):
        raise ModelFileError(
            f"{at} is a pandas {type(value).__name__} of {getattr(value, 'dtype', 'several types')}, which a model "
            "file cannot hold; convert it before fitting, such as with .astype(str)"
        )
    return {part: encoding.node(one, at) for part, one in parts.items()}


def _frame(value: Any) -> dict[str, Any]:
    if isinstance(value, pd.Series):
        return {"pandas": "Series", "index": value.index, "values": pd.Index(value), "name": value.name}
    data = [pd.Index(value.iloc[:, k]) for k in range(value.shape[1])]
    return {"pandas": "DataFrame", "index": value.index, "columns": value.columns, "data": data}


def _index(value: Any) -> dict[str, Any] | None:
    """What an index consists of, or None of one that is not known here."""
    kind, name = type(value), getattr(value, "name", None)
    if kind is pd.RangeIndex:
        return {"pandas": "RangeIndex", "range": [value.start, value.stop, value.step], "name": name}
    if kind is pd.MultiIndex:
        parts = {"levels": list(value.levels), "codes": [np.asarray(code) for code in value.codes]}
        return {"pandas": "MultiIndex", **parts, "names": list(value.names)}
    if kind in (pd.DatetimeIndex, pd.TimedeltaIndex):
        zone = None if getattr(value, "tz", None) is None else str(value.tz)
        numbers = value.asi8.view(f"{value.dtype.kind}8[{value.unit}]")
        return {"pandas": kind.__name__, "values": numbers, "zone": zone, "freq": value.freqstr, "name": name}
    if kind is pd.PeriodIndex:
        return {"pandas": "PeriodIndex", "values": value.asi8, "freq": value.freqstr, "name": name}
    if kind is pd.CategoricalIndex:
        codes, ordered = np.asarray(value.codes), bool(value.ordered)
        return {"pandas": "CategoricalIndex", "codes": codes, "of": value.categories, "ordered": ordered, "name": name}
    if kind is pd.IntervalIndex:
        ends = {"left": value.left, "right": value.right}
        return {"pandas": "IntervalIndex", **ends, "closed": value.closed, "name": name}
    if kind is not pd.Index:
        return None
    if isinstance(value.dtype, np.dtype) and value.dtype != object:
        return {"pandas": "Index", "values": value.to_numpy(), "dtype": None, "name": name}
    if not PLAIN.fullmatch(str(value.dtype)):
        return None
    return {"pandas": "Index", "values": value.to_numpy(object), "dtype": str(value.dtype), "name": name}


def _same_again(parts: dict[str, Any], value: Any) -> bool:
    try:
        return same(value, _MAKERS[parts["pandas"]](**{part: one for part, one in parts.items() if part != "pandas"}))
    except (ValueError, TypeError):
        return False


def same(one: Any, other: Any) -> bool:
    """Whether two pandas objects are equal in all that is kept of them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, pd.DataFrame):
        columns = range(one.shape[1])
        alike = one.shape == other.shape and same(one.columns, other.columns) and same(one.index, other.index)
        return alike and all(same(one.iloc[:, k].array, other.iloc[:, k].array) for k in columns)
    if isinstance(one, pd.Series):
        return same(one.index, other.index) and same(pd.Index(one), pd.Index(other)) and one.name == other.name
    named = getattr(one, "names", None) == getattr(other, "names", None)
    alike = (
        one.equals(other) and one.dtype == other.dtype and getattr(one, "freq", None) == getattr(other, "freq", None)
    )
    return bool(named and alike and _kinds(one) == _kinds(other))


def _kinds(index: Any) -> Any:
    """The types of objects: 1 and True, or 1 and 1.0, are equal and not the same."""
    if isinstance(index, pd.MultiIndex):
        return [str(level.dtype) for level in index.levels]
    return [type(one) for one in index] if index.dtype == object else None


def index_of(listed: list[Any]) -> Any:
    """An index of which such objects are the elements, or None."""
    try:
        index = pd.Index(listed)
    except (ValueError, TypeError):
        return None
    back = list(index)
    alike = [type(one) for one in back] == [type(one) for one in listed] and index.dtype != object
    return index if alike and all(a is b or a == b for a, b in zip(back, listed, strict=True)) else None


def decode(decoding: Decoding, node: Any, depth: int) -> Any:
    kind = node["pandas"]
    if kind in ("NA", "NaT"):
        return getattr(pd, kind)
    require(isinstance(kind, str) and kind in _MAKERS, "a pandas object is malformed")
    made = _MAKERS[kind](**{part: decoding.value(below, depth) for part, below in node.items() if part != "pandas"})
    if isinstance(made, pd.Index):
        decoding.charge(8 * len(made))
    return made


def _element(of: Any) -> Any:
    require(isinstance(of, pd.Index) and len(of) == 1, "a label is malformed")
    return of[0]


def _range(range: Any, name: Any) -> Any:
    require(isinstance(range, list) and all(type(n) is int for n in range), "a range of labels is malformed")
    start, stop, step = range
    return pd.RangeIndex(start, stop, step, name=name)


def _multi(levels: Any, codes: Any, names: Any) -> Any:
    fine = isinstance(levels, list) and isinstance(codes, list) and all(isinstance(one, pd.Index) for one in levels)
    require(fine, "nested labels are malformed")
    return pd.MultiIndex(levels, [np.asarray(code) for code in codes], names=names, verify_integrity=True)


def _datetimes(values: Any, zone: Any, freq: Any, name: Any) -> Any:
    require(isinstance(values, np.ndarray) and values.dtype.kind == "M", "dates are malformed")
    index = pd.DatetimeIndex(values, name=name)
    if zone is not None:
        index = index.tz_localize("UTC").tz_convert(zone)
    index.freq = freq
    return index


def _timedeltas(values: Any, zone: Any, freq: Any, name: Any) -> Any:
    require(isinstance(values, np.ndarray) and values.dtype.kind == "m" and zone is None, "durations are malformed")
    index = pd.TimedeltaIndex(values, name=name)
    index.freq = freq
    return index


def _periods(values: Any, freq: Any, name: Any) -> Any:
    require(isinstance(values, np.ndarray) and values.dtype == np.int64, "periods are malformed")
    return pd.PeriodIndex.from_ordinals(values, freq=freq, name=name)


def _categories(codes: Any, of: Any, ordered: Any, name: Any) -> Any:
    require(isinstance(of, pd.Index) and isinstance(codes, np.ndarray), "categories are malformed")
    return pd.CategoricalIndex(pd.Categorical.from_codes(codes, categories=of, ordered=ordered), name=name)


def _intervals(left: Any, right: Any, closed: Any, name: Any) -> Any:
    return pd.IntervalIndex.from_arrays(left, right, closed=closed, name=name)


def _plain(values: Any, dtype: Any, name: Any) -> Any:
    require(isinstance(values, np.ndarray) and values.ndim == 1, "labels are malformed")
    require(dtype is None or (isinstance(dtype, str) and PLAIN.fullmatch(dtype) is not None), "labels are malformed")
    return pd.Index(values, dtype=dtype, name=name)


def _series(index: Any, values: Any, name: Any) -> Any:
    require(isinstance(values, pd.Index) and isinstance(index, pd.Index), "a column of features is malformed")
    return pd.Series(values, index=index, name=name)


def _data_frame(index: Any, columns: Any, data: Any) -> Any:
    fine = isinstance(index, pd.Index) and isinstance(columns, pd.Index) and isinstance(data, list)
    require(fine and len(columns) == len(data), "a table of features is malformed")
    require(fine and all(isinstance(one, pd.Index) for one in data), "a table of features is malformed")
    require(all(len(one) == len(index) for one in data), "a table of features is malformed")
    frame = pd.DataFrame({k: pd.Series(one, index=index) for k, one in enumerate(data)}, index=index)
    return frame.set_axis(columns, axis=1)


_MAKERS: dict[str, Any] = {
    "element": _element,
    "Index": _plain,
    "RangeIndex": _range,
    "MultiIndex": _multi,
    "DatetimeIndex": _datetimes,
    "TimedeltaIndex": _timedeltas,
    "PeriodIndex": _periods,
    "CategoricalIndex": _categories,
    "IntervalIndex": _intervals,
    "Series": _series,
    "DataFrame": _data_frame,
}
