"""Arguments of the public functions: what is not what it should be is refused by name, before anything is done."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts the name of an argument before what another library says about its value, if that does not have it.

    Examples
    --------
    >>> with naming("F1"):
    ...     np.array([[1], [2, 3]], dtype=float)
    Traceback (most recent call last):
    ValueError: F1: setting an array element with a sequence...
    """
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        if re.search(rf"\b{re.escape(name)}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}") from error


_LIMITS = {  # what a number may have to be
    "above": ("larger than", operator.gt),
    "least": ("at least", operator.ge),
    "below": ("below", operator.lt),
    "most": ("at most", operator.le),
}


def is_number(value: Any) -> bool:
    """Tell whether a value is a real number of Python or NumPy; True and False are none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, by its type: 2.0 is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def reads_as_number(value: Any) -> bool:
    """Tell whether float() takes a value, text among them."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def number(value: Any, name: str, **limits: float) -> Any:
    """Return the value, if it is a real number; with limits (above, least, below, most), a finite one within them.

    Examples
    --------
    >>> number(2, "decay", above=0, below=1)
    Traceback (most recent call last):
    ValueError: decay must be a number, positive and below 1; got 2
    """
    _check_limits(value, name, "a number", is_number(value), limits)
    return value


def whole(value: Any, name: str, **limits: float) -> int:
    """Return the value as an int, if it is a whole number within the limits."""
    _check_limits(value, name, "a whole number", is_whole(value), limits)
    return int(value)


def _check_limits(value: Any, name: str, kind: str, fits: bool, limits: dict[str, float]) -> None:
    fits = fits and (not limits or abs(value) != math.inf)
    if fits and all(_LIMITS[key][1](value, limit) for key, limit in limits.items()):
        return
    words = [f"{_LIMITS[key][0]} {limit:g}".replace("larger than 0", "positive") for key, limit in limits.items()]
    if words and kind == "a number" and not limits.keys() & {"below", "most"}:
        words.append("finite")
    raise ValueError(f"{name} must be {', '.join([kind, ' and '.join(words)]) if words else kind}; got {shown(value)}")


def whole_or_auto(value: Any, name: str) -> int | str:
    """The value as an int, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return value
    if not is_whole(value):
        raise ValueError(f"{name} must be an integer or 'auto', got {shown(value)}")
    return int(value)


def flag(value: Any, name: str) -> bool:
    """The value as True or False; 1 and 0 will do, and None is False."""
    if value is None or isinstance(value, bool | np.bool_ | int | np.integer):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {shown(value)}")


def text(value: Any, name: str) -> str:
    """The value, if it is text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {shown(value)}")
    return value


def path(value: Any, name: str) -> str:
    """The path as text, if it is one; whether there is anything is for others to see."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} must be a path, got {shown(value)}")
    found = os.fspath(value)
    if not isinstance(found, str) or not found or "\0" in found:
        raise ValueError(f"{name} must be a path, got {found!r}")
    return found


def generator(random_state: Any) -> np.random.Generator:
    """Numbers by chance, from what users give for them; a Generator is used as it stands."""
    with naming("random_state"):
        return np.random.default_rng(random_state)


def shown(value: Any) -> str:
    """A value in a message: itself if that is short, else its type."""
    if value is None or isinstance(value, str | bytes | bool | int | float | np.number):
        short = repr(value)
        return short if len(short) <= 80 else short[:77] + "…"
    return f"a {type(value).__name__}"
