"""Columns of numbers made from one column of features: what each kind becomes, learned once and applied to new rows."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ..dates import parse_dates
from ..features import FeatureWarning, _outside
from ..lowrank import Array
from .columns import KINDS, Column, listed, read_dates

MIN_ROWS_PER_LEVEL = 5  # Cochran (1954): counts below five are too few to compare; a rarer level marks single rows
SMALL_TABLE = 4  # ... but where rows are few, a quarter of them (two at least) is a level
MOST_LEVELS = 100  # of one column, however many rows: time grows with the square of the number of features
ROWS_PER_LEVEL = 10  # Harrell (2015), 4.4: a coefficient needs 10 to 20 observations
MOSTLY_DIFFERENT = 0.5  # distinct values per row: more than one for two rows names rows, and does not group them
KNOTS = {  # Harrell (2015), table 2.3: quantiles of the knots, by their number
    2: (0.0, 1.0),
    3: (0.1, 0.5, 0.9),
    4: (0.05, 0.35, 0.65, 0.95),
    5: (0.05, 0.275, 0.5, 0.725, 0.95),
}
VALUES_FOR_KNOTS = ((100, 5), (30, 4), (5, 3))  # Harrell (2015), 2.4.6; below 5 values, a straight line
CLOSE_KNOTS = 1e-6  # of the range: nearer ones are one
STEPS_PER_CYCLE = 3  # at least: with two a sine can vanish at all of them
CYCLES_SEEN = 2  # years, weeks or days in the data, at least: in one, a cycle and a trend look the same
DECIMALS = 12  # of sines: what is left of sin(π) by rounding is no feature

MICROSECONDS = {"days": 86_400_000_000, "years": 31_557_600_000_000}  # a day; 365.25 days
DAY, WEEK, YEAR = MICROSECONDS["days"], 7 * MICROSECONDS["days"], 365 * MICROSECONDS["days"]
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Limits:
    """How many columns one column may become."""

    knots: int
    harmonics: int
    weekdays: bool
    least_levels: int  # that a text column may have, however few the rows
    share_of_levels: float  # of those that the rows allow


LIMITS = (  # in turn, until there are rows enough for what is made
    Limits(5, 3, True, 3, 1.0),
    Limits(4, 2, True, 2, 0.5),
    Limits(3, 1, False, 1, 0.25),
    Limits(2, 0, False, 1, 0.0),
)


@dataclass(frozen=True)
class Term:
    """What one column becomes. Subclasses say how, by `_make`, and learn it from the rows of the fit, by `learn`.

    Parameters
    ----------
    column : str
    kind : str
        Of the column, see `feature_columns.KINDS`.
    names : tuple of str
        Of the columns made, without the one that marks missing values.
    fills : tuple of float
        What the made columns hold where the value is missing.
    gaps : int
        Missing values in the fit.
    indicator : str, or None
        Name of the column that is one where the value is missing.
    """

    column: str
    kind: str
    names: tuple[str, ...]
    fills: tuple[float, ...] = ()
    gaps: int = 0
    indicator: str | None = None

    kinds: ClassVar[dict[str, type[Term]]] = {}
    filled_with: ClassVar[str] = "the average"

    def __init_subclass__(cls) -> None:
        Term.kinds[cls.__name__] = cls

    def _make(self, known: Array) -> Array:
        raise NotImplementedError

    def _fills(self, made: Array) -> Array:
        return made.mean(axis=0)

    def _unknown(self, known: Array) -> str:
        """A warning about values that the fit did not have; empty if there are none."""
        return ""

    def _done(self) -> str:
        """What the column became, in words."""
        done = {"boolean": "true is 1, false is 0", "duration": "lengths of time, in seconds"}
        return done.get(self.kind, "numbers, as they are")

    def note(self) -> str:
        return f"{self.column!r}: {self._done()}.{self._note_on_gaps()}"

    def _note_on_gaps(self) -> str:
        if not self.gaps:
            return ""
        values = f"{self.gaps} missing value{'s' * (self.gaps > 1)}"
        filled = f" {values} {'were' if self.gaps > 1 else 'was'} filled in with {self.filled_with}"
        if self.indicator is None:
            return f"{filled}; too few for a column that marks them."
        return f"{filled} and marked by {self.indicator!r}."

    @property
    def made_names(self) -> tuple[str, ...]:
        return self.names if self.indicator is None else (*self.names, self.indicator)

    def with_gaps(self, column: Column) -> Self:
        """The same, ready for missing values as the fit has them."""
        gaps = int(column.missing.sum())
        mark = f"{self.column} is missing" if gaps >= least_rows(len(column.values)) else None
        fills = tuple(map(float, self._fills(self._make(column.known))))
        return dataclasses.replace(self, fills=fills, gaps=gaps, indicator=mark)

    def apply(self, column: Column, name: str, new: bool) -> Array:
        """The made columns, one row for each of the column's values."""
        values = self._accepted(column, name)
        missing = values.missing
        if missing.any() and not self.gaps:
            count = int(missing.sum())
            raise ValueError(
                f"{name} has {count} missing value{'s' * (count > 1)}, but had none when the model was fitted; "
                "fill them in, or leave these rows out"
            )
        made = np.tile(np.array(self.fills, np.float64), (len(missing), 1))
        if not missing.all():
            made[~missing] = self._make(values.known)
        if new and not missing.all() and (text := self._unknown(values.known)):
            warnings.warn(f"{name} {text}", FeatureWarning, stacklevel=_outside())
        return made if self.indicator is None else np.column_stack([made, missing.astype(np.float64)])

    def vague(self, column: Column, name: str) -> Array:
        """Where the made columns are stand-ins, because the value is missing or was not seen in the fit."""
        return self._accepted(column, name).missing

    def _accepted(self, column: Column, name: str) -> Column:
        """The column as the kind that was fitted."""
        if column.kind == self.kind or (self.kind == "number" and column.kind == "boolean"):
            return column
        if column.kind == "missing":
            return Column("number", column.values)
        if self.kind == "date" and column.kind == "text":
            if (dates := read_dates(column, name)) is not None:
                return dates
            value = next(text for text in column.known if parse_dates([text]) is None)
            raise ValueError(f"{name} holds {value!r}, but held dates when the model was fitted; convert it")
        if self.kind == "boolean" and column.kind == "number" and np.isin(column.known, (0, 1)).all():
            return column
        raise ValueError(
            f"{name} holds {KINDS[column.kind]}, but held {KINDS[self.kind]} when the model was fitted; convert it"
        )

    def state(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {"term": type(self).__name__, **lists}

    @staticmethod
    def from_state(state: dict[str, Any]) -> Term:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in state.items()
        }
        return Term.kinds[values.pop("term")](**values)


@dataclass(frozen=True)
class Linear(Term):
    """Numbers as they are; true is one, false zero."""

    filled_with: ClassVar[str] = "the median"

    def _make(self, known: Array) -> Array:
        return known[:, None]

    def _fills(self, made: Array) -> Array:
        return np.median(made, axis=0)


@dataclass(frozen=True)
class Curve(Term):
    """Ordered numbers as a natural cubic spline: the number itself, and what bends it."""

    first: float = 0.0
    last: float = 1.0
    knots: tuple[float, ...] = ()

    @classmethod
    def learn(cls, name: str, known: Array, limits: Limits) -> Curve:
        first, last = float(known.min()), float(known.max())
        knots = spline_knots((np.unique(known) - first) / (last - first), limits.knots) if last > first else ()
        names = (name, *curve_names(name, knots))
        return cls(name, "number", names, first=first, last=last, knots=knots)

    def _done(self) -> str:
        return f"numbers in order, as a {shape(self.knots)}"

    def _make(self, known: Array) -> Array:
        span = self.last - self.first or 1.0
        return np.column_stack([known, spline((known - self.first) / span, self.knots)])


@dataclass(frozen=True)
class Calendar(Term):
    """Dates as a smooth trend, and the cycles that their spacing and range can show: year, week, day."""

    first: int = 0  # microseconds since 1970
    last: int = 1
    unit: str = "days"
    knots: tuple[float, ...] = ()
    yearly: int = 0  # harmonics
    daily: int = 0
    weekdays: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()  # of those

    @classmethod
    def learn(cls, name: str, known: Array, limits: Limits) -> Calendar:
        times = np.unique(known.astype(np.int64))
        first, last = int(times[0]), int(times[-1])
        step = float(np.median(np.diff(times))) if last > first else 0.0
        seen = last - first + step
        knots = spline_knots((times - first) / (last - first), limits.knots) if last > first else ()
        unit = "years" if seen >= CYCLES_SEEN * YEAR else "days"
        weekdays = (
            np.unique(weekday(known)) if limits.weekdays and 0 < step <= DAY and seen >= CYCLES_SEEN * WEEK else ()
        )
        shares = tuple(float((weekday(known) == day).mean()) for day in weekdays)
        term = cls(
            name,
            "date",
            (),
            first=first,
            last=last,
            unit=unit,
            knots=knots,
            yearly=harmonics(YEAR, step, seen, limits),
            daily=harmonics(DAY, step, seen, limits),
            weekdays=tuple(map(int, weekdays)),
            shares=shares,
        )
        return dataclasses.replace(term, names=term._names())

    def _names(self) -> tuple[str, ...]:
        start = str(np.datetime64(self.first, "us").astype("datetime64[s]")).replace("T00:00:00", "")
        days = [f"{self.column}: {WEEKDAYS[day]}" for day in self.weekdays]
        cycles = (*cycle_names(self.column, "year", self.yearly), *cycle_names(self.column, "day", self.daily))
        return (f"{self.column}: {self.unit} since {start}", *curve_names(self.column, self.knots), *cycles, *days)

    def _done(self) -> str:
        first, last = (str(np.datetime64(time, "us").astype("datetime64[s]")) for time in (self.first, self.last))
        parts = [f"trend as a {shape(self.knots)}"]
        parts += [f"cycle of the year ({self.yearly} harmonics)"] * bool(self.yearly)
        parts += ["days of the week"] * bool(self.weekdays)
        parts += [f"cycle of the day ({self.daily} harmonics)"] * bool(self.daily)
        return f"dates from {first} to {last}: {', '.join(parts)}"

    def _make(self, known: Array) -> Array:
        since = known.astype(np.int64) - self.first
        year = known.astype("datetime64[Y]")
        start, end = (edge.astype("datetime64[us]") for edge in (year, year + np.timedelta64(1, "Y")))
        parts = (
            since[:, None] / MICROSECONDS[self.unit],
            spline(since / max(self.last - self.first, 1), self.knots),
            cycles((known - start) / (end - start), self.yearly),
            cycles((known - known.astype("datetime64[D]")) / np.timedelta64(1, "D"), self.daily),
            dummies(weekday(known), self.weekdays, self.shares),
        )
        return np.hstack(parts)

    def _unknown(self, known: Array) -> str:
        new = set(weekday(known).tolist()).difference(self.weekdays)
        if not self.weekdays or not new:
            return ""
        days = ", ".join(WEEKDAYS[day] for day in sorted(new))
        return f"has days of the week that the fit did not have ({days}); they are taken for an average day"


@dataclass(frozen=True)
class Clock(Term):
    """Times of day, in seconds, as a daily cycle."""

    daily: int = 1

    @classmethod
    def learn(cls, name: str, known: Array, limits: Limits) -> Clock:
        count = min(max(limits.harmonics, 1), max((len(np.unique(known)) - 1) // 2, 1))
        return cls(name, "clock", cycle_names(name, "day", count), daily=count)

    def _done(self) -> str:
        return f"times of day, as a cycle ({self.daily} harmonics)"

    def _make(self, known: Array) -> Array:
        return cycles(known / 86_400, self.daily)


@dataclass(frozen=True)
class Category(Term):
    """Text as one column of zeros and ones for each level; rare levels together as "(other)"."""

    levels: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()
    other: bool = False  # whether rare ones are enough to be a level
    shares: tuple[float, ...] = ()

    @classmethod
    def learn(cls, column: Column, name: str, limits: Limits) -> Category | None:
        """None if the values group no rows."""
        n, counts = len(column.values), Counter(column.known.tolist())
        if len(counts) > MOSTLY_DIFFERENT * counts.total():
            return None
        order = [level for level in column.levels or sorted(counts) if level in counts]
        most = max(limits.least_levels, int(limits.share_of_levels * min(n // ROWS_PER_LEVEL, MOST_LEVELS)))
        common = sorted(order, key=lambda level: -counts[level])[:most]
        levels = tuple(level for level in order if level in set(common) and counts[level] >= least_rows(n))
        rare = tuple(level for level in order if level not in set(levels))
        rows = sum(counts[level] for level in rare)
        other = rows >= least_rows(n)
        seen = np.array([counts[level] for level in levels] + [rows] * other, np.float64)
        names = [f"{name} = {level}" for level in levels] + [f"{name} = (other)"] * other
        shares = tuple((seen / seen.sum()).tolist()) if len(seen) else ()
        return cls(name, "text", tuple(names), levels=levels, rare=rare, other=other, shares=shares) if levels else None

    def _done(self) -> str:
        done = f"one column for each of {len(self.levels)} level{'s' * (len(self.levels) > 1)}"
        if not self.rare:
            return done
        rare = f"{done}; {len(self.rare)} rarer one{'s' * (len(self.rare) > 1)} ({listed(self.rare)})"
        return f"{rare} merged as '(other)'" if self.other else f"{rare}, in too few rows for a column, as the average"

    def _note_on_gaps(self) -> str:
        if self.indicator is None:
            return super()._note_on_gaps()
        return f" Missing values ({self.gaps}) are a level of their own, {self.indicator!r}."

    def _make(self, known: Array) -> Array:
        place = {level: j for j, level in enumerate(self.levels)}
        elsewhere = len(self.levels) if self.other else -1
        codes = np.array([place.get(value, elsewhere) for value in known], dtype=np.int64)
        return dummies(codes, tuple(range(len(self.names))), self.shares)

    def with_gaps(self, column: Column) -> Self:
        term = super().with_gaps(column)
        if term.indicator is None:
            return dataclasses.replace(term, fills=self.shares)
        return dataclasses.replace(term, fills=(0.0,) * len(self.names), indicator=f"{self.column} = (missing)")

    def vague(self, column: Column, name: str) -> Array:
        missing = super().vague(column, name)
        common = set(self.levels)
        return missing | np.array([value not in common for value in column.values], bool)

    def _unknown(self, known: Array) -> str:
        new = sorted(set(known.tolist()).difference(self.levels, self.rare))
        if not new:
            return ""
        taken = "'(other)'" if self.other else "the average of the levels"
        return f"has levels that the fit did not have ({listed(new)}); they are taken for {taken}"


def least_rows(n: int) -> int:
    """Rows that a level, or the missing values, must have to get a column of their own."""
    return min(MIN_ROWS_PER_LEVEL, max(2, n // SMALL_TABLE))


def harmonics(cycle: int, step: float, seen: float, limits: Limits) -> int:
    """Sines and cosines that dates so far apart, over such a range, can show of a cycle."""
    if step <= 0 or seen < CYCLES_SEEN * cycle:
        return 0
    return min(limits.harmonics, int(cycle / step / STEPS_PER_CYCLE))


def cycles(phase: Array, count: int) -> Array:
    """Sine and cosine of each harmonic; the phase runs from 0 to 1."""
    angles = 2 * np.pi * phase[:, None] * np.arange(1, count + 1)
    both = np.stack([np.sin(angles), np.cos(angles)], axis=2)
    return np.round(both, DECIMALS).reshape(len(phase), 2 * count)


def cycle_names(name: str, cycle: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}: {wave} {k} of the {cycle}" for k in range(1, count + 1) for wave in ("sine", "cosine"))


def weekday(dates: Array) -> Array:
    """0 for Monday to 6 for Sunday."""
    return (dates.astype("datetime64[D]").astype(np.int64) + 3) % 7  # 1970 began on a Thursday


def dummies(codes: Array, known: tuple[int, ...], shares: tuple[float, ...]) -> Array:
    """One column for each known code; rows with another get the shares of the known ones."""
    made = np.equal.outer(codes, np.array(known, np.int64)).astype(np.float64)
    made[~made.any(axis=1)] = shares
    return made


def shape(knots: tuple[float, ...]) -> str:
    return f"smooth curve (natural cubic spline, {len(knots)} knots)" if len(knots) > 2 else "straight line"


def curve_names(name: str, knots: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f"{name}: curve {k}" for k in range(1, len(knots) - 1))


def spline_knots(distinct: Array, most: int) -> tuple[float, ...]:
    """Where a natural spline over [0, 1] bends; fewer than three knots: nowhere."""
    count = next((count for least, count in VALUES_FOR_KNOTS if len(distinct) >= least), 2)
    knots = np.quantile(distinct, KNOTS[min(count, most)])
    return tuple(map(float, knots[np.diff(knots, prepend=-1.0) > CLOSE_KNOTS]))


def spline(u: Array, knots: tuple[float, ...]) -> Array:
    """Natural cubic splines (Hastie, Tibshirani and Friedman 2009, eq. 5.5), less the straight line among them.

    Cubes are only taken up to the last knot; beyond it they are continued as the straight lines that they are.
    """
    if len(knots) < 3:
        return np.zeros((len(u), 0))
    *inner, before, last = knots
    within = np.minimum(u, last)
    beyond = u - within

    def bent(knot: float) -> Array:
        return np.maximum(within - knot, 0.0) ** 3 / (last - knot)

    return np.column_stack([bent(knot) - bent(before) + 3 * (before - knot) * beyond for knot in inner])
