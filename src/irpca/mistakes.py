"""Mistakes that have a name: what would explain an outlier, and how probable that is.

Every kind of mistake says which value the cell should have held, so it explains the cell as well as this value fits
what is expected there (Bayes):

    P(kind) ∝ prior · density of a clean cell at the corrected value / (|factor| · density of a wrong value of any size)

Wrong values are Cauchy about what is expected, of the median size of the outliers, or of any size (even in its
logarithm), half of them each. A copy of another cell leaves nothing to chance, so its odds are one over the share of
cells that would be equal anyway. All kinds have the same prior, and the share that none explains is estimated from the
outliers of the table. A kind that is more probable than all else is the name of the mistake. Beside that there are
groups of cells that one thing explains (a code, a run, swapped columns, a factor): they are found from all outliers,
their name comes first, and it is a doubt, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import ndtr

from . import constants
from .cached import cached_property
from .constants import KINDS, MISTAKES
from .engines.base import Engine
from .engines.sparse_part import on_device, places, to_host
from .lowrank import Array
from .model.maps import ColumnMaps
from .result import TEXT, Doubt, Mistakes, Result, about_cells
from .tables import find, width
from .wording import few

COMMON = {"× 10": 10.0, ": 10": 0.1, "sign": -1.0, "× 100": 100.0, ": 100": 0.01, "× 1000": 1000.0, ": 1000": 0.001}
COMMON["× 2.54"] = 2.54
DIGITS, BESIDE, ABOVE = "digits swapped", "neighbour's value", "copied from above"
SINGLE = (*COMMON, DIGITS, BESIDE, ABOVE)  # that a cell may show by itself
NONE = "none of these"
MOST_DECIMALS = 6  # of a number whose digits are looked at: with more it is computed, not written
POINTS = (10.0, 100.0, 1000.0)  # a misplaced decimal point
SWAPPED = "swapped"
UNITS = (2.54, 0.3048, 1.609344, 0.45359237, 60.0, 3600.0)  # inches, feet, miles, pounds, minutes, hours


def _named(factor: float) -> str:
    return f"× {factor:.4g}" if factor >= 1 else f": {1 / factor:.4g}"


KNOWN = {_named(f): (f, 0.0) for f in (*POINTS, *UNITS) for f in (f, 1 / f)}  # of several cells: factor and offset
KNOWN |= {"× 1.8 + 32": (1.8, 32.0), "− 32 : 1.8": (1 / 1.8, -32 / 1.8)}
FACTORS = {name: (factor, 0.0) for name, factor in COMMON.items()} | KNOWN


@dataclass(frozen=True, eq=False)
class Scatter:
    """How clean and wrong values of some cells scatter about what is expected there.

    Attributes
    ----------
    expected, unit : where columns are mapped of latent values
    broad : the median size of gross errors, which are Cauchy, likewise
    wrong : the probability that the cell is an outlier
    cols : the column of each
    below : the share of clean cells that are smaller, in units
    maps : of the columns, or None
    """

    expected: Array
    unit: Array
    broad: Array
    wrong: Array
    cols: Array
    below: Callable[[Array], Array] = ndtr
    maps: ColumnMaps | None = None

    def some(self, at: Array) -> Scatter:
        return replace(
            self, **{name: getattr(self, name)[at] for name in ("expected", "unit", "broad", "wrong", "cols")}
        )

    def odds(self, values: Array, observed: Array, factor: Array | float = 1.0) -> Array:
        """How much more dense clean cells are at some values than wrong ones are at what was observed.

        ``values``, with an axis more than the cells, became what was observed by a factor.
        """
        expected, unit, broad, cols = (part[:, None] for part in (self.expected, self.unit, self.broad, self.cols))
        seen, size = observed[:, None].astype(float), np.abs(factor)
        any_size = 0.5 / (2 * np.log(MISTAKES.any_size) * np.maximum(np.abs(seen), 1e-300))
        if self.maps is None:
            wrong = 0.5 * _cauchy(seen - expected, broad) + any_size
            return self._clean(values - expected, unit) / (size * wrong)
        cols = np.broadcast_to(cols, values.shape)
        latent, own = self.maps.latent(values, cols), cols[:, :1]
        wrong = 0.5 * _cauchy(self.maps.latent(seen, own) - expected, broad) * np.exp(self.maps.log_slope(seen, own))
        clean = self._clean(latent - expected, unit) * np.exp(self.maps.log_slope(values, cols))
        odds = clean / (size * (wrong + any_size))
        low, high = self.maps.interval(latent, cols)
        mass = self.below((high - expected) / unit) - self.below((low - expected) / unit)
        few = self.maps.is_few(cols)  # half of the mistakes hold one of the few values, as in EntryScale.odds_at
        found: Array = np.where(few, mass * 2 * self.maps.count(cols), odds)
        return found

    def _clean(self, away: Array, unit: Array) -> Array:
        """The density of clean cells, from their share within a quarter of a unit to either side."""
        found: Array = (self.below(away / unit + 0.25) - self.below(away / unit - 0.25)) / (0.5 * unit)
        return found


def _cauchy(away: Array, broad: Array) -> Array:
    found: Array = 1 / (np.pi * broad * (1 + (away / broad) ** 2))
    return found


@dataclass(frozen=True, eq=False)
class Cells:
    """Outliers in the order of rows, then columns, and the table that they are from.

    Attributes
    ----------
    rows, cols : positions
    observed, expected, std : M, what is expected there, and the standard deviation of clean cells about it
    shape : of M
    table : M, if it is in memory; None: no more of it is looked at than these cells
    given : how clean and wrong cells scatter, if there is a model of that
    """

    rows: Array
    cols: Array
    observed: Array
    expected: Array
    std: Array
    shape: tuple[int, int]
    table: Engine | None = None
    given: Scatter | None = None

    @cached_property
    def scatter(self) -> Scatter:
        if self.given is not None:
            return self.given
        broad = np.full(len(self.rows), np.median(np.abs(self.observed - self.expected)))
        return Scatter(self.expected, self.std, broad, np.ones(len(self.rows)), self.cols)

    @cached_property
    def away(self) -> Array:
        """How far they are from what is expected, in standard deviations."""
        return np.abs(self.observed - self.expected) / self.std

    @cached_property
    def _ordered(self) -> tuple[Array, Array]:
        """The outliers in the order of rows, then columns, and one number for the place of each."""
        keys = self.rows * self.shape[1] + self.cols
        order = np.argsort(keys, kind="stable")
        return order, keys[order]

    def find(self, rows: Array, cols: Array) -> Array:
        """Which of the outliers some cells are; −1: none."""
        (order, keys), wanted = self._ordered, rows * self.shape[1] + cols
        if not len(keys):
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        inside = (rows >= 0) & (cols >= 0) & (cols < self.shape[1])
        return np.where(inside & (keys[at] == wanted), order[at], -1)

    def beside(self, down: int, right: int) -> Array:
        """What the cells hold that are so many rows and columns away; NaN outside of M, and where it is not known."""
        rows, cols = self.rows + down, self.cols + right
        inside = (rows >= 0) & (rows < self.shape[0]) & (cols >= 0) & (cols < self.shape[1])
        found = np.full(len(rows), np.nan)
        if self.table is not None:
            found[inside] = self.table.entries(rows[inside], cols[inside])
            return found
        at = self.find(rows, cols)
        return np.where(at >= 0, self.observed[at], found)

    def column(self, col: int) -> Array:
        assert self.table is not None
        values: Array = self.table.block(np.arange(self.shape[0]), np.array([col]))[:, 0]
        return values

    def corrected(self, factor: float, offset: float = 0.0) -> tuple[Array, Array, Array]:
        """Without a factor and an offset: the distance from what is expected, in std, and the chance that it is small.

        The third says where the mistake would be far outside of the noise.
        """
        value = (self.observed - offset) / factor
        chance = 2 * self.std / np.maximum(np.abs(value), self.std)
        moved = factor * self.expected + offset - self.expected
        far = np.abs(moved) - MISTAKES.near * abs(factor) * self.std >= MISTAKES.far * self.std
        return np.abs(value - self.expected) / self.std, np.minimum(chance, 1.0), far


Found = Iterator[tuple[str, Array, Doubt | None]]  # a name, which outliers have it, and what is to be said of them


def kinds_of(cells: Cells) -> tuple[Mistakes, tuple[Doubt, ...]]:
    """The name of the mistake of every outlier, and doubts about groups of them.

    Examples
    --------
    >>> cell = np.zeros(1, int)
    >>> kinds_of(Cells(cell, cell, np.array([520.0]), np.array([51.6]), np.array([0.5]), (9, 9)))[0].texts.tolist()
    ['× 10']
    """
    which, found, doubts = np.zeros(len(cells.rows), np.int32), {"": 0}, list[Doubt]()
    chances = probabilities(cells)[0] if len(which) else np.zeros((0, len(SINGLE)))
    likely = np.where(chances.max(axis=1) > constants.MAJORITY, chances.argmax(axis=1), -1)

    def named(cells: Cells, free: Array, kinds: tuple[str, ...] = SINGLE) -> Found:
        for name in kinds:
            yield name, np.flatnonzero(free & (likely == SINGLE.index(name))), None

    copies = partial(named, kinds=(BESIDE, ABOVE))
    searches = (codes, stuck, copied_rows, swapped, copies, other_units, named)  # the first name counts
    for search in searches if len(which) else (copied_rows,):
        for name, some, doubt in search(cells, which == 0):
            if len(some):
                which[some] = found.setdefault(name, len(found))
            doubts += [doubt] if doubt else []
    return Mistakes(tuple(found), which), tuple(doubts)


def _by_line(lines: Array, some: Array) -> Iterator[tuple[int, Array]]:
    """Some of the outliers, in groups of one row or column each."""
    some = some[np.argsort(lines[some], kind="stable")]
    found, starts = np.unique(lines[some], return_index=True)
    for line, first, last in zip(found.tolist(), starts, np.append(starts, len(some))[1:], strict=True):
        yield line, some[first:last]


# One cell by itself


def probabilities(cells: Cells) -> tuple[Array, float]:
    """The probability of every kind in SINGLE, one row for each outlier, and the share that none of them explains.

    What is missing to 1 in a row is the probability of none. The share is that of these cells, and of one more on
    either side.
    """
    odds, share = odds_of(cells), 0.5
    for _ in range(constants.MAX_STEPS):
        before, chances = share, chances_of(odds, cells.scatter.wrong, share)
        share = float(len(odds) - chances.sum() + 1) / (len(odds) + 2)
        if abs(share - before) < constants.COMPARISON_TOLERANCE:
            break
    return chances, share


def chances_of(odds: Array, wrong: Array, nameless: float) -> Array:
    """Probabilities of kinds from their odds against a wrong value of any size, all kinds being equally likely before.

    ``wrong``: the probability that a cell is an outlier; ``nameless``: the share of outliers that no kind explains.
    """
    odds = odds * (1 - nameless) / len(SINGLE)
    none = nameless / np.maximum(wrong, 1e-300)  # nothing is wrong, or something else
    chances: Array = odds / (odds.sum(axis=1) + none)[:, None]
    return chances


def odds_of(cells: Cells) -> Array:
    """How much better every kind in SINGLE explains some cells than a wrong value of any size does."""
    scatter, factors = cells.scatter, np.array(list(COMMON.values()))
    odds = np.zeros((len(cells.rows), len(SINGLE)))
    some = np.flatnonzero(np.isfinite(cells.observed) & (scatter.wrong > 0))
    if len(some):
        scatter, observed = scatter.some(some), cells.observed[some]
        corrected = observed[:, None] / factors
        odds[some, : len(factors)] = np.where(observed[:, None] != 0, scatter.odds(corrected, observed, factors), 0.0)
        others = digit_swaps(observed)
        found, many = scatter.odds(others, observed), np.isfinite(others).sum(axis=1)
        odds[some, SINGLE.index(DIGITS)] = np.nansum(found, axis=1) / np.maximum(many, 1)
        for name, down, right in ((ABOVE, -1, 0), (BESIDE, 0, 1), (BESIDE, 0, -1)):
            odds[:, SINGLE.index(name)] += _copied(cells, down, right)
    return odds


def _copied(cells: Cells, down: int, right: int) -> Array:
    """One over the share of cells that hold what the cell beside or above holds anyway; 0 where the cell does not."""
    odds = np.zeros(len(cells.rows))
    if cells.table is None:
        return odds
    same = np.flatnonzero(cells.beside(down, right) == cells.observed)
    other = cells.find(cells.rows[same] + down, cells.cols[same] + right)
    same = same[(other < 0) | (cells.away[other] < cells.away[same])]  # else the other is the copy
    for col, some in _by_line(cells.cols, same):
        own, source = cells.column(col), cells.column(col + right)
        equal = np.count_nonzero(own == (source if right else np.append(np.nan, own[:-1])))
        held = np.array([np.count_nonzero(source == value) for value in cells.observed[some]]) - (right == 0)
        odds[some] = len(own) / np.maximum(held, equal)
    return odds


def digit_swaps(values: Array) -> Array:
    """What values become if two digits side by side change places, one column for each pair; NaN where none do."""
    size, digits = np.abs(values), np.arange(15)
    decimals, rounding = np.full(len(values), -1), 8 * float(np.finfo(values.dtype).eps)
    for d in range(MOST_DECIMALS, -1, -1):
        moved = size * 10.0**d
        decimals[np.abs(np.rint(moved) - moved) <= rounding * moved] = d
    usable = (decimals >= 0) & (size * 10.0**decimals < 1e15)
    whole = np.where(usable, np.rint(size * 10.0**decimals), 0).astype(np.int64)[:, None]
    right, left = whole // 10**digits % 10, whole // 10 ** (digits + 1) % 10
    swapped = whole + 9 * (right - left) * 10**digits
    there = (right != left) & (np.minimum(whole, swapped) >= 10 ** (digits + 1))  # none gets a zero in front
    found: Array = np.where(there, np.sign(values)[:, None] * swapped / 10.0 ** decimals[:, None], np.nan)
    return found


# Undoing


def check_kinds(kinds: Any, names: Sequence[str]) -> set[str]:
    """Which of the mistakes in a table are to be undone: some kinds, or True for all that can be."""
    possible = {name for name in (*FACTORS, DIGITS, SWAPPED, *names) if _can_be_undone(name)}
    if kinds is True:
        return possible
    wanted = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if unknown := [kind for kind in wanted if kind not in possible]:
        raise ValueError(
            f"kinds has {few(unknown)}, which cannot be undone or is no kind of mistake; what can be undone is "
            f"{', '.join(map(repr, sorted(possible)))}"
        )
    return set(wanted)


def _can_be_undone(name: str) -> bool:
    return name in (DIGITS, SWAPPED) or _factor_of(name) is not None


def _factor_of(name: str) -> tuple[float, float] | None:
    """The factor and the offset that a name tells."""
    if name in FACTORS:
        return FACTORS[name]
    found = re.fullmatch(r"([×:]) ([0-9.e+]+)", name)
    return found and (float(found[2]) if found[1] == "×" else 1 / float(found[2]), 0.0)


def undone(cells: Cells, names: Array, kinds: set[str]) -> Array:
    """What cells held before mistakes of these kinds, by the names of their mistakes; NaN where that is not known."""
    found = np.full(len(names), np.nan)
    for name in kinds & set(names.tolist()):
        some = np.flatnonzero(names == name)
        if name == DIGITS:
            values = digit_swaps(cells.observed[some])
            odds = np.nan_to_num(cells.scatter.some(some).odds(values, cells.observed[some]))
            found[some] = values[np.arange(len(some)), odds.argmax(axis=1)]
        elif name == SWAPPED:
            off = np.full(len(some), np.inf)
            for right in (-1, 1):
                other = cells.find(cells.rows[some], cells.cols[some] + right)
                value = np.where((other >= 0) & (names[other] == name), cells.observed[other], np.nan)
                away = np.abs(value - cells.expected[some])
                found[some], off = np.where(away < off, value, found[some]), np.fmin(away, off)
        elif factor := _factor_of(name):
            found[some] = (cells.observed[some] - factor[1]) / factor[0]
    return found


# Copies


def swapped(cells: Cells, free: Array) -> Found:
    """Neighbours in a row each of which is what is expected of the other."""
    second = cells.find(cells.rows, cells.cols + 1)
    first = np.flatnonzero(free & (second >= 0) & free[second])
    second = second[first]
    chance, off = np.ones(len(first)), np.zeros(len(first))
    for one, other in ((first, second), (second, first)):
        std = cells.std[other]
        off = np.maximum(off, np.abs(cells.observed[one] - cells.expected[other]) / std)
        chance *= np.minimum(2 * std / (cells.away[one] * cells.std[one]), 1.0)
    fine = (off <= MISTAKES.near_group) & (chance <= MISTAKES.copied)
    for col, here in _by_line(cells.cols[first], np.flatnonzero(fine)):
        near, doubt = here[off[here] <= MISTAKES.near], None
        if len(near) < MISTAKES.swapped:
            here = near
        else:
            doubt = about_cells(
                "swapped",
                f"in {len(here)} rows the cells of the columns {{columns}} are swapped (rows {{rows}}): each holds "
                "what is expected of the other. Swap them back",
                np.sort(cells.rows[first[here]]),
                np.array([col, col + 1]),
            )
        yield SWAPPED, np.append(first[here], second[here]), doubt


def copied_rows(cells: Cells, free: Array) -> Found:
    """Rows that share most of their values with one other row, and with no third."""
    n1, n2 = cells.shape
    if cells.table is None:
        return
    looked = np.unique(np.linspace(0, n2 - 1, min(n2, MISTAKES.columns)).astype(int))
    pairs = np.concatenate([_twice(cells.column(col)) for col in looked])
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    outliers = np.bincount(cells.rows, minlength=n1)
    copied, equal = list[int](), list[int]()
    for a, b in pairs[(counts >= MISTAKES.group) & (counts > constants.MAJORITY * len(looked))]:
        both = cells.table.block(np.array([a, b]), np.arange(n2))
        seen = np.isfinite(both).all(axis=0)
        if np.count_nonzero(both[0, seen] == both[1, seen]) > constants.MAJORITY * np.isfinite(both).sum(axis=1).max():
            copied.append(a if outliers[a] > outliers[b] else b)
            equal += [a, b]
    if copied:
        doubt = about_cells(
            "copied-row",
            f"{len(equal)} rows are equal two by two, in values that no other row has: {{rows}}. One of each pair may "
            "be a copy: look at both, and leave one out",
            np.array(equal),
        )
        yield "copied row", np.flatnonzero(free & np.isin(cells.rows, copied)), doubt


def _twice(values: Array) -> Array:
    """Pairs of rows that share a value which no other row has, the first first."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    same = ordered[1:] == ordered[:-1]
    alone = same & ~np.append(False, same[:-1]) & ~np.append(same[1:], False)
    at = np.flatnonzero(alone)
    return np.column_stack([order[at], order[at + 1]])


# One value again and again


def stuck(cells: Cells, free: Array) -> Found:
    """Runs of one value down a column, in which half of the cells are outliers."""
    if cells.table is None:
        return
    repeated = (cells.beside(-1, 0) == cells.observed) | (cells.beside(1, 0) == cells.observed)
    for col, here in _by_line(cells.cols, np.flatnonzero(free & repeated)):
        if len(here) < constants.MAJORITY * MISTAKES.run:
            continue
        values = cells.column(col)
        steps = np.flatnonzero(values[1:] != values[:-1]) + 1
        for first, last in zip(np.append(0, steps), np.append(steps, len(values)), strict=True):
            if last - first < MISTAKES.run:
                continue
            some = here[(cells.rows[here] >= first) & (cells.rows[here] < last)]
            if _is_stuck(cells, values, first, last, some):
                template = (
                    f"column {{columns}} holds the same value, {values[first]:.6g}, in {last - first} rows in a row, "
                    "from {row} on, where other values are expected: a sensor that was stuck, or gaps that were "
                    "filled. Set them to NaN and fit again"
                )
                yield "stuck", some, about_cells("stuck", template, np.arange(first, last), np.array([col]))


def _is_stuck(cells: Cells, values: Array, first: int, last: int, some: Array) -> bool:
    """Whether a run of one value is improbable, and not what is expected."""
    n, length = len(values), last - first
    if len(some) < constants.MAJORITY * length:
        return False
    same = np.count_nonzero(values[1:] == values[:-1]) - (length - 1)
    held = np.count_nonzero(values == values[first]) - length
    log_chance = (length - 1) * np.log((max(same, held) + 1) / (n - length + 1)) + np.log(n * cells.shape[1])
    varies = np.ptp(cells.expected[some]) > 2 * MISTAKES.near * np.median(cells.std[some])
    return bool(varies and log_chance < np.log(MISTAKES.run_chance))


def codes(cells: Cells, free: Array) -> Found:
    """Values far outside of all others that most outliers so far away share, or that people take for codes."""
    values, which, counts = np.unique(cells.observed, return_inverse=True, return_counts=True)
    some = np.flatnonzero(free & (cells.away > MISTAKES.far))
    if cells.table is None:
        some, held = some[_nines(cells.observed[some])], counts
    else:
        some, held = _shared_outside(cells, some[counts[which[some]] >= MISTAKES.code], which, len(values))
    for k, here in _by_line(which, some):
        if (n := len(here)) >= max(MISTAKES.code, constants.MAJORITY * held[k]):
            name = f"{values[k]:g}"
            template = (
                f"{n} outliers are exactly {name}, far from all other values (columns {{columns}}): a code for "
                "missing, or a limit of the instrument. Set them to NaN and fit again"
            )
            yield f"code {name}", here, about_cells("code", template, np.unique(cells.rows[here]), cells.cols[here])


def _shared_outside(cells: Cells, some: Array, which: Array, n: int) -> tuple[Array, Array]:
    """Those that are far outside of the clean cells of their column, as most are that hold the same value; and how many
    cells of these columns hold each value.
    """
    found, held = [some[:0]], np.zeros(n, np.int64)
    listed = dict(_by_line(cells.cols, np.arange(len(cells.cols))))
    for col, here in _by_line(cells.cols, some):
        values = cells.column(col).astype(float)
        clean = values.copy()
        clean[cells.rows[listed[col]]] = np.nan
        clean = clean[np.isfinite(clean)]
        if len(np.unique(clean)) <= KINDS.few:  # of few ordered values the rarest may be far away
            continue
        low, first, third, high = np.quantile(clean, (0.0, 0.25, 0.75, 1.0))
        gap, all_listed = third - first, cells.observed[listed[col]]
        far = np.count_nonzero((all_listed > high + gap) | (all_listed < low - gap))
        for k, same in _by_line(which, here):
            value = cells.observed[same[0]]
            if max(low - value, value - high) > gap and (_nines(value) or len(same) > constants.MAJORITY * far):
                held[k] += np.count_nonzero(values == value)
                found.append(same)
    return np.concatenate(found), held


def _nines(values: Array) -> Array:
    """Which values are written as two nines or more, as codes are: 99, −999."""
    digits = np.log10(np.abs(values) + 1)
    nines: Array = (digits >= 2) & (digits % 1 == 0)
    return nines


# Another unit


def other_units(cells: Cells, free: Array) -> Found:
    """Cells of one column, or of one row, that one factor brings to what is expected."""
    taken = ~free
    for axis, lines in ((1, cells.cols), (0, cells.rows)):
        for name, some in chain(_known_factors(cells, lines, taken), _any_factor(cells, lines, taken, axis)):
            taken |= some
            yield name, np.flatnonzero(some), _unit_doubt(cells, name, some, axis)


def _known_factors(cells: Cells, lines: Array, taken: Array) -> Iterator[tuple[str, Array]]:
    above = cells.observed > cells.expected
    for name, (factor, offset) in KNOWN.items():
        off, chance, far = cells.corrected(factor, offset)
        hit = ~taken & far & (off <= MISTAKES.near)
        if factor not in POINTS and 1 / factor not in POINTS:  # so near to 1, tails of the noise reach there
            hit &= chance <= MISTAKES.chance
            side = above == (factor * cells.expected + offset > cells.expected)
            hit &= _most(lines, hit, ~taken & side)[lines] & _varied(cells, lines, hit)[lines]
        shared = _shared(cells, lines, hit, far & ~taken, chance, factor)
        if shared.any():
            yield name, ~taken & far & (off <= MISTAKES.near_group) & shared[lines]


def _shared(cells: Cells, lines: Array, hit: Array, far: Array, chance: Array, factor: float) -> Array:
    """Lines with more hits than chance gives them, and than lie on the way there, as the tail of noise would."""
    n = int(lines.max()) + 1
    found, expected = np.bincount(lines[hit], minlength=n), np.bincount(lines[far], chance[far], minlength=n)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = cells.observed / cells.expected
    way = (ratio > 1) & (ratio < factor) if factor > 1 else (ratio > factor) & (ratio < 1)
    between = np.bincount(lines[way & ~hit], minlength=n)
    least = np.maximum(expected + constants.SIGNIFICANT_STANDARD_ERRORS * np.sqrt(expected), 2 * between)
    many: Array = (found >= MISTAKES.group) & (found > least)
    return many


def _most(lines: Array, some: Array, of: Array) -> Array:
    """Lines in which some of the outliers are most of others."""
    n = int(lines.max()) + 1
    most: Array = np.bincount(lines[some], minlength=n) > constants.MAJORITY * np.bincount(lines[of], minlength=n)
    return most


def _varied(cells: Cells, lines: Array, some: Array) -> Array:
    """Lines in which what is expected of some of the outliers varies by more than noise."""
    n = int(lines.max()) + 1
    low, high, widest = np.full(n, np.inf), np.full(n, -np.inf), np.zeros(n)
    np.minimum.at(low, lines[some], cells.expected[some])
    np.maximum.at(high, lines[some], cells.expected[some])
    np.maximum.at(widest, lines[some], cells.std[some])
    varied: Array = high - low > 2 * MISTAKES.near * widest
    return varied


def _any_factor(cells: Cells, cols: Array, taken: Array, axis: int) -> Iterator[tuple[str, Array]]:
    """Another factor, that most outliers of a column share."""
    if axis == 0:  # the noise of a row, and its size, are its own
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(cells.observed / cells.expected)
        error = cells.std / np.abs(cells.expected)
    usable = ~taken & np.isfinite(ratio) & (cells.away >= 2 * MISTAKES.far) & (2 * error <= MISTAKES.chance)
    total = np.bincount(cols)
    for col, here in _by_line(cols, np.flatnonzero(usable)):
        least = max(MISTAKES.group - 1, constants.MAJORITY * total[col])
        if len(here) <= least:
            continue
        here = here[np.argsort(ratio[here])]
        ends = np.searchsorted(ratio[here], ratio[here] + 2 * MISTAKES.near * np.median(error[here]), side="right")
        first = int(np.argmax(ends - np.arange(len(here))))
        here = here[first : ends[first]]
        if len(here) > least:
            some = np.isin(np.arange(len(cols)), here)
            if _varied(cells, cols, some)[col]:
                yield _named(float(np.exp(np.median(ratio[here])))), some


def _unit_doubt(cells: Cells, name: str, some: Array, axis: int) -> Doubt:
    rows, cols = np.unique(cells.rows[some]), np.unique(cells.cols[some])
    where = "columns {columns}; rows {rows}" if axis == 1 else "rows {rows}; columns {columns}"
    template = (
        f"{np.count_nonzero(some)} outliers equal the expected value {name} within the noise ({where}): another unit, "
        "or a misplaced decimal point. Convert them and fit again"
    )
    return about_cells("other-unit", template, rows, cols)


# Of a result


def mistakes_of(result: Result, table: Engine) -> tuple[Mistakes | None, tuple[Doubt, ...]]:
    """The names of all outliers, and doubts; None where M is not in memory, or its outliers are too many to look at."""
    S = result.S
    if S is None or on_device(S) or result.failed or not _at_hand(table) or S.nnz > constants.BUDGET.sample:
        return None, ()
    if too_many(result):
        return Mistakes(("",), np.zeros(S.nnz, np.int32)), ()
    return kinds_of(outliers_of(result, table))


def too_many(result: Result) -> bool:
    """Whether so many cells are outliers that the fit is wrong, not they."""
    S: Any = result.S
    return bool(S.nnz > constants.MAX_OUTLIER_SHARE * result.n_observed and result.noise != 0)


def outliers_of(result: Result, table: Engine, broad: Array | None = None) -> Cells:
    """All cells of S, which is in host memory."""
    rows, cols = places(result.S)
    cols = cols.astype(np.int64)
    at_hand = table if _at_hand(table) else None
    return cells_of(result, rows, cols, table.entries(rows, cols), at_hand, broad)


def names_at(result: Result, rows: Array, cols: Array, observed: Array) -> Array:
    """The names of the cells of a list of outliers, "" of those that are not in S; without names of S from the list."""
    if result.failed:
        return np.full(len(rows), "", TEXT)
    if result.mistakes is None:
        return kinds_of(cells_of(result, rows, cols, observed))[0].texts
    S: Any = result.S
    at = find(S, rows, cols)
    texts: Array = np.where(at >= 0, np.append(result.mistakes.texts, "")[at], "")
    return texts


def _at_hand(table: Engine) -> bool:
    """Whether to look at more cells of a table costs next to nothing."""
    return table.name in ("memory", "reference") and bool(np.prod(table.shape) <= constants.BUDGET.memory)


def cells_of(
    result: Result, rows: Array, cols: Array, observed: Array, table: Engine | None = None, broad: Array | None = None
) -> Cells:
    """Some cells of a result; ``broad`` as :func:`broad_of` says, if that is known."""
    expected, latent, maps = result.L.entries(rows, cols), result.factors.entries(rows, cols), result.maps
    wrong, below = np.ones(len(rows)), ndtr
    broad = broad_of(result) if broad is None else broad
    if result.scale is None:
        unit = std = np.full(len(rows), result.residual)
    else:
        unit = result.scale.std_at(rows, cols)
        std = width(maps, latent, unit, cols)
        if result.calibration is not None:
            unit, below = replace(result.scale, tail=1.0).std_at(rows, cols), result.calibration.below
            residuals = (observed if maps is None else maps.latent(observed, cols)) - latent
            wrong = result.judge.probability(residuals, rows, cols)
    least = np.maximum(MISTAKES.rounding * np.maximum(np.abs(expected), np.abs(observed)), 1e-300)
    unit = np.maximum(unit, least) if maps is None else unit
    scatter = Scatter(latent, unit, broad[cols], wrong, cols, below, maps)
    return Cells(rows, cols, observed, expected, np.maximum(std, least), result.L.shape, table, scatter)


def broad_of(result: Result) -> Array:
    """The median size of the outliers of each column: that of all of them, in units of what is expected there."""
    left, V = result.factors.left, result.factors.right @ result.factors.core.T
    middle = left.mean(axis=0)
    variance = np.maximum(np.einsum("jk,jk->j", V @ (left.T @ left / len(left) - np.outer(middle, middle)), V), 0.0)
    spread = np.sqrt(variance + (0.0 if result.scale is None else np.median(result.scale.rows) * result.scale.cols))
    spread = np.maximum(spread, max(float(spread.max(initial=0.0)) * MISTAKES.rounding, 1e-300))
    if result.residuals is None or not result.residuals.nnz:
        return spread
    S = to_host(result.residuals, "the names of mistakes")
    return spread * float(np.median(np.abs(S.data) / spread[places(S)[1]]))
