"""What a question looks like: enough of it to see whether a recorded answer belongs to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any

import numpy as np

from ..lowrank import Array

CLOSE = 1e-6  # relative to the size of what is compared: far above rounding, far below what a solver does in a step


def digest(*parts: bytes | memoryview) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(part)
    return total.hexdigest()


def digest_of(array: Array) -> str:
    """Of the type, shape and numbers of an array, wherever they lie in memory."""
    tight = np.ascontiguousarray(array)
    return digest(f"{array.dtype.str}{array.shape}".encode(), tight.reshape(-1).view(np.uint8).data)


@dataclass(frozen=True)
class Question:
    """The name of a question and a few numbers about its arguments.

    Attributes
    ----------
    name : str
    form : str
        A digest of all that is not subject to rounding: shapes, integers, indices, seeds.
    numbers : list of [float, float]
        Of every array of real numbers its norm and a projection, and every real number; with the size by which a
        difference is judged.
    bits : str
        A digest of everything, to the bit.
    """

    name: str
    form: str
    numbers: list[list[float]]
    bits: str

    def same(self, other: Question) -> bool:
        """Whether they ask the same, up to rounding."""
        alike = (self.name, self.form, len(self.numbers)) == (other.name, other.form, len(other.numbers))
        return alike and all(map(_close, self.numbers, other.numbers))


def recorded(fields: Any) -> Question:
    """A question from a file; TypeError if that is none."""
    asked = Question(**fields)
    texts, numbers = (asked.name, asked.form, asked.bits), asked.numbers
    if not all(isinstance(text, str) for text in texts) or not isinstance(numbers, list):
        raise TypeError("a question is not made of texts and numbers")
    for pair in numbers:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, int | float) for x in pair)):
            raise TypeError(f"a question has {pair!r} in the place of two numbers")
    return asked


def _close(mine: list[float], other: list[float]) -> bool:
    (a, size), (b, other_size) = mine, other
    return a == b or (isfinite(a) and isfinite(b) and abs(a - b) <= CLOSE * max(size, other_size))


def question(name: str, arguments: Any, placed: dict[int, tuple[Any, Array]]) -> Question:
    """``placed``: blocks that are known here by a handle only, by the id of that."""
    seen = _Seen(placed)
    seen.add(arguments)
    return Question(name, digest(*seen.form), seen.numbers, digest(*seen.form, *seen.bits))


class _Seen:
    def __init__(self, placed: dict[int, tuple[Any, Array]]) -> None:
        self.form: list[bytes] = []
        self.bits: list[bytes] = []
        self.numbers: list[list[float]] = []
        self.placed = placed

    def add(self, value: Any) -> None:
        if id(value) in self.placed:
            value = self.placed[id(value)][1]
        if isinstance(value, float | np.floating):
            self._number(float(value))
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, np.random.SeedSequence):
            self._form(f"seed {value.generate_state(4, np.uint64).tolist()}")
        elif isinstance(value, tuple | list):
            self._form(f"{len(value)} values")
            for one in value:
                self.add(one)
        elif isinstance(value, dict):
            self.add([part for item in value.items() for part in item])
        elif is_dataclass(value):
            self._form(type(value).__name__)
            for field in fields(value):
                self.add(getattr(value, field.name))
        elif value is None or isinstance(value, bool | int | str | np.integer | np.bool_):
            self._form(repr(value.item() if isinstance(value, np.generic) else value))
        else:
            raise TypeError(f"a question with a {type(value).__module__}.{type(value).__name__} cannot be recognised")

    def _form(self, text: str) -> None:
        self.form.append(f"{text};".encode())

    def _number(self, x: float) -> None:
        self.numbers.append([x, abs(x)])
        self.bits.append(x.hex().encode())

    def _array(self, array: Array) -> None:
        exact = digest_of(array)
        with np.errstate(over="ignore", invalid="ignore"):
            size = float(np.linalg.norm(array.astype(float, copy=False))) if array.dtype.kind == "f" else np.inf
        if not isfinite(size):
            self._form(exact)
            return
        self._form(f"{array.dtype.str}{array.shape}")
        self.bits.append(exact.encode())
        self.numbers += [[size, size], [_projection(array), size]]


def _projection(array: Array) -> float:
    """On waves of no simple period: unlike the norm, it changes with the order and the signs of the numbers."""
    left: Any = array.astype(float, copy=False)
    while left.ndim:
        left = np.cos(1.0 + np.arange(len(left))) @ left
    return float(left)
