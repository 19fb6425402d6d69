"""A tree of JSON and a list of arrays as Python objects: whatever is not as it should be is refused.

A file names classes, but never makes one be imported or called: objects are filled field by field.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from ..lowrank import Array
from .encoding import DATES, GENERATORS
from .registry import (
    OMITTED,
    ModelFileError,
    check_names,
    conforms,
    field_types,
    registry,
    require,
    storable,
)

DTYPE = r"[<>|][biufSUMm][0-9]{1,9}(?:\[[0-9]{0,9}[a-zA-Z]{1,2}\])?"  # how NumPy writes the types that are stored
DEEPEST = 50  # lists within lists
BUDGET, LEAST_BUDGET = 16, 1 << 20  # bytes of labels and lists for each byte of arrays in the file, and at least


class Decoding:
    """Values on their way out of a file. Whatever is not as :class:`Encoding` writes it is refused."""

    def __init__(self, arrays: list[Array], objects: Any) -> None:
        self.arrays = arrays
        self.objects: list[Any] = []
        self._left = LEAST_BUDGET + BUDGET * sum(array.nbytes for array in arrays)
        require(isinstance(objects, list), "the list of objects is missing")
        for described in objects:
            self.objects.append(self._object(described))

    def value(self, node: Any, depth: int = 0) -> Any:
        if not isinstance(node, dict):
            require(node is None or isinstance(node, bool | int | float | str), "a list stands where a value should")
            return node
        require(depth < DEEPEST, f"values are nested more than {DEEPEST} deep")
        kind = next(iter(node), "")
        require(kind in _DECODERS, f"it holds values of an unknown kind, {kind[:40]!r}")
        others, decode = _DECODERS[kind]
        require(others is None or list(node) == [kind, *others], f"a value of the kind {kind!r} is malformed")
        return decode(self, node, depth + 1)

    def _object(self, described: Any) -> Any:
        require(isinstance(described, dict) and list(described) == ["class", "fields"], "an object is malformed")
        name, nodes = described["class"], described["fields"]
        known = isinstance(name, str) and (name in registry() or name == "csr_array")
        require(known and isinstance(nodes, dict), f"it names a class that is not known here, {str(name)[:40]!r}")
        types = field_types(name)
        values = {field: self.value(node) for field, node in nodes.items()}
        native = values.pop("_pandas", None) if name == "Labels" else None
        check_names(name, values, types)
        for field, value in values.items():
            fits = value is None if (name, field) in OMITTED else conforms(value, types[field])
            require(fits, f"{name}.{field} is a {type(value).__name__}, and should not be")
        if name == "csr_array":
            return _csr(**values)
        made: Any = object.__new__(registry()[name])
        for field, value in {**values, **({} if native is None else {"_pandas": native})}.items():
            object.__setattr__(made, field, value)
        return made

    def charge(self, size: int) -> None:
        """Account for memory that a few letters of the file may ask for many times."""
        self._left -= size
        require(self._left >= 0, "it describes far more than it holds")

    def at(self, index: Any, of: list[Any]) -> Any:
        require(type(index) is int and 0 <= index < len(of), "it refers to an array or object that is not there")
        return of[index]


def _csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array

    require(data.dtype.kind in "biuf" and data.ndim == 1, "the values of a sparse array are malformed")
    for index in (indices, indptr):
        require(index.dtype in (np.int32, np.int64) and index.ndim == 1, "the indices of a sparse array are malformed")
    n1, n2 = map(int, shape)
    require(n1 >= 0 and n2 >= 0 and len(indptr) == n1 + 1, "a sparse array is malformed")
    require(indptr[0] == 0 and indptr[-1] == len(data) == len(indices), "a sparse array is malformed")
    require(bool((np.diff(indptr) >= 0).all()), "a sparse array is malformed")
    require(not len(indices) or (indices.min() >= 0 and indices.max() < n2), "a sparse array reaches beyond its shape")
    made = csr_array((n1, n2), dtype=data.dtype)
    made.data, made.indices, made.indptr = data, indices, indptr  # as they are: the constructor may narrow indices
    return made


def _float(_: Decoding, node: Any, depth: int) -> float:
    packed = bytes.fromhex(node["float"])
    require(len(packed) == 8, "a number is malformed")
    return struct.unpack(">d", packed)[0]


def _numpy_scalar(_: Decoding, node: Any, depth: int) -> Any:
    # NumPy compiles what it does not know, to see whether it is a number of fields.
    require(re.fullmatch(DTYPE, str(node["scalar"])) is not None, "a number is malformed")
    dtype, packed = np.dtype(node["scalar"]), bytes.fromhex(node["bytes"])
    require(storable(dtype) and len(packed) == dtype.itemsize, "a number is malformed")
    array = np.frombuffer(packed, dtype)
    check_bits(array)
    return array[0]


def check_bits(array: Array) -> None:
    """Refuse bits that no array of this type has: NumPy takes what it is given."""
    if array.dtype.kind == "b":
        require(not len(array) or array.view(np.uint8).max() <= 1, "an array of booleans holds other values")
    if array.dtype.kind == "U":
        points = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        require(not len(points) or int(points.max()) <= 0x10FFFF, "an array of text holds what is no text")


def _list(decoding: Decoding, node: Any, depth: int) -> list[Any]:
    (items,) = node.values()
    if isinstance(items, dict):
        numbers = decoding.value(items, depth)
        fine = isinstance(numbers, np.ndarray) and numbers.ndim == 1 and numbers.dtype in (np.int64, np.float64)
        require(fine, "a list is malformed")
        decoding.charge(numbers.nbytes)
        return list(numbers.tolist())
    require(isinstance(items, list), "a list is malformed")
    return [decoding.value(item, depth) for item in items]


def _tuple(decoding: Decoding, node: Any, depth: int) -> tuple[Any, ...]:
    return tuple(_list(decoding, node, depth))


def _mapping(decoding: Decoding, node: Any, depth: int) -> dict[Any, Any]:
    pairs = node["dict"]
    require(isinstance(pairs, list), "a dict is malformed")
    require(all(isinstance(pair, list) and len(pair) == 2 for pair in pairs), "a dict is malformed")
    return {decoding.value(key, depth): decoding.value(one, depth) for key, one in pairs}


def _member(_: Decoding, node: Any, depth: int) -> Any:
    cls = registry().get(str(node["enum"]))
    require(cls is not None and issubclass(cls, Enum) and node["name"] in cls.__members__, "a status is malformed")
    return cls[node["name"]]  # type: ignore[index]


def _day(_: Decoding, node: Any, depth: int) -> Any:
    require(node["date"] in DATES and isinstance(node["text"], str), "a date is malformed")
    return DATES[node["date"]].fromisoformat(node["text"])


def _made_generator(decoding: Decoding, node: Any, depth: int) -> np.random.Generator:
    state = decoding.value(node["generator"], depth)
    require(conforms(state, dict[str, Any]) and state.get("bit_generator") in GENERATORS, "random_state is malformed")
    inner = state.get("state")
    fine = conforms(inner, dict[str, int]) and set(inner) == {"state", "inc"}
    require(fine and all(0 <= one < 1 << 128 for one in inner.values()), "random_state is malformed")
    rest = {"has_uint32": 2, "uinteger": 1 << 32}
    fine = set(state) == {"bit_generator", "state", *rest} and all(type(state[one]) is int for one in rest)
    require(fine and all(0 <= state[one] < most for one, most in rest.items()), "random_state is malformed")
    bits = getattr(np.random, GENERATORS[GENERATORS.index(state["bit_generator"])])(0)
    bits.state = state
    return np.random.Generator(bits)


def _object_array(listed: list[Any], shape: Any) -> Array:
    require(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape), "an array is malformed")
    array = np.empty(len(listed), object)
    array[:] = listed
    require(int(np.prod(shape, dtype=object)) == len(listed), "an array is malformed")
    return array.reshape(shape)


def _values(decoding: Decoding, node: Any, depth: int) -> Array:
    return _object_array(_list(decoding, {"list": node["values"]}, depth), node["shape"])


def _text_array(decoding: Decoding, node: Any, depth: int) -> Array:
    require(isinstance(node["texts"], list) and len(node["texts"]) == 2, "a list of texts is malformed")
    letters, ends = (decoding.at(index, decoding.arrays) for index in node["texts"])
    require(letters.dtype == np.uint8 and ends.dtype == np.int64, "a list of texts is malformed")
    require(letters.ndim == ends.ndim == 1, "a list of texts is malformed")
    starts = np.r_[0, ends[:-1]][: len(ends)]
    decoding.charge(letters.nbytes + ends.nbytes)
    whole = letters.tobytes()
    require(bool((ends >= starts).all()) and (ends[-1:].sum() == len(whole)), "a list of texts is malformed")
    texts = [whole[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends, strict=True)]
    return _object_array(texts, node["shape"])


def _elements(decoding: Decoding, node: Any, depth: int) -> Array:
    index = decoding.value(node["elements"], depth)
    require(type(index).__module__.startswith("pandas."), "an array is malformed")
    decoding.charge(8 * len(index))
    return _object_array(list(index), node["shape"])


def _pandas(decoding: Decoding, node: Any, depth: int) -> Any:
    try:
        from . import frames
    except ImportError as error:
        advice = 'it holds labels or features of pandas, which is not installed here: pip install "irpca[pandas]"'
        raise ModelFileError(advice) from error
    return frames.decode(decoding, node, depth)


_DECODERS: dict[str, tuple[tuple[str, ...] | None, Callable[[Decoding, Any, int], Any]]] = {
    "array": ((), lambda decoding, node, depth: decoding.at(node["array"], decoding.arrays)),
    "object": ((), lambda decoding, node, depth: decoding.at(node["object"], decoding.objects)),
    "float": ((), _float),
    "scalar": (("bytes",), _numpy_scalar),
    "list": ((), _list),
    "tuple": ((), _tuple),
    "dict": ((), _mapping),
    "enum": (("name",), _member),
    "date": (("text",), _day),
    "generator": ((), _made_generator),
    "texts": (("shape",), _text_array),
    "values": (("shape",), _values),
    "elements": (("shape",), _elements),
    "pandas": (None, _pandas),
}
