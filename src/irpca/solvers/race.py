"""Candidate fits of the model from several starts, on a part of M that is small enough to try them all.

No single start works for every table. Each candidate is fitted to nine tenths of the entries and judged by how well it
predicts the others (:mod:`irpca.choice`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from .. import constants
from ..cached import cached_property
from ..choice import Candidate, HeldOut, choose
from ..factors import Fit, begin, moved, restricted
from ..lowrank import Array, LowRank
from ..noise import NoiseModel, with_piles
from ..sampling import children, in_memory

Tied = tuple[bool, bool]


@dataclass(frozen=True)
class Recipe:
    """How a candidate is fitted: whether features determine the factors, where it starts, and with which noise.

    Attributes
    ----------
    tied : for rows and columns: whether features determine the factors
    start : "columns" or "rows": from the median of each; "trimmed": from an earlier robust fit; or another recipe
    few : whether it has few components: cheap, and robust to a bad start
    afresh : whether the noise mixture is fitted again from new starts after some sweeps
    shifted : whether L starts shifted by the mode of the residuals: one-sided errors bias L, and the clean residuals
        are a narrow mode away from zero
    student : whether noise is Student's in place of the mixture: for gross errors that are not larger than the noise
    piles : whether entries with a value that occurs far too often (stuck, a code, a limit) are left out
    """

    tied: Tied
    start: str | Recipe = "columns"
    few: bool = False
    afresh: bool = True
    shifted: bool = False
    student: bool = False
    piles: bool = False

    @property
    def name(self) -> str:
        start = self.start if isinstance(self.start, str) else f"({self.start.name})"
        parts = ["features only" if any(self.tied) else "", "few directions" if self.few else "", f"from {start}"]
        parts += ["shifted" if self.shifted else "", "Student noise" if self.student else ""]
        parts += ["" if self.afresh else "noise not looked for afresh"]
        parts += ["without piled-up values" if self.piles else ""]
        return ", ".join(filter(None, parts))


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
    trimmed : a robust fit of M to start from, if there is one
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
    trimmed: LowRank | None = None
    fits: dict[Recipe, Fit] = field(default_factory=dict)

    @cached_property
    def piles(self) -> Array:
        return piled(self.values)

    def without(self, out: Array) -> Table:
        """The same table with some entries held out."""
        values = np.where(out, np.nan, self.values)
        return replace(self, values=values, fits={})

    def make(self, recipe: Recipe) -> Fit:
        """The fit of a recipe to this table; kept, since other recipes start from it."""
        if recipe in self.fits:
            return self.fits[recipe]
        fit = self.fits[recipe] = self._begun(recipe)
        fit.run(recipe.afresh and not recipe.student, constants.COMPARISON_TOLERANCE)
        if recipe.piles:
            fit.noise = with_piles(fit.noise, (self.values - fit.L.dense())[self.piles], fit.engine.n_observed)
        return fit

    def _begun(self, recipe: Recipe) -> Fit:
        """The fit of a recipe before its first sweep."""
        X = np.where(self.piles, np.nan, self.values) if recipe.piles else self.values
        nu = constants.STUDENT_DEGREES_OF_FREEDOM if recipe.student else np.inf
        if isinstance(recipe.start, Recipe):
            before = self.make(recipe.start)
            L0, s0 = before.L, constants.START_SCALE_FACTOR * before.noise.deviation
        else:
            L0 = self._start(X, recipe.start)
            q, k = constants.NOISE_STARTS[1 if recipe.start == "trimmed" else 0]  # that one is close, and robust
            s0 = 1.4826 * k * float(np.nanquantile(np.abs(X - L0.dense()), q))
        if recipe.shifted:
            shift, s0 = densest(X - L0.dense(), constants.MODE_SHARE)
            L0 = _plus(L0, shift)
        rows, cols = np.nonzero(np.isfinite(X))
        start, look = (np.random.default_rng(child) for child in children(self.seeds, 2))
        if len(rows) > constants.BUDGET.few:
            at = np.sort(look.choice(len(rows), constants.BUDGET.few, replace=False))
            rows, cols = rows[at], cols[at]
        sample = rows, cols, X[rows, cols]
        s0 = max(s0, constants.MIN_START_SCALE * float(np.std(sample[2])))
        directions = constants.SIMPLE_MODEL_RANK if recipe.few else self.offered
        model = NoiseModel(s0, self.least, np.ones(len(X)), np.ones(X.shape[1]), 0.0, nu=nu, target=self.noise)
        model = replace(model, s=max(s0, 10 * model.lowest))
        rank = self._rank(recipe)
        directions = directions if rank is None else rank
        fit = begin(in_memory(X), self.bases[recipe.tied], recipe.tied, L0, model, sample, directions, start)
        fit.directions = rank
        return fit

    def _rank(self, recipe: Recipe) -> int | None:
        """Number of components of a fit; None: chosen by the fit."""
        simplest = next(iter(self.bases))
        if not any(simplest) or any(recipe.tied):
            return self.rank
        if self.extra is None:
            return None
        explained = self.rank or self.make(Recipe(simplest)).principal().rank
        return min(explained + self.extra, *self.values.shape)

    def _start(self, X: Array, kind: str) -> LowRank:
        if kind == "trimmed":
            assert self.trimmed is not None
            return self.trimmed
        axis = 0 if kind == "columns" else 1
        middle = _medians(X, axis)[:, None]
        ones = np.ones((X.shape[axis], 1))
        return LowRank(ones, np.eye(1), middle) if axis == 0 else LowRank(middle, np.eye(1), ones)


def _plus(L: LowRank, shift: float) -> LowRank:
    """L with a constant added."""
    n1, n2 = L.shape
    left, right = np.hstack([L.left, np.full((n1, 1), shift)]), np.hstack([L.right, np.ones((n2, 1))])
    return LowRank(left, np.eye(L.rank + 1), right)


def _medians(X: Array, axis: int) -> Array:
    """Median of every line; where nothing is observed, of all entries."""
    seen = np.isfinite(X).any(axis=axis)
    found = np.full(X.shape[1 - axis], float(np.nanmedian(X)))
    found[seen] = np.nanmedian(X[:, seen] if axis == 0 else X[seen], axis=axis)
    return found


def densest(R: Array, share: float) -> tuple[float, float]:
    """The middle of the shortest interval that holds a share of the residuals, and half its width."""
    R = np.sort(R[np.isfinite(R)])
    h = max(int(share * len(R)), 2)
    if len(R) < h:
        return 0.0, 0.0
    width = R[h - 1 :] - R[: len(R) - h + 1]
    i = int(width.argmin())
    return float(np.median(R[i : i + h])), float(width[i]) / 2


def piled(X: Array) -> Array:
    """Entries with a value that occurs far more often than the others: a stuck value, a code, a limit.

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
class Comparison:
    """Candidate fits to a table from several starts, compared by held-out entries.

    Starts are tried with the simplest model first: features alone, or few components. The full model starts from the
    best of those, and from the column medians. Iterating makes the fits, and yields the best so far each time.

    Attributes
    ----------
    table, held : the table, and the entries held out of it
    ties : which sides may be tied to features, the simplest first
    short : whether only the full model is fitted, from few starts: many components take long
    winner : the recipe of the best fit, when all were tried
    tried : every fit that took part, by its recipe
    about : about how many fits there will be
    """

    table: Table
    held: HeldOut
    ties: list[Tied]
    short: bool = False
    winner: Recipe | None = None
    tried: dict[Recipe, Candidate] = field(default_factory=dict)

    @property
    def about(self) -> int:
        return (2 if self.table.piles.any() else 1) * (len(self._starts) + len(self.ties)) + 3

    @property
    def _starts(self) -> tuple[str, ...]:
        return ("columns", "rows") if self.table.trimmed is None else ("trimmed", "columns", "rows")

    def __iter__(self) -> Iterator[Fit]:
        table, ties = self.table, self.ties
        if self.short:
            yield from self._from_few_starts()
            return
        few = not any(ties[0]) and table.rank is None
        with_piles = (False, True) if table.piles.any() else (False,)
        for piles in with_piles:
            ends: list[Fit] = []
            for start in self._starts:
                first = Recipe(ties[0], start, few, piles=piles)
                fit = self._run(first)
                if self.held.nearly_exact(fit):
                    self.winner = first
                    return
                same = any(moved(fit.L, other.L) < constants.SAME_FIT_DISTANCE for other in ends)
                if first not in self.tried or same:
                    continue  # fits that start from this one were made already
                yield self._best_fit
                ends.append(fit)
                if fit.refitted:
                    self._run(replace(first, afresh=False))
                    yield self._best_fit
                middle, width = densest(table.values - fit.L.dense(), constants.MODE_SHARE)
                if abs(middle) > constants.MIN_MODE_OFFSET * width:
                    self._run(Recipe(ties[0], first, few, shifted=True, piles=piles))
                    yield self._best_fit
        for tied in ties[1:] or ties[:few]:
            for piles in with_piles:
                self._run(Recipe(tied, self._best(lambda recipe, piles=piles: recipe.piles == piles), piles=piles))  # type: ignore[misc]
                yield self._best_fit
            self._run(Recipe(tied, "columns", piles=self._best().piles))
            yield self._best_fit
        winner = self._best()
        if not winner.piles and table.piles.any() and _mostly_wrong(table, self.tried[winner].fit):
            self.tried = {recipe: candidate for recipe, candidate in self.tried.items() if recipe.piles}
            self.winner = self._best()
            return
        self._run(replace(winner, start=winner, shifted=False, student=True))
        yield self._best_fit
        if (student := self._best()).student:
            self._run(replace(student, start=student, student=False))
        self.winner = self._best()

    def _from_few_starts(self) -> Iterator[Fit]:
        for piles in (False, True) if self.table.piles.any() else (False,):
            for tied in self.ties:
                for start in self._starts[:-1]:
                    first = Recipe(tied, start, piles=piles)
                    if self.held.nearly_exact(self._run(first)):
                        self.winner = first
                        return
                    if self.tried:
                        yield self._best_fit
        self.winner = self._best()

    def _run(self, recipe: Recipe) -> Fit:
        fit = self.table.make(recipe)
        if recipe not in self.tried and np.isfinite(fit.L.left).all() and not (self.tried and fit.out_of_range):
            self.tried[recipe] = Candidate(recipe.name, fit, self.held.score(fit))
        return fit

    def _best(self, among: Callable[[Recipe], bool] = lambda recipe: True) -> Recipe:
        some = {candidate.name: recipe for recipe, candidate in self.tried.items() if among(recipe)}
        return some[choose(self.held, [self.tried[recipe] for recipe in some.values()])[0].name]

    @property
    def _best_fit(self) -> Fit:
        return self.tried[self._best()].fit


def _mostly_wrong(table: Table, fit: Fit) -> bool:
    """Whether most entries with a piled-up value are gross errors by this fit: then none of them is a measurement.

    Otherwise the few lines in which that value is the majority would be fitted to it.
    """
    noise = fit.noise
    scale = noise.s * np.sqrt(np.multiply.outer(noise.rows, noise.cols))
    far = np.abs(table.values - fit.L.dense()) > constants.MAX_CLEAN_RESIDUAL * scale
    return bool(far[table.piles].mean() > constants.MAJORITY)


def sub_table(
    shape: tuple[int, int], entries: float, share: float, least: tuple[int, int], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Random rows and columns with about as many observed entries; of the shorter side as many as possible.

    There are at least so many rows and columns, or all of them, as far as memory allows.
    """
    n1, n2 = shape
    cells = min(entries / share, n1 * n2, constants.BUDGET.memory)
    short = min(n1, n2, int(np.sqrt(cells)))
    long = min(max(n1, n2), int(cells / short))
    sizes = (short, long) if n1 <= n2 else (long, short)
    more = min(n1, max(sizes[0], least[0])), min(n2, max(sizes[1], least[1]))
    sizes = more if math.prod(more) <= constants.BUDGET.memory else sizes
    rows, cols = (np.sort(rng.choice(n, m, replace=False)) for n, m in zip(shape, sizes, strict=True))
    return rows, cols


def bases_of(bases: dict[Tied, tuple[Array, Array]], lines: tuple[Array, Array]) -> dict[Tied, tuple[Array, Array]]:
    """The bases of some rows and columns alone."""
    return {tied: (restricted(both[0], lines[0])[0], restricted(both[1], lines[1])[0]) for tied, both in bases.items()}
