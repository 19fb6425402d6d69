"""Python objects as a tree of JSON and a list of arrays."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from ..lowrank import Array
from .registry import OMITTED, ModelFileError, field_types, registry, storable

MANY = 32  # numbers in a list that are better kept as an array
GENERATORS = ("PCG64", "PCG64DXSM")
DATES = {kind.__name__: kind for kind in (datetime.date, datetime.datetime, datetime.time)}


class Encoding:
    """Values on their way into a file: ``node(value)`` is JSON that refers to ``arrays`` and ``objects``."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.objects: list[dict[str, Any]] = []
        self._met: dict[int, tuple[Any, Any]] = {}  # the value too: while it lives, its id is its own

    def node(self, value: Any, at: str) -> Any:
        """``at`` says in messages where the value is."""
        if value is None or type(value) in (bool, int, str):
            return value
        for kind, encode in _ENCODERS:
            if isinstance(value, kind) and (node := encode(self, value, at)) is not None:
                return node
        name = type(value).__name__
        if type(value).__module__.partition(".")[0] == "pandas":
            from . import frames

            return frames.encode(self, value, at)
        if registry().get(name) is type(value) or _is_csr(value):
            return self._object(value, name, at)
        raise ModelFileError(
            f"{at} is a {type(value).__module__}.{name}, which a model file cannot hold: change it to numbers, text, "
            "arrays or pandas objects, or keep the model with pickle or joblib"
        )

    def _object(self, value: Any, name: str, at: str) -> Any:
        if id(value) not in self._met:
            from .labels import native_index

            parts = {field: None if (name, field) in OMITTED else getattr(value, field) for field in field_types(name)}
            if name == "Labels" and (native := native_index(value)) is not None:
                parts["_pandas"] = native
            nodes = {field: self.node(part, f"{at}.{field}") for field, part in parts.items()}
            self.objects.append({"class": name, "fields": nodes})
            self._met[id(value)] = value, {"object": len(self.objects) - 1}
        return self._met[id(value)][1]

    def array(self, value: Array, at: str) -> Any:
        if id(value) not in self._met:
            self._met[id(value)] = value, self._objects(value, at) if value.dtype == object else self._stored(value, at)
        return self._met[id(value)][1]

    def _stored(self, value: Array, at: str) -> Any:
        if type(value) not in (np.ndarray, np.memmap) or not storable(value.dtype):
            raise ModelFileError(
                f"{at} is a {type(value).__name__} of {value.dtype}, which a model file cannot hold: change it to a "
                "plain array of numbers, dates or text, or keep the model with pickle or joblib"
            )
        by_columns = value.ndim > 1 and abs(value.strides[0]) < abs(value.strides[-1])
        tight = value.flags.c_contiguous or value.flags.f_contiguous
        kept = value if tight else np.asarray(value, order="F" if by_columns else "C")
        self.arrays.append(np.asarray(kept))
        return {"array": len(self.arrays) - 1}

    def _objects(self, value: Array, at: str) -> Any:
        listed = value.ravel().tolist()
        if all(type(one) is str for one in listed):
            return {"texts": self._texts(listed, at), "shape": list(value.shape)}
        if listed and all(type(one).__module__.startswith("pandas.") for one in listed):
            from . import frames

            if (index := frames.index_of(listed)) is not None:
                return {"elements": self.node(index, at), "shape": list(value.shape)}
        nodes = [self.node(one, f"{at}[{k}]") for k, one in enumerate(listed)]
        return {"values": nodes, "shape": list(value.shape)}

    def _texts(self, texts: list[str], at: str) -> Any:
        """All texts in one array of bytes, and where each ends: a text of any length costs its own length only."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return [self._stored(array, at)["array"] for array in (np.frombuffer(b"".join(encoded), np.uint8), ends)]


def _is_csr(value: Any) -> bool:
    from scipy.sparse import csr_array

    return type(value) is csr_array


def _number(_: Encoding, value: Any, at: str) -> Any:
    return value if np.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _scalar(_: Encoding, value: Any, at: str) -> Any:
    if not storable(value.dtype):
        raise ModelFileError(f"{at} is a NumPy {value.dtype}, which a model file cannot hold: use float")
    return {"scalar": value.dtype.str, "bytes": value.tobytes().hex()}


def _several(encoding: Encoding, value: Any, at: str) -> Any:
    if type(value) not in (list, tuple):
        return None
    if len(value) >= MANY and (array := _numbers(value)) is not None:
        return {type(value).__name__: encoding.array(array, at)}
    return {type(value).__name__: [encoding.node(one, f"{at}[{k}]") for k, one in enumerate(value)]}


def _numbers(values: Any) -> Array | None:
    """Values that are all int, or all float, as an array that gives them back."""
    (kind, *others) = {type(value) for value in values}
    if others or kind not in (int, float):
        return None
    try:
        return np.array(values, np.int64 if kind is int else np.float64)
    except OverflowError:
        return None


def _dict(encoding: Encoding, value: Any, at: str) -> Any:
    if type(value) is not dict:
        return None
    return {"dict": [[encoding.node(key, at), encoding.node(one, f"{at}[{key!r}]")] for key, one in value.items()]}


def _enum(_: Encoding, value: Any, at: str) -> Any:
    kind = type(value)
    return {"enum": kind.__name__, "name": value.name} if registry().get(kind.__name__) is kind else None


def _date(_: Encoding, value: Any, at: str) -> Any:
    name = type(value).__name__
    if DATES.get(name) is not type(value) or getattr(value, "tzinfo", None) is not None:
        return None
    return {"date": name, "text": value.isoformat()}


def _generator(encoding: Encoding, value: Any, at: str) -> Any:
    state = value.bit_generator.state
    if state["bit_generator"] not in GENERATORS:
        raise ModelFileError(
            f"{at} is a Generator with {state['bit_generator']}, which a model file cannot hold: "
            "use an int, or numpy.random.default_rng(seed)"
        )
    return {"generator": encoding.node(state, at)}


_ENCODERS: tuple[tuple[type, Callable[[Encoding, Any, str], Any]], ...] = (
    (np.generic, _scalar),  # before float and str, of which some are
    (float, _number),
    (list, _several),
    (tuple, _several),
    (dict, _dict),
    (np.ndarray, Encoding.array),
    (Enum, _enum),
    (datetime.date, _date),
    (datetime.time, _date),
    (np.random.Generator, _generator),
)
