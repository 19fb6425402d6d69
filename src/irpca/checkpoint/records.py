"""Answers as bytes and back: JSON for the structure, then the arrays as they lie in memory. Nothing is executed."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..engines.base import Lines, Sums, Trim
from ..lowrank import Array

CLASSES: dict[str, type] = {cls.__name__: cls for cls in (Lines, Sums, Trim)}
KINDS = "biuf"  # of arrays
START = 4  # bytes that hold the length of the JSON


class NotStorable(TypeError):
    """A value is of a kind that a record cannot hold."""


class Malformed(ValueError):
    """Bytes are not as :func:`encoded` writes them."""


def encoded(value: Any) -> bytes:
    """A value made of numbers, text, arrays, tuples, lists, dicts and the dataclasses of an engine's answers."""
    return b"".join(parts(value))


def parts(value: Any) -> list[bytes | memoryview]:
    """The same in parts, to be written one after the other: those of arrays are no copies."""
    arrays: list[Array] = []
    text = json.dumps(_node(value, arrays)).encode()
    return [len(text).to_bytes(START, "little"), text, *map(_bytes, arrays)]


def settled(value: Any) -> Any:
    """A value as :func:`decoded` would give it; an array that is so already is not copied."""
    if isinstance(value, np.ndarray):
        return _laid(value) if value.dtype.kind in KINDS else value
    if type(value) in (tuple, list):
        return type(value)(settled(one) for one in value)
    if type(value) is dict:
        return {key: settled(one) for key, one in value.items()}
    if is_dataclass(value) and CLASSES.get(type(value).__name__) is type(value):
        return CLASSES[type(value).__name__](*(settled(getattr(value, field.name)) for field in fields(value)))
    return value


def decoded(data: bytes) -> Any:
    """The value; arrays are copies that lie in memory as the encoded ones did."""
    try:
        end = START + int.from_bytes(data[:START], "little")
        arrays = memoryview(data)[end:]
        value, used = _value(json.loads(data[START:end]), arrays, 0)
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError) as error:
        raise Malformed(f"a record is malformed ({error})") from error
    if used != len(arrays):
        raise Malformed("a record is longer than what it describes")
    return value


def _node(value: Any, arrays: list[Array]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _array(value, arrays)
    if type(value) in (tuple, list):
        return {type(value).__name__: [_node(one, arrays) for one in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": [[key, _node(one, arrays)] for key, one in value.items()]}
    name = type(value).__name__
    if is_dataclass(value) and CLASSES.get(name) is type(value):
        return {"class": name, "fields": [_node(getattr(value, field.name), arrays) for field in fields(value)]}
    raise NotStorable(f"a {type(value).__module__}.{name}")


def _array(value: Any, arrays: list[Array]) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in KINDS:
        raise NotStorable(f"an array of {array.dtype}")
    if not array.flags.forc:
        array = _laid(array)
    arrays.append(array)
    order = "C" if array.flags.c_contiguous else "F"
    return {"array": array.dtype.str, "shape": array.shape, "order": order, "single": isinstance(value, np.generic)}


def _laid(array: Array) -> Array:
    """The array itself if it lies alone and without gaps in memory, along rows or along columns; else such a copy."""
    flags = array.flags
    if type(array) is np.ndarray and flags.forc and flags.owndata and flags.writeable:
        return array
    copy = np.array(array, order="K")
    return copy if copy.flags.forc else np.array(array, order="C")


def _bytes(array: Array) -> memoryview:
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    return flat.view(np.uint8).data


def _value(node: Any, data: memoryview, at: int) -> tuple[Any, int]:
    """The value of a node whose arrays begin at a place of the data, and where they end."""
    if not isinstance(node, dict):
        if isinstance(node, list):
            raise Malformed("a list stands where a value should")
        return node, at
    kind = next(iter(node))
    if kind == "array":
        return _read_array(node, data, at)
    items = node["fields"] if kind == "class" else node[kind]
    if kind == "dict":
        keys, items = [key for key, _ in items], [one for _, one in items]
    values = []
    for item in items:
        one, at = _value(item, data, at)
        values.append(one)
    if kind == "class":
        return CLASSES[node["class"]](*values), at
    if kind == "dict":
        return dict(zip(keys, values, strict=True)), at
    return {"tuple": tuple, "list": list}[kind](values), at


def _read_array(node: Any, data: memoryview, at: int) -> tuple[Any, int]:
    dtype, shape = np.dtype(node["array"]), tuple(node["shape"])
    if dtype.kind not in KINDS or not all(type(n) is int and n >= 0 for n in shape) or node["order"] not in "CF":
        raise Malformed("an array is malformed")
    count = int(np.prod(shape, dtype=object))
    end = at + count * dtype.itemsize
    if end > len(data):
        raise Malformed("an array is cut off")
    array = np.frombuffer(data[at:end], dtype).copy().reshape(shape, order=node["order"])
    return (array[()] if node["single"] else array), end
