"""How a candidate fit is made of a part of M: recipes, and the tables that they are fitted to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .. import constants
from ..cached import cached_property
from ..lowrank import Array, LowRank
from ..model.choice import HeldOut
from ..model.factors import Fit, begin
from ..model.maps import ColumnMaps
from ..model.noise import NoiseModel, with_piles
from ..model.peaks import find_mode, find_peak
from ..sample import children, in_memory

Tied = tuple[bool, bool]


@dataclass(frozen=True)
class Recipe:
    """How a candidate is fitted: whether features determine the factors, where it starts, and with which noise.

    Attributes
    ----------
    tied : for rows and columns: whether features determine the factors
    start : "columns": from their medians; "earlier": from the earlier fit of the table; or another recipe
    few : whether it has few components: cheap, and robust to a bad start
    afresh : whether the noise mixture is fitted anew, from the peak of the residuals, after some sweeps
    shifted : whether L starts shifted by the mode of the residuals: one-sided errors bias L, and the clean residuals
        are a narrow mode away from zero
    piles : whether entries with a value that occurs far too often (stuck, a code, a limit) are left out
    """

    tied: Tied
    start: str | Recipe = "columns"
    few: bool = False
    afresh: bool = True
    shifted: bool = False
    piles: bool = False

    @property
    def name(self) -> str:
        start = self.start if isinstance(self.start, str) else f"({self.start.name})"
        parts = ["features only" if any(self.tied) else "", "few directions" if self.few else "", f"from {start}"]
        parts += ["shifted" if self.shifted else "", "" if self.afresh else "noise not looked for afresh"]
        parts += ["without piled-up values" if self.piles else ""]
        return ", ".join(filter(None, parts))

    @property
    def random(self) -> bool:
        """Whether new components are random; else they are the principal ones of what column medians leave."""
        return self.few or self.start != "columns"

    @property
    def lineage(self) -> list[Recipe]:
        """The recipes that this one starts from, the first of them first, and itself."""
        return [*(self.start.lineage if isinstance(self.start, Recipe) else ()), self]


@dataclass(eq=False)
class Table:
    """A part of M in memory, in units of its columns.

    Attributes
    ----------
    values : array with NaN where nothing is observed
    lines : rows and columns of M it consists of
    bases : for each side, a basis of the features of those lines, by whether the sides are tied; simplest first
    least : lower bound of the noise scale, for each column
    rank, extra : number of components that features explain, and of others; None: to be chosen
    noise : its standard deviation, if it is known
    offered : number of components that a fit begins with where it is to choose
    order : of the rows by what they hold: what is random goes by it, so that it is the same in another order
    seed : of what is random: new components, and the entries by which the noise is looked for
    earlier : a fit of M to start from, if there is one: an exact search's, or the best with fewer components
    maps : of all columns of M, if these are latent values: piled-up ones are as they should be, and rows have one noise
    fits : those that were made
    """

    values: Array
    lines: tuple[Array, Array]
    bases: dict[Tied, tuple[Array, Array]]
    least: Array
    rank: int | None
    extra: int | None
    noise: float | None
    offered: int
    order: Array
    seed: np.random.SeedSequence
    earlier: LowRank | None = None
    maps: ColumnMaps | None = None
    fits: dict[Recipe, Fit] = field(default_factory=dict)

    @cached_property
    def piles(self) -> Array:
        """Which entries hold a value that occurs far too often."""
        return np.zeros(self.values.shape, bool) if self.maps is not None else find_piles(self.values)

    def hold_out(self, cells: Array) -> Table:
        """Return the same table without some cells."""
        return replace(self, values=np.where(cells, np.nan, self.values), fits={})

    def entries(self, rows: Array, cols: Array) -> HeldOut:
        """Return some entries, as those that fits are judged by."""
        values, least, maps = self.values[rows, cols], self.least[cols], self.maps
        if maps is None:
            return HeldOut(rows, cols, values, 10 * least)
        columns = self.lines[1][cols]
        slope = maps.log_slope(maps.observed(values, columns), columns)
        return HeldOut(rows, cols, values, least, slope, maps.interval(values, columns))

    def fit(self, recipe: Recipe) -> Fit:
        """Return the fit of a recipe to this table, after those that it starts from; all of them are kept."""
        for one in recipe.lineage:
            if one not in self.fits:
                fit = self.fits[one] = self._begin(one)
                fit.run(one.afresh, constants.COMPARISON_TOLERANCE)
                if one.piles:
                    fit.noise = with_piles(fit.noise, (self.values - fit.L.dense())[self.piles], fit.engine.n_observed)
        return self.fits[recipe]

    def _begin(self, recipe: Recipe) -> Fit:
        """Return the fit of a recipe before its first sweep."""
        X = np.where(self.piles, np.nan, self.values) if recipe.piles else self.values
        L0, s0 = self._start(X, recipe)
        rows, cols = _entries(X, self.order)
        start, look = (np.random.default_rng(child) for child in children(self.seed, 2))
        if len(rows) > constants.BUDGET.few:
            at = np.sort(look.choice(len(rows), constants.BUDGET.few, replace=False))
            rows, cols = rows[at], cols[at]
        sample = rows, cols, X[rows, cols]
        s0 = max(s0, constants.MIN_START_SCALE * float(np.std(sample[2])), 10 * float(self.least.min()))
        ones = np.ones(len(X)), np.ones(X.shape[1])
        noise = NoiseModel(s0, self.least, *ones, 0.0, target=self.noise, equal_rows=self.maps is not None)
        rank = self._rank(recipe)
        components = (constants.SIMPLE_MODEL_RANK if recipe.few else self.offered) if rank is None else rank
        rng = start if recipe.random else None
        fit = begin(in_memory(X), self.bases[recipe.tied], recipe.tied, L0, noise, sample, components, rng)
        fit.directions = rank
        return fit

    def _start(self, X: Array, recipe: Recipe) -> tuple[LowRank, float]:
        """Return where a recipe starts: L, and about its error."""
        if isinstance(recipe.start, Recipe):
            before = self.fits[recipe.start]
            L0, s0 = before.L, constants.START_SCALE_FACTOR * before.noise.deviation
        else:
            L0 = self.earlier if self.earlier is not None and recipe.start == "earlier" else column_medians(X)
            sizes = np.abs(X - L0.dense())
            sizes = sizes[np.isfinite(sizes)]
            s0 = 1.4826 * float(np.median(sizes))
            if recipe.start == "earlier":  # that one is close, and robust
                s0 = min(s0, 2 * find_peak(sizes, float(self.least.min())).deviation)
        if recipe.shifted:
            shift, s0 = find_mode(X - L0.dense(), constants.MODE_SHARE)
            (n1, n2), ones = L0.shape, np.ones
            left, right = np.hstack([L0.left, shift * ones((n1, 1))]), np.hstack([L0.right, ones((n2, 1))])
            L0 = LowRank(left, np.eye(L0.rank + 1), right)
        return L0, s0

    def _rank(self, recipe: Recipe) -> int | None:
        """Return the number of components of a fit; None: chosen by the fit."""
        simplest = next(iter(self.bases))
        if not any(simplest) or any(recipe.tied):
            return self.rank
        if self.extra is None:
            return None
        explained = self.rank or self.fit(Recipe(simplest)).principal().rank
        return min(explained + self.extra, *self.values.shape)


@dataclass(frozen=True, eq=False)
class Folds:
    """A table with its entries in folds, each of which is held out once.

    Attributes
    ----------
    table : Table
    rows, cols : arrays of int
        Positions of its entries.
    which : array of int
        The fold of each.
    """

    table: Table
    rows: Array
    cols: Array
    which: Array

    @classmethod
    def of(cls, table: Table) -> Folds:
        rows, cols = _entries(table.values, table.order)
        rng = np.random.default_rng(children(table.seed, 3)[2])
        return cls(table, rows, cols, rng.permutation(len(rows)) % constants.FOLDS)

    def at(self, k: int) -> tuple[Array, Array]:
        """The entries of a fold."""
        some = self.which == k
        return self.rows[some], self.cols[some]

    @cached_property
    def tables(self) -> list[Table]:
        """The table without each of the folds."""
        folds = np.full(self.table.values.shape, -1)
        folds[self.rows, self.cols] = self.which
        return [self.table.hold_out(folds == k) for k in range(constants.FOLDS)]

    @cached_property
    def first(self) -> tuple[Table, HeldOut]:
        """The table without the first fold, and that fold; where entries are few, all of them, twice."""
        if np.count_nonzero(self.which == 0) < constants.BUDGET.fewest:
            return self.table, self.table.entries(self.rows, self.cols)
        return self.tables[0], self.held[0]

    @cached_property
    def held(self) -> list[HeldOut]:
        """The entries of each fold, by which fits to the others are judged."""
        return [self.table.entries(*self.at(k)) for k in range(constants.FOLDS)]


def _entries(X: Array, order: Array) -> tuple[Array, Array]:
    """Return the positions of all entries, row after row in that order."""
    rows, cols = np.nonzero(np.isfinite(X[order]))
    return order[rows], cols


def column_medians(X: Array) -> LowRank:
    """Return the medians of the columns as a matrix; where nothing is observed, that of all entries."""
    seen = np.isfinite(X).any(axis=0)
    middle = np.full((X.shape[1], 1), float(np.nanmedian(X)))
    middle[seen, 0] = np.nanmedian(X[:, seen], axis=0)
    return LowRank(np.ones((len(X), 1)), np.eye(1), middle)


def find_piles(X: Array) -> Array:
    """Mark entries with a value that occurs far more often than the others: a stuck value, a code, a limit.

    Where all values are frequent, as with ratings and counts, none of them is meant.
    """
    seen = np.isfinite(X)
    values, which, counts = np.unique(X[seen], return_inverse=True, return_counts=True)
    often = np.zeros(len(values), bool)
    for k in np.nonzero(counts > constants.MIN_REPEATED_SHARE * counts.sum())[0]:
        others = np.sort(np.delete(counts, k))
        usual = others[np.searchsorted(np.cumsum(others), others.sum() / 2)] if len(others) else counts[k]
        often[k] = counts[k] > constants.MIN_REPEATED_RATIO * usual
    cells = np.zeros(X.shape, bool)
    cells[seen] = often[which]
    return cells
