"""What a case is: something to measure, how to show it, and the bars it is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Found = dict[str, Any]  # numbers and texts only: it goes to JSON and comes back


@dataclass(frozen=True)
class Report:
    """One table: a line above it, columns, and lines below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """One line of the table of bars; ``reached`` is None where no bar is set."""

    work: str
    bar: str
    measured: str
    reached: bool | None
    errors: str = ""


def at_most(limit: float, value: float, unit: str = "×", form: str = ".3g") -> tuple[str, str, bool | None]:
    """``bar``, ``measured`` and ``reached`` of a :class:`Bar`."""
    return f"≤ {limit:g}{unit}", f"{value:{form}}{unit}", value <= limit


def at_least(limit: float, value: float, unit: str = "×") -> tuple[str, str, bool | None]:
    return f"≥ {limit:g}{unit}", f"{value:.3g}{unit}", value >= limit


def measured(value: float, unit: str = "×") -> tuple[str, str, bool | None]:
    """The same where no bar is set."""
    return "–", f"{value:.3g}{unit}", None


def shown(value: Any, form: str) -> str:
    """A cell of a table; a dash for what is not there."""
    return "–" if value is None else f"{value:{form}}"


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes
    ----------
    measure : takes the sizes as keywords
    sizes, quick : of a full run, and of one that only shows that everything works
    report, bars : from what ``measure`` found
    asked : run only where it is named
    """

    name: str
    measure: Callable[..., Found]
    sizes: dict[str, Any]
    quick: dict[str, Any]
    report: Callable[[Found], Report]
    bars: Callable[[Found], list[Bar]] = lambda found: []
    asked: bool = False
