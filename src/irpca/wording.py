"""Words that messages share: numbers with their nouns, and lists of which only the beginning is shown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np


def count(number: int, one: str, many: str | None = None) -> str:
    """Return the number and its noun; ``many`` is the plural where that is not the noun with an s.

    Examples
    --------
    >>> count(1, "row"), count(3, "row"), count(1200, "row has", "rows have")
    ('1 row', '3 rows', '1,200 rows have')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def few(things: Any, most: int = 5, spell: Callable[[Any], str] | None = None) -> str:
    """Return the first of some things, spelt by ``spell`` (default: `quote`), and how many more there are.

    Examples
    --------
    >>> few(["a", "b"]), few(range(9), 2)
    ("'a', 'b'", '0, 1 and 7 more')
    """
    first = ", ".join(map(spell or quote, islice(things, most)))
    return first if len(things) <= most else f"{first} and {len(things) - most:,} more"


def quote(value: Any) -> str:
    """Return a label or value as its owner wrote it: ``7`` for ``np.int64(7)``, dates as text.

    Examples
    --------
    >>> quote(np.float64(0.5)), quote("Oslo"), quote(np.datetime64("2013-01-01"))
    ('0.5', "'Oslo'", "'2013-01-01'")
    """
    if isinstance(value, np.generic):
        return repr(str(value)) if value.dtype.kind in "mM" else repr(value.item())
    return repr(value)


def measured(value: float, std: float) -> str:
    """Return a number with as many digits as its standard deviation gives a meaning to, and at most six decimals.

    Examples
    --------
    >>> measured(1238.71, 75.0), measured(-0.031234, 0.002), measured(239601.5, 14500.0)
    ('1,240', '−0.0312', '240,000')
    """
    size, unit = abs(value), std if std > 0 else abs(value) / 1000
    if not np.isfinite(value):
        return "–"
    if size >= 1e12 or 0 < max(size, unit) < 1e-6:
        return f"{value:.3e}".replace("-", "−")
    digits = min(6, 1 - int(np.floor(np.log10(3 * unit)))) if unit > 0 else 0
    return f"{round(value, digits) + 0.0:,.{max(digits, 0)}f}".replace("-", "−")


def as_given(value: float) -> str:
    """Return an observed number as it was given: whole numbers in full, others to six digits.

    Examples
    --------
    >>> as_given(12500.0), as_given(-0.25), as_given(2308665.3)
    ('12,500', '−0.25', '2,308,665')
    """
    size = abs(value)
    if size >= 1e12 or 0 < size < 1e-6:
        return f"{value:.6g}".replace("-", "−")
    decimals = 0 if value == round(value) else max(0, 5 - int(np.floor(np.log10(size))))
    text = f"{value:,.{decimals}f}".replace("-", "−")
    return text.rstrip("0").rstrip(".") if decimals else text


def percent(share: float) -> str:
    """A share in per cent, with two significant digits, and never 0 % or 100 % of what is not.

    Examples
    --------
    >>> percent(0.123), percent(0.00001), percent(1.0)
    ('12 %', 'less than 0.01 %', '100 %')
    """
    if 0 < share < 1e-4:
        return "less than 0.01 %"
    if 0.9999 < share < 1:
        return "more than 99.99 %"
    near = min(share, 1 - share) * 100
    digits = 0 if near == 0 or near >= 9.95 else 1 if near >= 0.995 else 2
    return f"{share * 100:.{digits}f} %"
