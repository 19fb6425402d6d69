"""Candidate fits of the model from several starts, on a part of M that is small enough to try them all.

No single start works for every table. Each candidate is fitted to nine tenths of the entries and judged by how well it
predicts the others (:mod:`irpca.model.choice`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from .. import constants
from ..cached import cached_property
from ..lowrank import Array, LowRank
from ..model.choice import Candidate, HeldOut, choose
from ..model.factors import Fit, begin, moved
from ..model.noise import NoiseModel, with_piles
from ..model.peaks import find_mode, find_peak
from ..result import Certificate
from ..sample import children, in_memory

Tied = tuple[bool, bool]


@dataclass(frozen=True)
class Recipe:
    """How a candidate is fitted: whether features determine the factors, where it starts, and with which noise.

    Attributes
    ----------
    tied : for rows and columns: whether features determine the factors
    start : "columns": from their medians, with random components; "principal": from their medians, with the principal
        components of what these leave; "earlier": from the earlier fit of the table; or another recipe
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
    seeds : for random components, and for the entries by which the noise is looked for
    earlier : a fit of M to start from, if there is one: an exact search's, or the best with fewer components
    mapped : whether these are latent values: piled-up ones are as they should be, and rows have one noise
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
    seeds: np.random.SeedSequence
    earlier: LowRank | None = None
    mapped: bool = False
    fits: dict[Recipe, Fit] = field(default_factory=dict)

    @cached_property
    def piles(self) -> Array:
        """Which entries hold a value that occurs far too often."""
        return np.zeros(self.values.shape, bool) if self.mapped else find_piles(self.values)

    def hold_out(self, cells: Array) -> Table:
        """Return the same table without some cells."""
        return replace(self, values=np.where(cells, np.nan, self.values), fits={})

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
        rows, cols = np.nonzero(np.isfinite(X))
        start, look = (np.random.default_rng(child) for child in children(self.seeds, 2))
        if len(rows) > constants.BUDGET.few:
            at = np.sort(look.choice(len(rows), constants.BUDGET.few, replace=False))
            rows, cols = rows[at], cols[at]
        sample = rows, cols, X[rows, cols]
        s0 = max(s0, constants.MIN_START_SCALE * float(np.std(sample[2])), 10 * float(self.least.min()))
        ones = np.ones(len(X)), np.ones(X.shape[1])
        noise = NoiseModel(s0, self.least, *ones, 0.0, target=self.noise, equal_rows=self.mapped)
        rank = self._rank(recipe)
        components = (constants.SIMPLE_MODEL_RANK if recipe.few else self.offered) if rank is None else rank
        rng = None if recipe.start == "principal" else start
        fit = begin(in_memory(X), self.bases[recipe.tied], recipe.tied, L0, noise, sample, components, rng)
        fit.directions = rank
        return fit

    def _start(self, X: Array, recipe: Recipe) -> tuple[LowRank, float]:
        """Return where a recipe starts: L, and about its error."""
        if isinstance(recipe.start, Recipe):
            before = self.fits[recipe.start]
            L0, s0 = before.L, constants.START_SCALE_FACTOR * before.noise.deviation
        else:
            L0 = self.earlier if self.earlier is not None and recipe.start == "earlier" else _column_medians(X)
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


def _column_medians(X: Array) -> LowRank:
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


@dataclass(eq=False)
class Race:
    """Candidate fits to a table from several starts, compared by held-out entries.

    Starts are tried with the simplest model first: features alone, or few components. The full model starts from the
    best of those, and from the column medians. Iterating makes the fits, and yields the best so far each time.

    Attributes
    ----------
    table, held : the table, and the entries held out of it
    ties : which sides may be tied to features, the simplest first
    short : whether only the full model is fitted, from few starts: many components take long
    tried : every fit that took part, by its recipe
    winner : the recipe of the best fit, when all were tried
    """

    table: Table
    held: HeldOut
    ties: list[Tied]
    short: bool = False
    tried: dict[Recipe, Candidate] = field(default_factory=dict)
    winner: Recipe | None = None

    @property
    def about(self) -> int:
        """About how many fits there will be."""
        return len(self._with_piles) * (len(self._starts) + len(self.ties)) + 3

    @property
    def _starts(self) -> tuple[str, ...]:
        return ("columns",) if self.table.earlier is None else ("earlier", "columns")

    @property
    def _with_piles(self) -> tuple[bool, ...]:
        return (False, True) if self.table.piles.any() else (False,)

    def __iter__(self) -> Iterator[Fit]:
        for recipe in self._recipes():
            fit = self.table.fit(recipe)
            ran_away = not np.isfinite(fit.L.left).all() or (self.tried and fit.out_of_range)
            if recipe not in self.tried and not ran_away:
                self.tried[recipe] = Candidate(recipe.name, fit, self.held.score(fit))
            if self.held.nearly_exact(fit) and isinstance(recipe.start, str) and recipe.afresh:
                self.winner = recipe
                return
            if self.tried:
                yield self.tried[self.best()].fit
        self.winner = self.best()

    def _recipes(self) -> Iterator[Recipe]:
        """What is tried next, given what was found so far."""
        table, ties = self.table, self.ties
        if self.short:
            tries = product(self._with_piles, ties, self._starts)
            yield from (Recipe(tied, start, piles=piles) for piles, tied, start in tries)
            return
        few = not any(ties[0]) and table.rank is None
        for piles in self._with_piles:
            ends: list[Fit] = []
            for start in self._starts:
                first = Recipe(ties[0], start, few, piles=piles)
                yield first
                fit = table.fit(first)
                same = any(moved(fit.L, other.L) < 10 * constants.COMPARISON_TOLERANCE for other in ends)
                if first not in self.tried or same:
                    continue  # fits that start from this one were made already
                ends.append(fit)
                if fit.refitted:
                    yield replace(first, afresh=False)
                middle, width = find_mode(table.values - fit.L.dense(), constants.MODE_SHARE)
                if abs(middle) > constants.MIN_MODE_OFFSET * width:
                    yield Recipe(ties[0], first, few, shifted=True, piles=piles)
        for tied in ties[1:] or ties[:few]:
            for piles in self._with_piles:
                yield Recipe(tied, self.best(piles), piles=piles)
            yield Recipe(tied, "principal", piles=self.best().piles)
        winner = self.best()
        if not winner.piles and table.piles.any() and self._piles_are_wrong(winner):
            self.tried = {recipe: candidate for recipe, candidate in self.tried.items() if recipe.piles}

    def best(self, piles: bool | None = None) -> Recipe:
        """Return the recipe of the best fit; ``piles``: of those with this answer to whether piles are left out."""
        some = {c.name: recipe for recipe, c in self.tried.items() if piles is None or recipe.piles == piles}
        return some[choose(self.held, [self.tried[recipe] for recipe in some.values()])[0].name]

    def _piles_are_wrong(self, winner: Recipe) -> bool:
        """Whether most entries with a piled-up value are gross errors by a fit: then none of them is a measurement.

        Otherwise the few lines in which that value is the majority would be fitted to it.
        """
        fit = self.tried[winner].fit
        scale = fit.noise.s * np.sqrt(np.multiply.outer(fit.noise.rows, fit.noise.cols))
        far = np.abs(self.table.values - fit.L.dense()) > constants.MAX_CLEAN_RESIDUAL * scale
        return bool(far[self.table.piles].mean() > constants.MAJORITY)

    @cached_property
    def outcome(self) -> tuple[Candidate, list[Candidate]]:
        """The best fit, and those that predict held-out entries as well; when all were made."""
        best, tied = choose(self.held, list(self.tried.values()))
        best.fit.strict = best.fit.directions is None and self.held.strict(best.fit)
        return best, tied

    @property
    def certificate(self) -> Certificate:
        """How the choice was made."""
        scores = ((c.name, float(c.score.density.mean()), float(c.score.error.mean())) for c in self.tried.values())
        return Certificate(tuple(scores), self.outcome[0].name)
