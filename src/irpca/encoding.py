"""Values as JSON and arrays, and back: what model files and checkpoints hold. Nothing in them is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from .lowrank import Array

# By its name: the class of a value, or an attribute by which it is known; what it is made of, None where it cannot be
# kept; and how it is made of that again.
Kinds = Mapping[str, tuple[type | str, Callable[[Any], Any], Callable[[Any], Any]]]

NUMBERS = "biufMm"  # kinds of arrays, beside those of objects


def encode(value: Any, kinds: Kinds, keep: Callable[[Array], Any], at: str = "") -> Any:
    """A value as JSON, in which what ``keep`` returns stands for an array; ``at`` says in errors where the value is."""
    into = partial(encode, kinds=kinds, keep=keep)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [into(one, at=f"{at}[{k}]") for k, one in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": into(list(value), at=at)}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: into(one, at=f"{at}.{key}".strip(".")) for key, one in value.items()}}
    if type(value) is dict:
        return {"pairs": into([list(pair) for pair in value.items()], at=at)}
    if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
        return {"scalar": keep(np.asarray(value))}
    if type(value) in (np.ndarray, np.memmap) and value.dtype.kind in NUMBERS:
        return {"array": keep(value)}
    if type(value) is np.ndarray and value.dtype == object:
        return {"objects": [list(value.shape), into(value.ravel().tolist(), at=at)]}
    for name, (known, take, _) in kinds.items():
        is_one = hasattr(value, known) if isinstance(known, str) else type(value) is known
        if is_one and (parts := take(value)) is not None:
            return {name: into(parts, at=at)}
    what = f"{type(value).__module__}.{type(value).__name__}" + (
        f" of {value.dtype}" if hasattr(value, "dtype") else ""
    )
    raise TypeError(f"a {what} at {at}" if at else f"a {what}")


def decode(node: Any, kinds: Kinds, array: Callable[[Any], Array]) -> Any:
    """The value that was encoded; ``array`` finds what was kept."""
    into = partial(decode, kinds=kinds, array=array)
    if isinstance(node, list):
        return list(map(into, node))
    if not isinstance(node, dict):
        return node
    ((name, held),) = node.items()
    match name:
        case "tuple":
            return tuple(map(into, held))
        case "dict":
            return {key: into(one) for key, one in held.items()}
        case "pairs":
            return dict(map(into, held))
        case "array":
            return array(held)
        case "scalar":
            return array(held)[()]
        case "objects":
            return np.fromiter(into(held[1]), object, len(held[1])).reshape(held[0])
    if name not in kinds:
        raise ValueError(f"it holds a value of an unknown kind, {name[:40]!r}")
    return kinds[name][2](into(held))


def kinds_of(*classes: Any) -> Kinds:
    """Data classes as kinds. No class is called: a file may only fill the attributes that it has."""
    return {cls.__name__: (cls, _take_fields, partial(_fill, cls)) for cls in classes}


def _take_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _fill(cls: Any, parts: dict[str, Any]) -> Any:
    if other := set(parts) ^ {field.name for field in fields(cls)}:
        raise AttributeError(f"{cls.__name__} has other fields here ({', '.join(sorted(other))})")
    made = object.__new__(cls)
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    return made
