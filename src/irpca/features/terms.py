"""What one column of features becomes: columns of numbers, learned from the rows of the fit and made for new ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dates import parse_dates
from ..lowrank import Array
from ..wording import count, few
from .frames import KINDS, Column, read_dates

MOST_DETAIL = 3  # harmonics of a cycle; two knots more than that; at least so many levels. Less where rows are few
WEEKDAY_DETAIL = 2  # at least, for days of the week
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

DAY = 86_400_000_000  # in microseconds, as dates are
CYCLES = {"year": 365 * DAY, "day": DAY}
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Term:
    """What one column becomes, side by side: the number itself, its curve, its cycles, its levels.

    Attributes
    ----------
    column, kind : str
        Name and kind of the column, see `irpca.features.frames.KINDS`.
    first, last : numbers
        The range of a trend; of dates in microseconds since 1970.
    knots : where the curve bends, in units of that range
    year, day : number of harmonics of each cycle
    levels : levels of text, or days of the week, that have a column
    rare : levels that have none
    shares : of the levels, and of the rare ones together if they have a column
    fills : what the columns hold where the value is missing
    gaps : number of missing values in the fit
    marked : whether a column says where values are missing
    """

    column: str
    kind: str
    first: int | float = 0
    last: int | float = 0
    knots: tuple[float, ...] = ()
    year: int = 0
    day: int = 0
    levels: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    fills: tuple[float, ...] = ()
    gaps: int = 0
    marked: bool = False

    @classmethod
    def learn(cls, name: str, given: Column, detail: int) -> Term | None:
        """Return what a column becomes; None if its values are missing, or group no rows."""
        n, known = len(given.values), given.known
        if not len(known):
            return None
        learned: dict[str, Any] = {}
        if given.kind == "text":
            learned = _levels(given, detail)
            if not learned["levels"]:
                return None
        elif given.kind == "date":
            learned = _calendar(known, detail)
        elif given.kind == "clock":
            learned["day"] = max(1, min(detail, (len(np.unique(known)) - 1) // 2))
        elif given.ordered:
            learned = _trend(np.unique(known), detail)
        gaps = n - len(known)
        term = cls(name, given.kind, **learned, gaps=gaps, marked=gaps >= _least_rows(n))
        fills = term.make(np.median(known)[None])[0] if term.is_number else term.make(known).mean(axis=0)
        return replace(term, fills=tuple(fills.tolist()))

    @property
    def is_number(self) -> bool:
        return self.kind in ("number", "boolean", "duration")

    @property
    def merged(self) -> bool:
        """Whether rare levels have a column together."""
        return len(self.shares) > len(self.levels)

    @property
    def names(self) -> list[str]:
        """Names of the columns that are made; the last one marks missing values."""
        names = [self.column] * self.is_number
        if self.kind == "date":
            names = [f"{self.column}: days since {_spell_time(self.first).removesuffix('T00:00:00')}"]
        names += [f"{self.column}: curve {k}" for k in range(1, len(self.knots) - 1)]
        for cycle in CYCLES:
            orders = range(1, getattr(self, cycle) + 1)
            names += [f"{self.column}: {wave} {k} of the {cycle}" for k in orders for wave in ("sine", "cosine")]
        link = " = " if self.kind == "text" else ": "
        names += [f"{self.column}{link}{level}" for level in (*self.levels, *["(other)"] * self.merged)]
        return [*names, *[f"{self.column} is missing"] * self.marked]

    def note(self) -> str:
        """Return what the column became, in a sentence or two."""
        if not self.gaps:
            return f"{self.column!r}: {self._done()}."
        values = count(self.gaps, "missing value was", "missing values were")
        mark = f" and marked by {self.names[-1]!r}" if self.marked else "; too few for a column that marks them"
        average = "median" if self.is_number else "average"
        return f"{self.column!r}: {self._done()}. {values} filled in with the {average}{mark}."

    def _done(self) -> str:
        curve = f"smooth curve (natural cubic spline, {len(self.knots)} knots)" if self.knots[2:] else "straight line"
        if self.kind == "text":
            done = f"one column for each of {count(len(self.levels), 'level')}"
            rare = f"{done}; {count(len(self.rare), 'rarer one')} ({few(self.rare)})"
            how = " merged as '(other)'" if self.merged else ", in too few rows for a column, as the average"
            return rare + how if self.rare else done
        cycles = [f"cycle of the {name} ({getattr(self, name)} harmonics)" for name in CYCLES if getattr(self, name)]
        if self.kind == "date":
            parts = [f"trend as a {curve}", *cycles, *["days of the week"] * bool(self.levels)]
            return f"dates from {_spell_time(self.first)} to {_spell_time(self.last)}: {', '.join(parts)}"
        if self.last > self.first:
            return f"numbers in order, as a {curve}"
        kinds = {"boolean": "true is 1, false is 0", "duration": "lengths of time, in seconds"}
        return f"times of day, as a {cycles[0]}" if cycles else kinds.get(self.kind, "numbers, as they are")

    def make(self, known: Array) -> Array:
        """Return the columns for values none of which is missing."""
        if self.kind == "text":
            return self._indicate(known)
        if self.kind == "clock":
            return _waves(known / 86_400, self.day)
        since, span = known.astype(np.int64 if self.kind == "date" else float) - self.first, self.last - self.first or 1
        curve = _spline(since / span, self.knots)
        if self.kind != "date":
            return np.column_stack([known, curve])
        midnight, new_year = known.astype("datetime64[D]"), known.astype("datetime64[Y]")
        start, end = (date.astype("datetime64[us]") for date in (new_year, new_year + 1))
        year, day = (known - start) / (end - start), (known - midnight) / np.timedelta64(DAY, "us")
        days = self._indicate(_weekdays(known))
        return np.column_stack([since / DAY, curve, _waves(year, self.year), _waves(day, self.day), days])

    def _indicate(self, values: Any) -> Array:
        """Return a column of zeros and ones for each level; the shares of all where a value has none."""
        place = {level: j for j, level in enumerate(self.levels)}
        rows = np.vstack([np.eye(len(self.shares)), np.array(self.shares, np.float64)])
        return rows[[place.get(value, len(self.levels)) for value in values]]

    def apply(self, given: Column, name: str) -> Array:
        """Return the columns for any values of the kind that was fitted, missing ones filled in and marked."""
        missing = given.missing
        if missing.any() and not self.gaps:
            raise ValueError(
                f"{name} has {count(int(missing.sum()), 'missing value')}, but had none when the model was fitted; "
                "fill them in, or leave these rows out"
            )
        made = np.tile(np.array(self.fills, np.float64), (len(missing), 1))
        if not missing.all():
            made[~missing] = self.make(given.known)
        return np.column_stack([made, missing]) if self.marked else made

    def accept(self, given: Column, name: str) -> Column:
        """Return a column as the kind that was fitted, or an error."""
        if given.kind in (self.kind, "missing") or (self.kind == "number" and given.kind == "boolean"):
            return given
        if self.kind == "boolean" and given.kind == "number" and np.isin(given.known, (0, 1)).all():
            return given
        held = KINDS[given.kind][0]
        if self.kind == "date" and given.kind == "text":
            if (dates := read_dates(given, name)) is not None:
                return dates
            held = repr(next(text for text in given.known if parse_dates([text]) is None))
        raise ValueError(f"{name} holds {held}, but held {KINDS[self.kind][0]} when the model was fitted; convert it")

    def describe_unknown(self, given: Column) -> str:
        """Return what to say about levels, or days of the week, that the fit did not have; empty if there are none."""
        if not self.levels:
            return ""
        if self.kind == "date":
            days = {*_weekdays(given.known)} - {*self.levels}
            what, taken, new = "days of the week", "an average day", [day for day in WEEKDAYS if day in days]
        else:
            new = sorted({*given.known} - {*self.levels, *self.rare})
            what, taken = "levels", "'(other)'" if self.merged else "the average of the levels"
        return f"has {what} that the fit did not have ({few(new, 7)}); they are taken for {taken}" if new else ""

    def find_vague(self, given: Column) -> Array:
        """Tell where the columns are stand-ins, because the value is missing, rare or was not seen in the fit."""
        if self.kind != "text":
            return given.missing
        return np.array([value not in self.levels for value in given.values], bool)


def _least_rows(n: int) -> int:
    """Return how many rows a level, or the missing values, must have to get a column of their own."""
    return min(MIN_ROWS_PER_LEVEL, max(2, n // SMALL_TABLE))


def _levels(given: Column, detail: int) -> dict[str, Any]:
    n, counts = len(given.values), Counter(given.known.tolist())
    if len(counts) > MOSTLY_DIFFERENT * counts.total():
        return {"levels": ()}
    order = [level for level in given.levels or sorted(counts) if level in counts]
    most = max(detail, 1, min(n // ROWS_PER_LEVEL, MOST_LEVELS) * detail // MOST_DETAIL)
    often = sorted(order, key=lambda level: -counts[level])[:most]
    common = {level for level in often if counts[level] >= _least_rows(n)}
    levels, rare = (tuple(level for level in order if (level in common) is kept) for kept in (True, False))
    rows = [counts[level] for level in levels]
    if (merged := sum(counts[level] for level in rare)) >= _least_rows(n):
        rows.append(merged)
    return {"levels": levels, "rare": rare, "shares": tuple(one / sum(rows) for one in rows)}


def _trend(distinct: Array, detail: int) -> dict[str, Any]:
    """Return the range of numbers or dates, and the knots of a natural spline over it; fewer than three: a line."""
    first, last = distinct[0].item(), distinct[-1].item()
    if first == last:
        return {"first": first, "last": last}
    most = next((knots for least, knots in VALUES_FOR_KNOTS if len(distinct) >= least), 2)
    knots = np.quantile((distinct - first) / (last - first), KNOTS[min(most, detail + 2)])
    return {"first": first, "last": last, "knots": tuple(knots[np.diff(knots, prepend=-1.0) > CLOSE_KNOTS].tolist())}


def _calendar(known: Array, detail: int) -> dict[str, Any]:
    """Return the trend of dates, and the cycles that their spacing and range can show."""
    times = np.unique(known.astype(np.int64))
    step = float(np.median(np.diff(times))) if len(times) > 1 else np.inf
    seen = times[-1] - times[0] + step
    learned = _trend(times, detail)
    for name, cycle in CYCLES.items():
        if seen >= CYCLES_SEEN * cycle:
            learned[name] = min(detail, int(cycle / step / STEPS_PER_CYCLE))
    if detail >= WEEKDAY_DETAIL and step <= DAY and seen >= CYCLES_SEEN * 7 * DAY:
        days = Counter(_weekdays(known))
        learned["levels"] = tuple(day for day in WEEKDAYS if day in days)
        learned["shares"] = tuple(days[day] / len(known) for day in learned["levels"])
    return learned


def _weekdays(dates: Array) -> list[str]:
    days = dates.astype("datetime64[D]").astype(np.int64)
    return [WEEKDAYS[day] for day in (days + 3) % 7]  # 1970 began on a Thursday


def _spell_time(microseconds: int | float) -> str:
    return str(np.datetime64(int(microseconds), "us").astype("datetime64[s]"))


def _waves(phase: Array, harmonics: int) -> Array:
    """Return sine and cosine of each harmonic; the phase runs from 0 to 1."""
    angles = 2 * np.pi * phase[:, None] * np.arange(1, harmonics + 1)
    both = np.stack([np.sin(angles), np.cos(angles)], axis=2)
    return np.round(both, DECIMALS).reshape(len(phase), 2 * harmonics)


def _spline(u: Array, knots: tuple[float, ...]) -> Array:
    """Return natural cubic splines, each 1 at an inner knot and 0 at the others; straight lines beyond the knots."""
    if len(knots) < 3:
        return np.zeros((len(u), 0))
    from scipy.interpolate import CubicSpline  # takes time to import, and few features are curves

    spline = CubicSpline(knots, np.eye(len(knots))[:, 1:-1], bc_type="natural")
    within = np.clip(u, knots[0], knots[-1])
    return spline(within) + spline(within, 1) * (u - within)[:, None]
