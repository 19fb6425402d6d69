"""Options that are numbers, checked in one way."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np


def number(name: str, value: Any, low: float, high: float = np.inf, *, closed: bool = False) -> float:
    """The value as a float strictly between low and high, or equal to low if ``closed``; or an error naming it."""
    x = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    if not (low < x < high or (closed and x == low)):
        least = f"at least {low:g}" if closed else f"larger than {low:g}" if low else "positive"
        limits = f"{least} and finite" if high == np.inf else f"{least} and below {high:g}"
        raise ValueError(f"{name} must be a number, {limits}; got {value!r}")
    return x
