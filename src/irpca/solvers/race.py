"""Candidate fits of the model from several starts, on a part of M that is small enough to try them all.

No single start works for every table. Candidates are fitted to all entries but those of a fold, and judged by how well
they predict these (:mod:`irpca.model.choice`). If several differ and are as good, so are further folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from .. import constants
from ..model.choice import Candidate, HeldOut, Score, choose, is_strict, worse
from ..model.factors import Fit, moved
from ..model.peaks import find_mode
from ..result import Certificate
from .recipes import Folds, Recipe, Table, Tied


@dataclass(eq=False)
class Race:
    """Candidate fits to a table from several starts, compared by the entries of a fold and, where that settles nothing,
    of further ones.

    Starts are tried with the simplest model first: features alone, or few components. The full model starts from the
    best of those, and from the column medians. Iterating makes the fits, and yields the best so far each time.

    Attributes
    ----------
    folds : of the table
    ties : which sides may be tied to features, the simplest first
    short : whether only the full model is fitted, from few starts: many components take long
    tried : every fit that took part, by its recipe
    winner : the recipe of the best fit, when all were tried
    """

    folds: Folds
    ties: list[Tied]
    short: bool = False
    tried: dict[Recipe, Candidate] = field(default_factory=dict)
    winner: Recipe | None = None

    @property
    def table(self) -> Table:
        """What fits are made to."""
        return self.folds.first[0]

    @property
    def held(self) -> HeldOut:
        """What they are compared by first."""
        return self.folds.first[1]

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
        yield from self._settle()

    def _recipes(self) -> Iterator[Recipe]:
        """What is tried next, given what was found so far."""
        table, ties = self.table, self.ties
        if self.short:
            tries = product(self._with_piles, ties, self._starts)
            yield from (Recipe(tied, start, piles=piles) for piles, tied, start in tries)
            return
        few = not any(ties[0]) and table.rank is None
        for piles in self._with_piles:
            if few:
                yield Recipe(ties[0], piles=piles)
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
                yield Recipe(tied, self.best(few, piles), piles=piles)
            if not few:
                yield Recipe(tied, piles=self.best().piles)
        winner = self.best()
        if not winner.piles and table.piles.any() and self._piles_are_wrong(winner):
            self.tried = {recipe: candidate for recipe, candidate in self.tried.items() if recipe.piles}

    def best(self, few: bool | None = None, piles: bool | None = None) -> Recipe:
        """Return the recipe of the best fit; of those with few components, or without piled-up values, if so asked."""
        some = {
            c.name: recipe
            for recipe, c in self.tried.items()
            if few in (None, recipe.few) and piles in (None, recipe.piles)
        }
        return some[choose(self.held, [self.tried[recipe] for recipe in some.values()])[0].name]

    def _settle(self) -> Iterator[Fit]:
        """Take the simplest of the fits that are as good as the best.

        It has the fewest components and, of as many, the fewest fits before it: one from the columns depends on no
        random start. If it is worse by little, it is compared with the best by further folds.
        """
        best, tied = choose(self.held, list(self.tried.values()))
        ranks = {c.name: (c.fit.principal().rank, len(recipe.lineage)) for recipe, c in self.tried.items()}
        alike = [c for c in self.tried.values() if c.complexity == best.complexity]
        simplest = min(alike, key=lambda c: ranks[c.name])
        recipes = {c.name: recipe for recipe, c in self.tried.items()}
        held, pair = self.held, [simplest, best]
        for k in range(1, constants.FOLDS):
            ahead = worse(best.score.density, simplest.score.density)
            if simplest in tied or ahead > constants.SIGNIFICANT_STANDARD_ERRORS:
                break
            held = HeldOut.joined([held, self.folds.held[k]])
            for at, c in enumerate(pair):
                fit = self.folds.tables[k].fit(recipes[c.name])
                pair[at] = replace(c, score=Score.joined([c.score, self.folds.held[k].score(fit)]))
                yield best.fit
            simplest, best = pair
            tied = choose(held, pair)[1]
        chosen = simplest if simplest in tied else best
        self.winner = recipes[chosen.name]
        chosen.fit.strict = is_strict([self.held], [chosen.fit])

    def _piles_are_wrong(self, winner: Recipe) -> bool:
        """Whether most entries with a piled-up value are gross errors by a fit: then none of them is a measurement.

        Otherwise the few lines in which that value is the majority would be fitted to it.
        """
        fit = self.tried[winner].fit
        scale = fit.noise.s * np.sqrt(np.multiply.outer(fit.noise.rows, fit.noise.cols))
        far = np.abs(self.table.values - fit.L.dense()) > constants.MAX_CLEAN_RESIDUAL * scale
        return bool(far[self.table.piles].mean() > constants.MAJORITY)

    @property
    def best_candidate(self) -> Candidate:
        """The best fit, to all but the first fold, when all were made."""
        assert self.winner is not None
        return self.tried[self.winner]

    @property
    def certificate(self) -> Certificate:
        """How the choice was made."""
        scores = ((c.name, float(c.score.density.mean()), float(c.score.error.mean())) for c in self.tried.values())
        return Certificate(tuple(scores), self.best_candidate.name)
