"""Dates that are written as text in ISO format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np

from .lowrank import Array

ISO_DATE = re.compile(r"\s*(\d{4}-\d\d)(-\d\d(?:[T ]\S+)?)?\s*", re.ASCII)


def parse_dates(texts: Iterable[str | None]) -> Array | None:
    """Return text as datetime64[us], NaT for None; None if there is no text, or any of it is no ISO date.

    A date with an offset from UTC is converted to UTC. Dates with and without an offset are refused: nobody can say
    which of them is earlier.
    """
    moments: list[datetime | None] = []
    example: dict[bool, str] = {}  # with and without an offset
    for text in texts:
        moment = None if text is None else _moment(text)
        if text is not None:
            if moment is None:
                return None
            example.setdefault(moment.tzinfo is not None, text)
        moments.append(None if moment is None else moment.replace(tzinfo=None))
    if len(example) == 2:
        raise ValueError(f"{example[True]!r} has an offset from UTC and {example[False]!r} has none; write them alike")
    return np.array(moments, "datetime64[us]") if example else None


def has_offset(text: str) -> bool:
    """Tell whether text is an ISO date with an offset from UTC."""
    moment = _moment(text)
    return moment is not None and moment.tzinfo is not None


def _moment(text: str) -> datetime | None:
    match = ISO_DATE.fullmatch(text)
    if match is None:
        return None
    month, rest = match.groups()
    try:
        moment = datetime.fromisoformat(month + (rest or "-01"))
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the 30th of February; the year 0
        return None
