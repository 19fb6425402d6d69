"""Mistakes that have a name: what would explain an outlier, and how probable that is.

Every kind of mistake says which value the cell should have held, so it explains the cell as well as this value fits
what is expected there (Bayes):

    odds(kind) = density of a clean cell at the corrected value / (|factor| · density of a wrong value of any size)

Wrong values are Cauchy about what is expected, of the median size of the outliers, or of any size (even in its
logarithm), half of them each. A copy of another cell leaves nothing to chance, so its odds are one over the share of
cells that would be equal anyway. Two neighbours that are swapped explain each other: their odds are multiplied. By
itself a cell has the kind that is more probable than all else, all kinds being equally likely before; the share of the
outliers that none explains is estimated from the table. What several cells of a row or column show together comes
first, and is a doubt, too: a code, a sensor that was stuck, a copied row, and another unit, which some unknown share of
the outliers of a line is in (the Bayes factor of that against none).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import logsumexp, ndtr

from . import constants
from .cached import cached_property
from .constants import KINDS, MISTAKES
from .engines.base import Engine
from .engines.sparse_part import on_device, places, to_host
from .lowrank import Array
from .model.entry_scale import REACH
from .model.maps import ColumnMaps
from .result import TEXT, Doubt, Mistakes, Result, about_cells
from .tables import find, width
from .wording import few

COMMON = {"× 10": 10.0, ": 10": 0.1, "× 100": 100.0, ": 100": 0.01, "× 1000": 1000.0, ": 1000": 0.001, "× 2.54": 2.54}
COMMON["sign"] = -1.0
DIGITS, BESIDE, ABOVE, SWAPPED = "digits swapped", "neighbour's value", "copied from above", "swapped"
SINGLE = (*COMMON, DIGITS, BESIDE, ABOVE, SWAPPED)  # that a cell may show by itself
NONE = "none of these"
SMALLEST_LISTED = 0.001  # probability of a mistake, and of a kind of it
MOST_DECIMALS = 6  # of a number whose digits are looked at: with more it is computed, not written
POINTS = (10.0, 100.0, 1000.0)  # a misplaced decimal point
UNITS = (2.54, 0.3048, 1.609344, 0.45359237, 60.0, 3600.0)  # inches, feet, miles, pounds, minutes, hours
SHARES = np.arange(0.05, 1.0, 0.1)  # of the outliers of a line, that may be in another unit


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
class OutlierCells:
    """Outliers, and the table that they are from.

    Attributes
    ----------
    rows, cols : positions
    observed, expected, std : M, what is expected there, and the standard deviation of clean cells about it
    shape : of M
    scatter : how clean and wrong cells scatter
    table : M, if it is in memory; None: no more of it is looked at than these cells
    """

    rows: Array
    cols: Array
    observed: Array
    expected: Array
    std: Array
    shape: tuple[int, int]
    scatter: Scatter
    table: Engine | None = None

    def find(self, rows: Array, cols: Array) -> Array:
        """Which of the outliers some cells are; −1: none."""
        return _find(self.rows, self.cols, rows, cols, self.shape)

    @cached_property
    def swaps(self) -> tuple[Array, Array]:
        """The outlier beside each one that it is most probably swapped with, and the odds of that; −1 and 0: none."""
        beside = [self.find(self.rows, self.cols + right) for right in (1, -1)]
        values = np.column_stack([np.where(other >= 0, self.observed[other], np.nan) for other in beside])
        fits = np.nan_to_num(self.scatter.odds(values, self.observed))
        both = np.column_stack([fits[:, k] * np.where(beside[k] >= 0, fits[beside[k], 1 - k], 0.0) for k in (0, 1)])
        best = both.argmax(axis=1)
        return np.where(best == 0, *beside), both.max(axis=1)

    @cached_property
    def odds(self) -> Array:
        """How much better every kind in SINGLE explains each cell than a wrong value of any size does."""
        odds, scatter, observed = np.zeros((len(self.rows), len(SINGLE))), self.scatter, self.observed
        if not (scatter.wrong > SMALLEST_LISTED).any():
            return odds
        factors = np.array(list(COMMON.values()))
        odds[:, : len(factors)] = (
            scatter.odds(observed[:, None] / factors, observed, factors) * (observed != 0)[:, None]
        )
        others = digit_swaps(observed)
        found, many = scatter.odds(others, observed), np.isfinite(others).sum(axis=1)
        odds[:, SINGLE.index(DIGITS)] = np.nansum(found, axis=1) / np.maximum(many, 1)
        for name, down, right in ((ABOVE, -1, 0), (BESIDE, 0, 1), (BESIDE, 0, -1)):
            odds[:, SINGLE.index(name)] += _copied(self, down, right)
        odds[:, SINGLE.index(SWAPPED)] = self.swaps[1]
        return odds

    @cached_property
    def chances(self) -> tuple[Array, float]:
        """The probability of every kind in SINGLE, one row for each outlier, and the share that none of them explains.

        What is missing to 1 in a row is the probability of none. The share is that of these cells, and of one more on
        either side.
        """
        odds, share = self.odds, 0.5
        for _ in range(constants.MAX_STEPS):
            before, chances = share, chances_of(odds, self.scatter.wrong, share)
            share = float(len(odds) - chances.sum() + 1) / (len(odds) + 2)
            if abs(share - before) < constants.COMPARISON_TOLERANCE:
                break
        return chances, share

    def column(self, col: int) -> Array:
        assert self.table is not None
        values: Array = self.table.block(np.arange(self.shape[0]), np.array([col]))[:, 0]
        return values


def _find(rows: Array, cols: Array, wanted_rows: Array, wanted_cols: Array, shape: tuple[int, int]) -> Array:
    """Which of some cells others are; −1: none."""
    keys, wanted = np.append(rows * shape[1] + cols, -1), wanted_rows * shape[1] + wanted_cols
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(rows))]
    inside = (wanted_rows >= 0) & (wanted_cols >= 0) & (wanted_cols < shape[1])
    return np.where(inside & (keys[at] == wanted), at, -1)


Found = Iterator[tuple[str, Array, Doubt | None]]  # a name, which outliers have it, and what is to be said of them


def kinds_of(cells: OutlierCells) -> tuple[Mistakes, tuple[Doubt, ...]]:
    """The name of the mistake of every outlier, and doubts about groups of them."""
    which, found, doubts = np.zeros(len(cells.rows), np.int32), {"": 0}, list[Doubt]()
    searches = (repeated, copied_rows, copies, other_units, by_themselves)  # the first name counts
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
    yield from zip(found.tolist(), np.split(some, starts[1:]), strict=False)


# One cell by itself


def by_themselves(cells: OutlierCells, free: Array, kinds: Sequence[str] = SINGLE) -> Found:
    chances = cells.chances[0]
    likely = np.where(chances.max(axis=1) > constants.MAJORITY, chances.argmax(axis=1), -1)
    for name in kinds:
        some = np.flatnonzero(free & (likely == SINGLE.index(name)))
        yield name, some, None


def copies(cells: OutlierCells, free: Array) -> Found:
    """Cells that hold what another one holds, or should hold."""
    for name, some, _ in by_themselves(cells, free, (SWAPPED, BESIDE, ABOVE)):
        yield name, some, None
        if name == SWAPPED:
            left = some[cells.cols[cells.swaps[0][some]] > cells.cols[some]]
            for col, here in _by_line(cells.cols, left):
                if len(here) >= MISTAKES.group:
                    template = (
                        f"in {len(here)} rows the cells of the columns {{columns}} are swapped (rows {{rows}}): each "
                        "holds what is expected of the other. Swap them back"
                    )
                    rows, both = np.sort(cells.rows[here]), np.array([col, col + 1])
                    yield name, here, about_cells("swapped", template, rows, both)


def chances_of(odds: Array, wrong: Array, nameless: float) -> Array:
    """Probabilities of kinds from their odds against a wrong value of any size, all kinds being equally likely before.

    ``wrong``: the probability that a cell is an outlier; ``nameless``: the share of outliers that no kind explains.
    """
    odds = odds * (1 - nameless) / len(SINGLE)
    none = nameless / np.maximum(wrong, 1e-300)  # nothing is wrong, or something else
    chances: Array = odds / (odds.sum(axis=1) + none)[:, None]
    return chances


def _copied(cells: OutlierCells, down: int, right: int) -> Array:
    """One over the share of cells that hold what the cell beside or above holds anyway; 0 where the cell does not."""
    odds, rows, cols = np.zeros(len(cells.rows)), cells.rows + down, cells.cols + right
    if cells.table is None:
        return odds
    inside = np.flatnonzero((rows >= 0) & (cols >= 0) & (cols < cells.shape[1]))
    same = inside[cells.table.entries(rows[inside], cols[inside]) == cells.observed[inside]]
    away, other = np.abs(cells.observed - cells.expected) / cells.std, cells.find(rows[same], cols[same])
    same = same[(other < 0) | (away[other] < away[same])]  # else the other is the copy
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
    possible = {DIGITS, SWAPPED, *FACTORS} | {name for name in names if _factor_of(name)}
    if kinds is True:
        return possible
    wanted = {kinds} if isinstance(kinds, str) else set(kinds or ())
    if wanted - possible:
        raise ValueError(
            f"kinds has {few(sorted(wanted - possible))}, which cannot be undone or is no kind of mistake; what can be "
            f"undone is {', '.join(map(repr, sorted(possible)))}"
        )
    return wanted


def _factor_of(name: str) -> tuple[float, float] | None:
    """The factor and the offset that a name tells."""
    if name in FACTORS:
        return FACTORS[name]
    found = re.fullmatch(r"([×:]) ([0-9.e+]+)", name)
    return found and (float(found[2]) if found[1] == "×" else 1 / float(found[2]), 0.0)


def undone(cells: OutlierCells, names: Array, kinds: set[str]) -> Array:
    """What cells held before mistakes of these kinds, by the names of their mistakes; NaN where that is not known."""
    found = np.full(len(names), np.nan)
    for name in kinds & set(names.tolist()):
        some = np.flatnonzero(names == name)
        if name == DIGITS:
            values = digit_swaps(cells.observed)
            best = np.nan_to_num(cells.scatter.odds(values, cells.observed)).argmax(axis=1)
            found[some] = values[some, best[some]]
        elif name == SWAPPED:
            other = cells.swaps[0][some]
            found[some] = np.where(other >= 0, cells.observed[other], np.nan)
        elif factor := _factor_of(name):
            found[some] = (cells.observed[some] - factor[1]) / factor[0]
    return found


# Rows that are equal


def copied_rows(cells: OutlierCells, free: Array) -> Found:
    """Rows that share most of their values with one other row, and with no third."""
    n1, n2 = cells.shape
    if cells.table is None:
        return
    looked = np.unique(np.linspace(0, n2 - 1, min(n2, MISTAKES.columns)).astype(int))
    pairs, counts = np.unique(np.concatenate([_twice(cells.column(col)) for col in looked]), axis=0, return_counts=True)
    pairs = pairs[(counts >= MISTAKES.group) & (counts > constants.MAJORITY * len(looked))]
    if len(pairs):
        doubt = about_cells(
            "copied-row",
            f"{pairs.size} rows are equal two by two, in values that no other row has: {{rows}}. One of each pair may "
            "be a copy: look at both, and leave one out",
            pairs.ravel(),
        )
        outliers = np.bincount(cells.rows, minlength=n1)[pairs]
        copied = np.where(outliers[:, 0] > outliers[:, 1], pairs[:, 0], pairs[:, 1])
        yield "copied row", np.flatnonzero(free & np.isin(cells.rows, copied)), doubt


def _twice(values: Array) -> Array:
    """Pairs of rows that share a value which no other row has, the first first."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    same = np.concatenate([[False], ordered[1:] == ordered[:-1], [False]])  # as the one before
    at = np.flatnonzero(same[1:-1] & ~same[:-2] & ~same[2:])
    return np.column_stack([order[at], order[at + 1]])


# One value again and again


def repeated(cells: OutlierCells, free: Array) -> Found:
    """Values that several outliers share, and few other cells: sensors that were stuck, and codes."""
    if cells.table is None:
        return
    values, which, counts = np.unique(cells.observed, return_inverse=True, return_counts=True)
    free, codes = free.copy(), dict[int, list[Array]]()
    for col, here in _by_line(cells.cols, np.arange(len(free))):
        column = cells.column(col).astype(float)
        ends = np.concatenate([[0], np.flatnonzero(column[1:] != column[:-1]) + 1, [len(column)]])
        long = np.diff(ends) >= MISTAKES.group
        for first, end in zip(ends[:-1][long].tolist(), ends[1:][long].tolist(), strict=True):
            some = here[(cells.rows[here] >= first) & (cells.rows[here] < end)]
            if _is_stuck(cells, column, first, end, some):
                free[some] = False
                template = (
                    f"column {{columns}} holds the same value, {column[first]:.6g}, in {end - first} rows in a row, "
                    "from {row} on, where other values are expected: a sensor that was stuck, or gaps that were "
                    "filled. Set them to NaN and fit again"
                )
                yield "stuck", some, about_cells("stuck", template, np.arange(first, end), np.array([col]))
        far, ordered = _far_outside(column, cells.rows[here])
        for k, some in _by_line(which, here[far & free[here] & (counts[which[here]] >= MISTAKES.group)]):
            most = not ordered and len(some) > constants.MAJORITY * np.count_nonzero(far)
            nines = re.fullmatch(r"-?99+", f"{values[k]:.15g}") is not None
            if (most or nines) and len(some) > constants.MAJORITY * np.count_nonzero(column == values[k]):
                codes.setdefault(k, []).append(some)
    for k, found in codes.items():
        some, name = np.concatenate(found), f"{values[k]:g}"
        if len(some) >= MISTAKES.group:
            template = (
                f"{len(some)} outliers are exactly {name}, far from all other values (columns {{columns}}): a code for "
                "missing, or a limit of the instrument. Set them to NaN and fit again"
            )
            yield f"code {name}", some, about_cells("code", template, np.unique(cells.rows[some]), cells.cols[some])


def _far_outside(column: Array, outliers: Array) -> tuple[Array, bool]:
    """Which outliers of a column are farther from all clean cells than half of these are apart; and whether clean cells
    hold but few values, of which the rarest may be far away: then farther than all of these are.
    """
    clean = np.delete(column, outliers)
    clean = clean[np.isfinite(clean)]
    if not len(clean):
        return np.zeros(len(outliers), bool), False
    low, first, third, high = np.quantile(clean, (0.0, 0.25, 0.75, 1.0))
    ordered = len(np.unique(clean)) <= KINDS.few
    away = np.maximum(low - column[outliers], column[outliers] - high)
    return away > (high - low if ordered else third - first), ordered


def _is_stuck(cells: OutlierCells, column: Array, first: int, end: int, some: Array) -> bool:
    """Whether a run of one value, in which some cells are outliers, is improbable, and not what is expected."""
    n, length = len(column), end - first
    if len(some) < constants.MAJORITY * length:
        return False
    same = np.count_nonzero(column[1:] == column[:-1]) - (length - 1)
    held = np.count_nonzero(column == column[first]) - length
    log_chance = (length - 1) * np.log((max(same, held) + 1) / (n - length + 1)) + np.log(n * cells.shape[1])
    varies = np.ptp(cells.expected[some]) > 2 * REACH * np.median(cells.std[some])
    return bool(varies and log_chance < np.log(MISTAKES.chance))


# Another unit


def other_units(cells: OutlierCells, free: Array) -> Found:
    """Cells of one column, or of one row, that one factor brings to what is expected.

    Of the outliers of a line any share may be in another unit, or none: the Bayes factor of the two has to be beyond
    chance. Beside the known factors there is one of each column, which most of its outliers share.
    """
    observed, free = cells.observed.astype(float), free.copy()
    factors = [*(np.full(len(free), factor) for factor, _ in KNOWN.values()), _shared_ratio(cells)]
    odds = np.zeros((len(factors), len(free)))
    for k, (factor, (_, offset)) in enumerate(zip(factors, [*KNOWN.values(), (np.nan, 0.0)], strict=True)):
        values = (observed - offset)[:, None] / factor[:, None]
        odds[k] = np.nan_to_num(cells.scatter.odds(values, observed, factor[:, None])[:, 0])
    odds *= (1 - cells.chances[0].sum(axis=1)) / cells.chances[1]  # against all other explanations
    points = 2 * len(POINTS)  # the first ones; others are nearer to 1, where tails of the noise reach
    odds[points:, np.abs(observed - cells.expected) < 2 * constants.REPORTED_THRESHOLD * cells.std] = 0.0
    for axis, lines in ((1, cells.cols), (0, cells.rows)):
        kinds = odds[: len(KNOWN) + axis]
        total = np.array([_evidence(np.where(free, kind, 1.0), lines) for kind in kinds])
        total[len(KNOWN) :] -= np.log(np.maximum(np.bincount(lines), 1))  # any of their ratios could be the factor
        found = np.argwhere(total > np.log(total.size / MISTAKES.chance))
        for k, line in found[np.argsort(-total[tuple(found.T)])].tolist():
            here = np.flatnonzero((lines == line) & free)
            q = SHARES[np.log1p(np.outer(SHARES, odds[k, here] - 1)).sum(axis=1).argmax()]
            some = here[q * odds[k, here] > 1 - q]
            if len(some) < max(MISTAKES.group, 0 if k < points else 1 + constants.MAJORITY * len(here)):
                continue
            one = float(factors[k][some[0]])
            name = (*KNOWN, _named(one))[k]
            with_it = observed[some] - one * cells.expected[some]
            if name in ("× 1", ": 1") or 2 * with_it.std() > (observed[some] - cells.expected[some]).std():
                continue  # to add a constant would do nearly as well
            free[some] = False
            where = "columns {columns}; rows {rows}" if axis == 1 else "rows {rows}; columns {columns}"
            template = (
                f"{len(some)} outliers equal the expected value {name} within the noise ({where}): another unit, or a "
                "misplaced decimal point. Convert them and fit again"
            )
            both = np.unique(cells.rows[some]), np.unique(cells.cols[some])
            yield name, some, about_cells("other-unit", template, *both)


def _evidence(odds: Array, lines: Array) -> Array:
    """The logarithm of the Bayes factor of each line: of some share of its outliers being of a kind, against none."""
    logs = [np.bincount(lines, np.log1p(share * (odds - 1))) for share in SHARES]
    found: Array = logsumexp(logs, axis=0) - np.log(len(SHARES))
    return found


def _shared_ratio(cells: OutlierCells) -> Array:
    """The ratio to what is expected that half of the outliers of each column are nearest to; NaN without one."""
    found = np.full(len(cells.cols), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(cells.observed / cells.expected)
    for _, here in _by_line(cells.cols, np.flatnonzero(np.isfinite(ratio))):
        ordered, half = np.sort(ratio[here]), len(here) // 2 + 1
        first = int(np.argmin(ordered[half - 1 :] - ordered[: len(here) - half + 1]))
        found[here] = np.exp(np.median(ordered[first : first + half]))
    return found


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


def outliers_of(result: Result, table: Engine, broad: Array | None = None) -> OutlierCells:
    """All cells of S, which is in host memory; none if there is no S, or if they are too many to look at."""
    S: Any = result.S if result.S is not None and result.S.nnz <= constants.BUDGET.sample else csr_array(result.L.shape)
    rows, cols = places(S)
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
    texts: Array = np.append(result.mistakes.texts, "")[find(S, rows, cols)]
    return texts


def _at_hand(table: Engine) -> bool:
    """Whether to look at more cells of a table costs next to nothing."""
    return table.name in ("memory", "reference") and bool(np.prod(table.shape) <= constants.BUDGET.memory)


def cells_of(
    result: Result, rows: Array, cols: Array, observed: Array, table: Engine | None = None, broad: Array | None = None
) -> OutlierCells:
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
    return OutlierCells(rows, cols, observed, expected, np.maximum(std, least), result.L.shape, scatter, table)


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
