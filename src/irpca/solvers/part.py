"""The part of M on which candidate fits are compared, and how a fit to it becomes one to all of M."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import constants
from ..arguments import number, whole_or_auto
from ..durable import digest
from ..engines.base import COMPONENTS, Engine, Look
from ..lowrank import Array, LowRank
from ..model.choice import Candidate, HeldOut
from ..model.columns import Columns
from ..model.entry_scale import EntryScale
from ..model.factors import Fit, basis_of, restricted
from ..problem import Problem
from ..sample import scattered
from .recipes import Folds, Table, Tied, column_medians
from .trimmed import Exactness, exactness, extend, sharpen


@dataclass(frozen=True, eq=False)
class Setup:
    """The problem, and what is asked of the model beside the rank.

    Attributes
    ----------
    problem : Problem
    extra : number of components in addition to those that features explain; None: to be chosen
    noise : its standard deviation, if it is known
    imperfect : whether L is known not to be exactly what features say
    """

    problem: Problem
    extra: int | None
    noise: float | None
    imperfect: bool

    @classmethod
    def of(cls, problem: Problem, extra_rank: int | str, noise: float | None, imperfect: bool) -> Setup:
        """Refuse what makes no sense; bring a small M that is far away into memory, since it will be read often."""
        extra_rank = check_options(problem, extra_rank, noise)
        extra = None if isinstance(extra_rank, str) else extra_rank
        return cls(problem.brought_near(), extra, noise, imperfect and extra != 0)

    @property
    def ties(self) -> list[Tied]:
        """Which sides may be determined by features, the simplest model first."""
        free: Tied = (False, False)
        if not any(self.problem.given) or self.imperfect:
            return [free]
        return [self.problem.given] if self.extra == 0 else [self.problem.given, free]

    def part(self, offered: int, start: LowRank | None, like: Table | None = None) -> Part:
        """Return the part on which so many components are compared, with a fit of all of M to start from.

        What is random there follows from its values, or from those of a table that is to be compared with it.
        """
        problem = self.problem
        engine, (F1, F2), columns = problem.engine, problem.features, problem.columns
        rows, cols = lines = lines_of_part(problem, offered, engine.counts)
        unit = columns.unit[cols]
        bases = {tied: (basis_of(F1, tied[0]), basis_of(F2, tied[1], columns.unit)) for tied in self.ties}
        here = {tied: (restricted(both[0], rows)[0], restricted(both[1], cols)[0]) for tied, both in bases.items()}
        values, least = engine.block(rows, cols) / unit, columns.least[cols]
        first = start and LowRank(start.left[rows], start.core, start.right[cols] / unit[:, None])
        options = problem.rank, self.extra, self.noise, offered
        order, seed = (np.lexsort(values.T[::-1]), _seed_of(values)) if like is None else (like.order, like.seed)
        table = Table(values, lines, here, least, *options, order, seed, first, problem.maps)
        return Part(self, Folds.of(table), bases)


def check_options(problem: Problem, extra_rank: int | str, noise: float | None) -> int | str:
    """Refuse what makes no sense; return the number of additional components, or "auto"."""
    n1, n2 = problem.shape
    extra_rank = whole_or_auto(extra_rank, "extra_rank")
    if noise is not None and not 0 <= number(noise, "noise") < np.inf:
        raise ValueError(
            f"noise must be the standard deviation of the noise, a finite number of at least 0, or None; got {noise!r}"
        )
    if not isinstance(extra_rank, str) and not 0 <= extra_rank < min(n1, n2):
        raise ValueError(
            f"extra_rank={extra_rank} is out of range for a {n1} × {n2} table: choose a number from 0 to "
            f"{min(n1, n2) - 1}, or 'auto'"
        )
    return extra_rank


def _seed_of(values: Array) -> np.random.SeedSequence:
    """Return a seed that is the same for the same values in another order."""
    return np.random.SeedSequence(int(digest(np.sort(values[np.isfinite(values)])), 16))


def lines_of_part(problem: Problem, offered: int, counts: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
    """Return scattered rows and columns on which so many components are compared, of those that have entries.

    Of the shorter side as many as possible. Features explain anything if there are about as many of them as lines, and
    so do components: there are some lines for each, as far as memory allows. Without ``counts``, as if every entry
    were observed.
    """
    first, rank, most = constants.FIRST_COMPONENTS, problem.rank, constants.BUDGET.memory
    filled = [np.arange(n) for n in problem.shape] if counts is None else [np.flatnonzero(some) for some in counts]
    n1, n2 = map(len, filled)
    share = 1.0 if counts is None else float(counts[0].sum()) / (n1 * n2)
    entries = constants.BUDGET.race * min(max(first / offered, 1.0), constants.BUDGET.wider)
    entries *= 1.0 if share > 0.5 else constants.BUDGET.wider
    cells = min(entries / share, n1 * n2, most)
    short = min(n1, n2, int(np.sqrt(cells)))
    long = min(max(n1, n2), int(cells / short))
    sizes = (short, long) if n1 <= n2 else (long, short)
    expected = rank or (offered if offered > first else 0)
    many = constants.LINES_PER_COMPONENT * expected if expected > constants.USED_UP * first else 0
    least = [max(constants.COMPARED_LINES_PER_FEATURE * F.d if F.given else 0, many) for F in problem.features]
    more = min(n1, max(sizes[0], least[0])), min(n2, max(sizes[1], least[1]))
    sizes = more if math.prod(more) <= most else sizes
    rows, cols = (lines[scattered(len(lines), m)] for lines, m in zip(filled, sizes, strict=True))
    return rows, cols


def scale_of(fit: Fit, unit: Array) -> tuple[EntryScale, Array]:
    """Return the scales of noise and uncertainty of L, in units of M, and ``fit.line_variances(1)``; two reads."""
    noise, square = fit.noise.capped(unit**2).for_engine(*fit.spreads), unit**2
    rows, cols = fit.line_variances(0), fit.line_variances(1)
    row_spread = np.hstack([rows, fit.rows.mean[:, : cols.shape[1]] ** 2])
    col_spread = np.hstack([fit.cols.mean[:, : rows.shape[1]] ** 2, cols]) * square[:, None]
    tail = fit.noise.tail if fit.noise.target is None else float(fit.noise.target / fit.noise.s)
    return EntryScale(noise.rows, noise.cols * square, row_spread, col_spread, tail), cols


@dataclass(frozen=True, eq=False)
class Part:
    """The part of M on which candidates are compared, and its place in M.

    Attributes
    ----------
    setup : Setup
    folds : the part, and the entries that are held out of it, fold by fold
    bases : of all of M, by whether features determine rows and columns
    """

    setup: Setup
    folds: Folds
    bases: dict[Tied, tuple[Array, Array]]

    @property
    def problem(self) -> Problem:
        return self.setup.problem

    @property
    def table(self) -> Table:
        return self.folds.table

    @property
    def held(self) -> HeldOut:
        """The entries that are held out first."""
        return self.folds.first[1]

    @property
    def columns(self) -> Columns:
        return self.problem.columns

    @property
    def M(self) -> Engine:
        return self.problem.engine

    def in_units_of_M(self, fit: Fit) -> LowRank:
        """Return L of a fit to all of M."""
        return LowRank.from_product(fit.rows.mean, fit.cols.mean * self.columns.unit[:, None])

    def values_at(self, rows: Array, cols: Array) -> Array:
        """Return entries of the part in units of M."""
        found: Array = self.table.values[rows, cols] * self.columns.unit[self.table.lines[1]][cols]
        return found

    def scale(self, fit: Fit, unseen: bool = False) -> tuple[EntryScale, LowRank]:
        """Return the scales of a fit to the part, in units of M, and its L."""
        mine, maps = self.table.lines[1], self.problem.maps
        unit = self.columns.unit[mine]
        L = LowRank.from_product(fit.rows.mean, fit.cols.mean * unit[:, None])
        scale = replace(scale_of(fit, unit)[0], unseen=unseen)
        return (scale if maps is None else scale.mapped(L, maps.cut(slice(None), mine))), L

    def lift(self, fit: Fit) -> Fit:
        """Return a fit to the part as one to all of M, other lines at their prior means."""
        lines, shape, sides, scales = self.table.lines, self.M.shape, [], []
        for side, basis, index, counts in zip(
            (fit.rows, fit.cols), self.bases[fit.tied], lines, self.M.counts, strict=True
        ):
            coefficients = np.linalg.lstsq(restricted(basis, index)[1], side.coefficients, rcond=None)[0]
            sides.append(side.extended(basis, coefficients, index, counts > 0))
        for scale, index, n in zip((fit.noise.rows, fit.noise.cols), lines, shape, strict=True):
            scales.append(np.ones(n))
            scales[-1][index] = scale
        columns, sample = self.columns, self.problem.sample
        noise = replace(fit.noise, rows=scales[0], cols=scales[1], least=columns.least, units=columns.unit)
        entries = sample.rows, sample.cols, sample.values / columns.unit[sample.cols]
        trust = fit.trust if self.table.values.shape == shape else None
        return replace(fit, engine=self.M, rows=sides[0], cols=sides[1], noise=noise, sample=entries, trust=trust)

    def extend(self, fit: Fit, wanted: Sequence[Array] | None = None) -> Fit:
        """Return the same, with lines outside the part, all or those wanted, placed by their entries within it."""
        whole, steps = self.lift(fit), []
        for axis, n in enumerate(self.M.shape):
            if not fit.tied[axis]:
                mine, others = self.table.lines[axis], self.table.lines[1 - axis]
                missing = np.setdiff1d(np.arange(n) if wanted is None else wanted[axis], mine)
                step = max(1, constants.BUDGET.block // max(len(others), 1))
                steps += [(axis, missing[k : k + step], others) for k in range(0, len(missing), step)]
        at_once = max(2 * constants.BUDGET.memory // constants.BUDGET.block, 1)  # that one read of a dear M brings
        places = [(some, others) if axis == 0 else (others, some) for axis, some, others in steps]
        for k, (axis, some, others) in enumerate(steps):
            if self.M.dear and k % at_once == 0:
                self.M.survey([Look(lines=lines) for lines in places[k : k + at_once]])
            block = self.M.block(*places[k]) / self.columns.unit[places[k][1]]
            whole.place(block if axis == 0 else block.T, axis, some, others)
        return whole

    def predicts(self, fit: Fit) -> bool:
        """Whether a fit without the entries that are held out first beats column medians there, by a tenth."""
        held, most = self.held, constants.MAX_CLEAN_RESIDUAL * fit.noise.deviation
        medians = np.abs(held.values - column_medians(self.folds.first[0].values).sampled(held.rows, held.cols))
        fitted, plain = (np.minimum(error, most).mean() for error in (held.score(fit).error, medians))
        return bool(fitted <= constants.MAX_ERROR_RATIO * plain)

    def judge(self, name: str, fit: Fit) -> Candidate:
        """Return a fit to all of M as one of the candidates of this part."""
        here = fit.of_lines(*self.table.lines)
        return Candidate(name, here, self.held.score(here))

    def more_components(self, fit: Fit, offered: int) -> int | None:
        """Return how many components to offer next, if a fit has used up those it had; None: it had enough.

        Components that it lacks are seen in what it leaves of more rows and columns than those it was fitted to.
        """
        tied = self.bases[fit.tied]
        most = min(basis.shape[1] if t else n // 4 for basis, t, n in zip(tied, fit.tied, self.M.shape, strict=True))
        if offered >= most or self.held.nearly_exact(fit):
            return None
        lines = [scattered(n, min(n, constants.BUDGET.lines)) for n in self.M.shape]
        left = self.extend(fit, lines).of_lines(*lines)
        missing = left.lacks(self.M.block(*lines) / self.columns.unit[lines[1]])
        wanted = fit.principal().rank + missing
        return min(max(2 * offered, 2 * wanted), most) if wanted > constants.USED_UP * offered else None

    def find_exact(self, fit: Fit, whole: Fit) -> tuple[LowRank, Exactness] | None:
        """Return an exact fit near a fit to the part and one to all of M, and its threshold; None if there is none."""
        rank = fit.principal().rank
        if not rank or not fit.nearly_exact or self.problem.maps is not None:
            return None
        unit, rng = self.columns.unit, self.problem.rng("block fits")
        zeta = constants.MAX_CLEAN_RESIDUAL * COMPONENTS[-1] * fit.noise.s  # clean residuals are within it
        L = sharpen(self.table.values, LowRank.from_product(*fit.L.thin(), rank), zeta, self.M.dtype)
        L = LowRank.from_product(L.left @ L.core, L.right * unit[self.table.lines[1], None])
        exact = extend(self.M, self.table.lines, L, self.in_units_of_M(whole), zeta * float(unit.max()), rng)
        if exact is None:
            return None
        seen = sum(int(np.count_nonzero(counts)) for counts in self.M.counts)  # empty lines are no unknowns
        found = exactness(self.problem.sample, exact, self.M.n_observed, exact.rank * (seen - exact.rank))
        return None if found.zeta is None else (exact, found)
