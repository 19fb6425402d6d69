"""The default model, fitted by a race: candidate fits on a part of M, the best extended to all of it, sweeps, a report.

Candidates are fits of one model (:mod:`irpca.factors`, :mod:`irpca.noise`) from several starts, compared by how well
they predict held-out entries (:mod:`irpca.choice`). The size of M decides how much is read, never what is done: the
part is always chosen, fitted and extended in the same way, and sweeps over M end when they have converged or when as
many as ``max_iter`` were made, which the status says then.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from .. import constants
from ..arguments import number, whole_or_auto
from ..calibration import Calibration
from ..choice import Candidate, HeldOut, better, choose
from ..engines.base import Engine, Look
from ..entry_scale import EntryScale
from ..factors import Fit, basis_of, moved, restricted
from ..features import Features, outside
from ..lowrank import Array, Deferred, LowRank, core_of, times
from ..noise import NoiseModel, widened
from ..problem import Problem
from ..result import Certificate, Choice, Expected, State
from ..sampling import Sample, in_memory, resolution
from ..threshold import rounding_floor
from .race import Comparison, Recipe, Table, Tied, bases_of, sub_table
from .trimmed import EXACT, exactness, extend

ENTRIES_PER_COLUMN = 64  # drawn on average: hardly any column has fewer than MIN_ENTRIES then, and no unit


def iterate(
    problem: Problem,
    *,
    extra_rank: int | str = "auto",
    noise: float | None = None,
    imperfect: bool = False,
    tol: float = 0.0,
    max_iter: int = 100,
    start: LowRank | None = None,
) -> Iterator[State]:
    """Robust Bayesian matrix factorisation, with features in the priors and gross errors in the noise.

    A settled state is an answer: solve() stops there, unless its final read of M refutes it. What follows such a yield
    is done only then.

    Parameters
    ----------
    extra_rank : int or "auto"
        Number of components in addition to those that features explain. 0: L is exactly ``F1 W F2ᵀ``, as in the paper;
        "auto": chosen by held-out entries. Without features it has no effect.
    noise : float or None
        Standard deviation of the noise, if it is known.
    imperfect : bool
        Whether features are known to be wrong or missing for some lines, so that L is not exactly ``F1 W F2ᵀ``.
    tol, max_iter : float, int
        Sweeps over M end when L changes by less than ``tol``, or than noise lets one see, and after ``max_iter``.
    start : LowRank or None
        A robust fit of M to start from, among others.
    """
    setup = Setup.of(problem, extra_rank, noise, imperfect)
    problem, sample = setup.problem, setup.problem.sample
    if constant := _constant(problem.shape, sample):
        yield constant

    # Candidate fits on a part of M; choice by held-out entries. More components are offered as long as they help.
    part, race = yield from _raced(setup, start)
    best = race.best
    yield part.interim(best.fit, "fitting all of the table", 0.7)

    # An exact fit, if the best one is nearly that; its noise need not be found on all of M then.
    if part.held.nearly_exact(best.fit):
        if not any(problem.given) and (exact := part.exactly(best.fit)):
            yield Report(part, race.certificate(part.of_part(exact.L))).exact(best.fit, exact)
        fit = part.extended(best.fit)
        if (exact := _exact_fit(*part.enough(fit, best.fit), part)) and not exact.poorly_fitted:
            yield Report(part, race.certificate(part.of_part(exact.L))).exact(fit, exact)

    # The chosen fit to all entries of that part, then to all of M: by least squares, or by sweeps.
    again = replace(part.table.make(race.winner), strict=best.fit.strict)
    report, fit = Report(part, race.certificate(again.L)), part.extended(again)
    if stepped := _steps_on_M(fit, part):
        while True:
            yield report.state(stepped[0], True, stepped[1])
    before, tol = fit.copy(), max(tol, constants.FINAL_TOLERANCE)
    made = 0
    for refits_left in reversed(range(constants.LINE_REFITS + 1)):
        first = fit.sweeps
        while made < max_iter - 1 and not fit.done(tol, first):
            yield report.state(fit)
            fit.sweep()
            made += 1
        if not refits_left or not fit.refit_lines():
            break
    slow = made >= constants.MIN_SWEEPS  # then it is enough to move by far less than noise makes L uncertain
    converged = fit.done(tol, first) or (slow and fit.step <= constants.MAX_REMAINING_STEP * fit.standard_error)
    fit = before if fit.out_of_range else fit  # a component has run away
    if exact := _exact_fit(fit, None, part):
        yield report.exact(fit, exact)
    if all(fit.tied) and fit.noise.target is None:
        _efficient(fit)
    while True:
        yield report.state(fit.principal(), settled=True, converged=converged)
        fit.sweep()


def looks(problem: Problem) -> list[Look]:
    """What will be looked at before the first read of all of M, as far as that does not depend on M."""
    n1, n2 = problem.shape
    if n1 * n2 <= constants.BUDGET.memory:
        return [Look(lines=(np.arange(n1), np.arange(n2)))]
    offered = problem.rank or constants.FIRST_COMPONENTS
    wanted = [
        Look(size=constants.BUDGET.judged, seed=problem.seed_for("sample")),
        Look(lines=_lines_of_part(problem, offered, 1.0)),
    ]
    if ENTRIES_PER_COLUMN * n2 > constants.BUDGET.judged:
        wanted.append(Look(size=_unit_entries(n2), seed=problem.seed_for("units")))
    return wanted


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

    def part(self, offered: int, start: LowRank | None, factor: float = 1.0) -> Part:
        """The part on which so many components are compared, with a fit of all of M to start from.

        It has ``factor`` times as many entries as usual.
        """
        problem = self.problem
        engine, F1, F2, sample = problem.engine, problem.F1, problem.F2, problem.sample
        lines = _lines_of_part(problem, offered, engine.n_observed / np.prod(problem.shape), factor)
        unit, typical = column_units(problem)
        bases = {tied: (basis_of(F1, tied[0]), basis_of(F2, tied[1], unit)) for tied in self.ties}
        least = finest(sample, unit, typical)
        here = start and LowRank(start.left[lines[0]], start.core, start.right[lines[1]] / unit[lines[1], None])
        table = Table(
            engine.block(*lines) / unit[lines[1]],
            lines,
            bases_of(bases, lines),
            least[lines[1]],
            problem.rank,
            self.extra,
            self.noise,
            offered,
            problem.seed_for("race"),
            here,
        )
        seen = np.isfinite(table.values)
        out = seen & (problem.rng("held out").random(table.values.shape) < constants.HELD_OUT_SHARE)
        few = np.count_nonzero(out) < constants.BUDGET.fewest  # then fits are judged by the entries they were fitted to
        rows, cols = np.nonzero(seen if few else out)
        held = HeldOut(rows, cols, table.values[rows, cols], 10 * table.least[cols])
        return Part(self, table, table if few else table.without(out), held, unit, bases, least)


def check_options(problem: Problem, extra_rank: int | str, noise: float | None) -> int | str:
    """Refuse what makes no sense; the number of additional components, or "auto"."""
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


def _lines_of_part(problem: Problem, offered: int, share: float, factor: float = 1.0) -> tuple[Array, Array]:
    """The rows and columns on which candidates are compared, if a share of the entries is observed.

    Features explain anything if there are about as many of them as lines, and so do components.
    """
    first, rank = constants.FIRST_COMPONENTS, problem.rank
    entries = constants.BUDGET.race * min(max(first / offered, 1.0), constants.BUDGET.wider)
    entries *= factor if share > 0.5 else factor * constants.BUDGET.wider
    expected = rank or (offered if offered > first else 0)
    many = constants.LINES_PER_COMPONENT * expected if expected > constants.USED_UP * first else 0
    rows, cols = (max(constants.COMPARED_LINES_PER_FEATURE * F.d if F.given else 0, many) for F in problem.features)
    return sub_table(problem.shape, entries, share, (rows, cols), problem.rng("lines"))


def _raced(setup: Setup, start: LowRank | None) -> Generator[State, None, tuple[Part, Race]]:
    """The part on which fits were compared, and what came of it.

    A second part is larger if residuals are skewed: on more entries one-sided errors may show. Further ones offer more
    components, as long as these help.
    """
    rank = setup.problem.rank
    offered = rank or constants.FIRST_COMPONENTS
    part, short = setup.part(offered, start), offered > constants.FIRST_COMPONENTS
    enlarged, fewer = part.is_all, None
    while True:
        comparison = Comparison(part.nine_tenths, part.held, setup.ties, short)
        for k, fit in enumerate(comparison, 1):
            yield part.interim(fit, f"comparing fits, {k} made", 0.7 * min(k / comparison.about, 1.0))
        race = Race.of(part, comparison)
        if fewer and not better(race.best, part.candidate("fewer components", fewer[2])):
            return fewer[0], fewer[1]
        if not enlarged and part.held.skewed(race.best.fit):
            part, enlarged = setup.part(offered, start, constants.BUDGET.wider), True
        elif rank is None and (wanted := part.more_components(race.best.fit, offered)):
            offered, fewer, short, enlarged = wanted, (part, race, part.extended(race.best.fit)), True, True
            part = setup.part(offered, part.in_units_of_M(fewer[2]))
        else:
            return part, race


@dataclass(frozen=True, eq=False)
class Race:
    """What came of a comparison of fits.

    Attributes
    ----------
    best, winner : the fit that was chosen, and its recipe
    tied : those that predict held-out entries as well
    candidates : all
    """

    best: Candidate
    winner: Recipe
    tied: list[Candidate]
    candidates: list[Candidate]

    @classmethod
    def of(cls, part: Part, comparison: Comparison) -> Race:
        """The choice among the fits of a comparison, when all were made."""
        assert comparison.winner is not None
        candidates = list(comparison.tried.values())
        best, tied = choose(part.held, candidates)
        best.fit.strict = best.fit.directions is None and part.held.strict(best.fit)
        return cls(best, comparison.winner, tied, candidates)

    def certificate(self, L: LowRank) -> Certificate:
        """With L fitted to all entries of the part, in units of its columns."""
        scores = ((c.name, float(c.score.density.mean()), float(c.score.error.mean())) for c in self.candidates)
        return Certificate(
            moved=moved(L, self.best.fit.L),
            candidates=tuple(scores),
            chosen=self.best.name,
            disagreement=max((moved(self.best.fit.L, c.fit.L) for c in self.tied), default=0.0),
        )


@dataclass(frozen=True, eq=False)
class Part:
    """The part of M on which candidates are compared, and its place in M.

    Attributes
    ----------
    setup : Setup
    table, nine_tenths : the part, and the part less the held-out entries; the part itself, if these would be too few
    held : the held-out entries; all of the part, if these would be too few
    unit : of every column of M
    bases : of all of M, by whether features determine rows and columns
    least : lower bounds of the noise, for each column of M
    """

    setup: Setup
    table: Table
    nine_tenths: Table
    held: HeldOut
    unit: Array
    bases: dict[Tied, tuple[Array, Array]]
    least: Array

    @property
    def M(self) -> Engine:
        return self.setup.problem.engine

    @property
    def sample(self) -> tuple[Array, Array, Array]:
        """Scattered entries of M, in units of its columns."""
        sample = self.setup.problem.sample
        return sample.rows, sample.cols, sample.values / self.unit[sample.cols]

    @property
    def seen(self) -> tuple[int, int]:
        """How many rows and columns of M have entries: others are no unknowns."""
        rows, cols = (int(np.count_nonzero(counts)) for counts in self.M.counts)
        return rows, cols

    @property
    def is_all(self) -> bool:
        """Whether it is all of M."""
        return self.table.values.shape == self.M.shape

    def in_units_of_M(self, fit: Fit) -> LowRank:
        """L of a fit to all of M."""
        return LowRank.from_product(fit.rows.mean, fit.cols.mean * self.unit[:, None])

    def interim(self, fit: Fit, stage: str, progress: float) -> State:
        """A fit to the part that is not the last: the answer if time runs out. It is extended to M only then."""
        deviation, now = replace(fit.noise, least=self.least).deviation, fit.copy()
        state = State(
            Deferred(lambda: whole().L),
            constants.REPORTED_THRESHOLD * deviation,
            1.0,
            noise=deviation,
            settled=False,
            stage=stage,
            progress=progress,
            whole=lambda: whole(),
        )

        @cache
        def whole() -> State:
            fit = self.lifted(now)
            return self.with_scale(replace(state, L=self.in_units_of_M(fit)), fit)

        return state

    def with_scale(self, state: State, fit: Fit) -> State:
        """A state of this fit with the scales of the noise and the uncertainty of L, in units of M; two reads."""
        square = self.unit**2
        noise = fit.noise.capped(square).weights(*fit.spreads)
        rows, cols, tail = fit.line_variances(0), fit.line_variances(1), float(fit.noise.deviation / fit.noise.s)
        of_rows, of_cols = [rows], [(fit.cols.mean**2 * square[:, None])[:, : rows.shape[1]]]
        of_rows.append((fit.rows.mean**2)[:, : cols.shape[1]])
        of_cols.append(cols * square[:, None])
        scale = EntryScale(noise.rows, noise.cols * square, np.hstack(of_rows), np.hstack(of_cols), tail)
        fit = replace(fit, unit=self.unit, col_variances=cols)
        return replace(state, scale=scale, gross=noise.gross, fit=fit, whole=None)

    def lifted(self, fit: Fit, lines: tuple[Array, Array] | None = None) -> Fit:
        """The fit to some lines, those of the part, extended to all of M; others are at their prior means."""
        lines, shape = lines or self.table.lines, self.M.shape
        sides = []
        for side, basis, index in zip((fit.rows, fit.cols), self.bases[fit.tied], lines, strict=True):
            _, R = restricted(basis, index)
            coefficients = np.linalg.lstsq(R, side.coefficients, rcond=None)[0]
            sides.append(side.extended(basis, coefficients, index))
        scales = [
            _filled(scale, index, n)
            for scale, index, n in zip((fit.noise.rows, fit.noise.cols), lines, shape, strict=True)
        ]
        noise = replace(fit.noise, rows=scales[0], cols=scales[1], least=self.least, units=self.unit)
        trust = fit.trust if self.is_all else None
        return replace(fit, engine=self.M, rows=sides[0], cols=sides[1], noise=noise, sample=self.sample, trust=trust)

    def extended(self, fit: Fit) -> Fit:
        """The same, with lines outside the part placed by their entries within it."""
        whole = self.lifted(fit)
        _place_others(whole, self)
        return whole

    def enough(self, fit: Fit, on_part: Fit) -> tuple[Fit, tuple[Array, Array] | None]:
        """The fit to as much of M as determines an exact one, and its lines; None: to all of it.

        Where features determine one side, its lines in the part are enough, with all lines of the other side.
        """
        if sum(fit.tied) != 1:
            return fit, None
        n1, n2 = self.M.shape
        rows, cols = self.table.lines
        lines = (rows, np.arange(n2)) if fit.rows.tied else (np.arange(n1), cols)
        if len(lines[0]) * len(lines[1]) > constants.BUDGET.memory:
            return fit, None
        values = self.M.block(*lines) / self.unit[lines[1]]
        i, j = np.nonzero(np.isfinite(values))
        some = np.linspace(0, len(i) - 1, min(len(i), constants.BUDGET.judged)).astype(np.intp)
        noise = fit.noise
        return replace(
            fit,
            engine=in_memory(values),
            rows=on_part.rows if fit.rows.tied else fit.rows,
            cols=on_part.cols if fit.cols.tied else fit.cols,
            noise=replace(
                noise, rows=noise.rows[lines[0]], cols=noise.cols[lines[1]], least=self.least[lines[1]], units=None
            ),
            sample=(i[some], j[some], values[i[some], j[some]]),
        ), lines

    def candidate(self, name: str, fit: Fit) -> Candidate:
        """A fit to all of M as one of the candidates of this part."""
        here = fit.of_lines(*self.table.lines)
        return Candidate(name, here, self.held.score(here))

    def more_components(self, fit: Fit, offered: int) -> int | None:
        """How many components to offer next, if a fit has used up those it had; None: it had enough.

        Components that it lacks are seen in what it leaves of more rows and columns than those it was fitted to.
        """
        tied = self.bases[fit.tied]
        most = min(basis.shape[1] if t else n // 4 for basis, t, n in zip(tied, fit.tied, self.M.shape, strict=True))
        if offered >= most or self.held.nearly_exact(fit):
            return None
        rng = self.setup.problem.rng("growth")
        lines = [np.sort(rng.choice(n, min(n, constants.BUDGET.lines), replace=False)) for n in self.M.shape]
        whole = self.lifted(fit)
        _place_others(whole, self, lines)
        left = whole.of_lines(*lines)
        missing = left.lacks(self.M.block(*lines) / self.unit[lines[1]])
        wanted = fit.principal().rank + missing
        if wanted <= constants.USED_UP * offered:
            return None
        return min(max(2 * offered, 2 * wanted), most)

    def exactly(self, fit: Fit) -> Exact | None:
        """A fit without features that is as good as exact on the part, as an exact fit to all of M, if it is one."""
        try:
            L = fit.least_squares(max(fit.principal().rank, 1)).L
        except (FloatingPointError, np.linalg.LinAlgError):
            return None
        rows, cols = self.table.lines
        L = LowRank.from_product(L.left, L.right * self.unit[cols, None])
        whole = extend(self.M, (rows, cols), L, self.setup.problem.rng("block fits"))
        if whole is None:
            return None
        unknowns = whole.rank * (sum(self.seen) - whole.rank)
        found = exactness(self.setup.problem.sample, whole, self.M.n_observed, unknowns)
        return None if found.zeta is None else Exact(whole, found.zeta, found.clean, False)

    def of_part(self, L: LowRank) -> LowRank:
        """L of all of M on the part alone, in units of its columns."""
        rows, cols = self.table.lines
        U, V = L.part(rows, cols).thin()
        return LowRank(U, np.eye(U.shape[1]), V / self.unit[cols, None])


def _filled(some: Array, index: Array, n: int) -> Array:
    full = np.ones(n)
    full[index] = some
    return full


def _place_others(fit: Fit, part: Part, wanted: Sequence[Array] | None = None) -> None:
    """Estimate the factors of rows and columns outside the part, all or those wanted, from their entries within it."""
    steps: list[tuple[int, Array, Array]] = []
    for axis, n in enumerate(part.M.shape):
        if not fit.tied[axis]:
            mine, others = part.table.lines[axis], part.table.lines[1 - axis]
            missing = np.setdiff1d(np.arange(n) if wanted is None else wanted[axis], mine)
            step = max(1, constants.BUDGET.block // max(len(others), 1))
            steps += [(axis, missing[k : k + step], others) for k in range(0, len(missing), step)]
    at_once = max(2 * constants.BUDGET.memory // constants.BUDGET.block, 1)  # that one read of a dear M brings
    for k, (axis, some, others) in enumerate(steps):
        if part.M.dear and k % at_once == 0:
            ahead = steps[k : k + at_once]
            part.M.survey([Look(lines=(lines, across) if a == 0 else (across, lines)) for a, lines, across in ahead])
        at = (some, others) if axis == 0 else (others, some)
        block = part.M.block(*at) / part.unit[at[1]]
        fit.place(block if axis == 0 else block.T, axis, some, others)


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact fit to all of M.

    Attributes
    ----------
    zeta, clean : see :class:`~irpca.solvers.trimmed.Exactness`
    poorly_fitted : whether some lines hardly fit
    """

    L: LowRank
    zeta: float
    clean: float
    poorly_fitted: bool


def _exact_fit(fit: Fit, lines: tuple[Array, Array] | None, part: Part) -> Exact | None:
    """An exact fit to all of M close to this one, which is of some lines, or of all (None), if there is one.

    By trimmed least squares with a decreasing threshold.
    """
    n1, n2 = fit.engine.shape
    if not fit.rank or not fit.nearly_exact:
        return None
    singular = np.linalg.svd(core_of(fit.rows.mean, fit.cols.mean), compute_uv=False)
    edge = constants.MIN_EXACT_SINGULAR_VALUE * fit.noise.s * (np.sqrt(n1) + np.sqrt(n2))
    ranks = {fit.directions} if fit.directions else {int(np.count_nonzero(singular > edge)), fit.principal().rank}
    for rank in sorted(ranks - {0}):
        d1, d2 = (
            len(side.coefficients) if side.tied else seen
            for side, seen in zip((fit.rows, fit.cols), part.seen, strict=True)
        )
        unknowns = rank * (d1 + d2 - rank)
        if constants.MIN_ENTRIES_PER_UNKNOWN * unknowns > part.M.n_observed:
            continue  # so many unknowns could fit any entries
        try:
            exact = fit.least_squares(rank)
            L = part.in_units_of_M(part.lifted(exact, lines) if lines else exact)
        except (FloatingPointError, np.linalg.LinAlgError):  # it is not exact, and least squares diverged
            continue
        found = exactness(part.setup.problem.sample, L, part.M.n_observed, unknowns)
        if found.zeta is not None:
            return Exact(L, found.zeta, found.clean, any(len(exact.poorly_fitted(axis)) for axis in (0, 1)))
    return None


def _gaussian(fit: Fit) -> bool:
    """Whether noise is close enough to Gaussian for plain least squares on all but gross errors."""
    return bool(fit.noise.shares[0] >= constants.MIN_GAUSSIAN_SHARE and np.isinf(fit.noise.nu))


def _limit(noise: NoiseModel, residuals: Array) -> float:
    """Residuals larger than this are gross errors."""
    limit = Calibration(residuals / noise.s, noise.gross).limit
    return noise.s * max(limit, constants.MIN_OUTLIER_LIMIT)


def _steps_on_M(fit: Fit, part: Part) -> tuple[Fit, LowRank] | None:
    """Trimmed least squares on all of M, where features determine both sides; one read a step.

    Where the kept entries are evenly distributed, their gradient divided by their share is nearly the solution, and the
    next step is far shorter. None where that does not hold: entries missing in some lines, errors in others, noise that
    is heavy-tailed or differs between lines.
    """
    if not all(fit.tied) or (part.unit != 1).any():
        return None
    residuals = fit.residuals
    fit = replace(fit, noise=widened(fit.noise, residuals))
    noise, sides, (n1, n2) = fit.noise, (fit.rows, fit.cols), part.M.shape
    scales = zip((noise.rows, noise.cols), part.table.lines, strict=True)
    apart = max(float(np.log(variances[lines]).std()) for variances, lines in scales)
    if not _gaussian(fit) or apart > constants.EQUAL_NOISE_SPREAD:
        return None
    Q1, Q2 = (side.basis / np.sqrt(len(side.basis)) for side in sides)
    C = np.sqrt(n1 * n2) * fit.rows.coefficients @ fit.cols.coefficients.T
    L, zeta = LowRank.from_core(Q1, C, Q2, fit.rank), _limit(noise, residuals)
    steps = []
    for _ in range(constants.LARGE_STEPS):
        gradient, trim = part.M.core(L, zeta, Q1, Q2)
        share = n1 * n2 / max(trim.kept, 1)
        moved = C + share * gradient
        deviation = noise.deviation * np.sqrt(share)  # of every number in C
        edge = deviation * (np.sqrt(len(C)) + np.sqrt(C.shape[1]))
        seen = int(np.count_nonzero(np.linalg.svd(moved, compute_uv=False) > constants.NOISE_EDGE_FACTOR * edge))
        core = LowRank.from_core(None, moved, None, fit.directions or seen)
        before, C = C, core.dense()
        L = LowRank(times(Q1, core.left), core.core, times(Q2, core.right))
        steps.append(float(np.linalg.norm(C - before)))
    error = deviation * np.sqrt(max(L.rank, 1) * (sum(C.shape) - L.rank))
    if (
        steps[-1] ** 2 > constants.MAX_REMAINING_STEP * error * steps[-2]
    ):  # steps decrease geometrically: an estimate of the next
        return None
    halves = np.sqrt(L.singular_values)
    rows, cols = (
        side.certain(A * halves, a * halves / np.sqrt(len(A)))
        for side, A, a in zip(sides, (L.left, L.right), (core.left, core.right), strict=True)
    )
    new = replace(fit, rows=rows, cols=cols, step=0.0)
    return replace(new, noise=_one_component(new, noise)), L


def _efficient(fit: Fit) -> None:
    """Where noise is Gaussian, refine the fit by least squares on all entries but gross errors."""
    residuals = fit.residuals
    noise = fit.noise = widened(fit.noise, residuals)
    if not _gaussian(fit):
        return
    fit.noise = replace(noise, zeta=_limit(noise, residuals))
    for _ in range(constants.SWEEPS_BEFORE_PRIORS):
        fit.sweep()
    fit.noise = _one_component(fit, noise)


def _one_component(fit: Fit, noise: NoiseModel) -> NoiseModel:
    """The noise as one Gaussian, of the deviation that is given, or with the scale of the residuals of the fit."""
    s = noise.target or noise.s * Calibration(fit.residuals / noise.s, noise.gross).scale
    return replace(noise, s=s, shares=np.eye(len(noise.shares))[0])


@dataclass(frozen=True, eq=False)
class Report:
    """Turns fits into states."""

    part: Part
    certificate: Certificate

    @property
    def problem(self) -> Problem:
        return self.part.setup.problem

    def state(self, fit: Fit, settled: bool = False, L: LowRank | None = None, converged: bool = True) -> State:
        part, noise = self.part, fit.noise
        L = part.in_units_of_M(fit) if L is None else L
        deviation = noise.deviation
        why = "so many components predict held-out cells best" if fit.rank else "no component predicts held-out cells"
        chosen = (
            *(() if fit.directions else (Choice("rank", fit.rank, why),)),
            *self._extra(fit, L),
            Choice(
                "noise",
                deviation,
                "as given" if noise.target is not None else "estimated from the cells that are not outliers",
            ),
        )
        state = State(
            L,
            constants.REPORTED_THRESHOLD * deviation,
            fit.step,
            noise=deviation,
            tolerance=np.inf if settled else 0.0,
            settled=settled,
            converged=converged,
            expected=self._expected(fit, L),
            shares=self._shares(fit, L),
            choices=chosen,
            certificate=self.certificate,
        )
        return replace(state, whole=lambda: part.with_scale(state, fit))

    def exact(self, fit: Fit, exact: Exact) -> State:
        L = exact.L
        why = "so many components fit all cells that are not outliers to rounding"
        rank = () if fit.directions else (Choice("rank", L.rank, why),)
        return State(
            L,
            exact.zeta,
            0.0,
            noise=0.0,
            expected_corruption=1 - exact.clean,
            expected=self._expected(fit, L),
            shares=self._shares(fit, L),
            choices=(*rank, *self._extra(fit, L), EXACT),
            certificate=self.certificate,
        )

    def _expected(self, fit: Fit, L: LowRank) -> tuple[Expected | None, Expected | None] | None:
        """Coefficients by which features predict new rows and columns, in the coordinates of L."""
        if any(fit.tied) or not any(self.problem.given):
            return None
        U, V = fit.rows.mean, fit.cols.mean * self.part.unit[:, None]
        back = np.linalg.pinv(L.core)
        turns = V.T @ L.right @ back.T, U.T @ L.left @ back
        rows, cols = (
            _in_features(F, side.expected, turn) if F.given else None
            for F, side, turn in zip(self.problem.features, (fit.rows, fit.cols), turns, strict=True)
        )
        return rows, cols

    def _extra(self, fit: Fit, L: LowRank) -> tuple[Choice, ...]:
        """Number of components in addition to those that features explain, if it was to be chosen."""
        if not any(self.problem.given) or self.part.setup.extra is not None or not any(self.part.setup.ties[0]):
            return ()
        if any(fit.tied):
            return (Choice("extra_rank", 0, "further components did not improve the prediction of held-out cells"),)
        explained = self.part.nine_tenths.make(Recipe(self.part.setup.ties[0])).principal().rank
        why = f"components beyond the {explained} that the features explain"
        return (Choice("extra_rank", max(L.rank - explained, 0), why),)

    def _shares(self, fit: Fit, L: LowRank) -> dict[str, float]:
        """The shares of L within and outside the span of the features."""
        if not any(self.problem.given) or not L.rank or any(fit.tied):
            return {}
        free = float(np.linalg.norm(outside(L, *self.problem.features).core) / np.linalg.norm(L.core)) ** 2
        return {"features": 1 - min(free, 1.0), "free": min(free, 1.0)}


def _in_features(F: Features, expected: Array, turn: Array) -> Expected:
    """``expected @ turn`` as an offset and coefficients of the features."""
    assert F.Q is not None
    X = np.hstack([np.ones((F.n, 1)), F.Q])
    B = np.linalg.lstsq(X, expected @ turn, rcond=None)[0]
    return Expected(B[0], F.solve(B[1:]))


def _constant(shape: tuple[int, int], sample: Sample) -> State | None:
    """L = one number, if nearly all sampled entries equal it, and most in every row and column."""
    value = float(np.median(sample.values))
    floor = rounding_floor(sample.dtype, abs(value))
    same = np.abs(sample.values - value) <= floor
    if same.mean() < (constants.MIN_CONSTANT_SHARE if value else 1.0):  # zeros may be no measurements
        return None
    for lines in (sample.rows, sample.cols):
        seen = np.bincount(lines)
        if (np.bincount(lines, same) < constants.MAJORITY * seen).any():
            return None
    n1, n2 = shape
    L = LowRank(np.full((n1, 1), 1 / np.sqrt(n1)), np.array([[value * np.sqrt(n1 * n2)]]), np.full((n2, 1), n2**-0.5))
    rank = Choice("rank", 1, "nearly all cells hold the same number")
    return State(L, floor, 0.0, noise=0.0, expected_corruption=1 - float(same.mean()), choices=(rank, EXACT))


def finest(sample: Sample, unit: Array, typical: float) -> Array:
    """Lower bound of the noise of each column, in its unit: rounding, the step between values, MIN_DETECTABLE_NOISE."""
    x = sample.values
    step = 2 * resolution(*sample.distinct, most=1.0) / np.sqrt(12)
    rounding = float(np.finfo(sample.dtype).eps) * float(np.quantile(np.abs(x), 0.9))
    spread = typical if typical > 0 else float(np.abs(x).max())  # NaN where all values are one
    return np.maximum(max(step, rounding) / unit, constants.MIN_DETECTABLE_NOISE * spread)


def column_units(problem: Problem) -> tuple[Array, float]:
    """A robust spread of every column, relative to that of a typical one, and that one.

    Columns that have features are alike, as those of one quantity at several places: they share one unit, unless they
    differ by so much that they cannot be.
    """
    engine, sample = problem.engine, problem.sample
    n2, cols, values = engine.shape[1], sample.cols, sample.values
    if len(values) < ENTRIES_PER_COLUMN * n2 and engine.n_observed > len(values):
        _, cols, values = engine.draw(_unit_entries(n2), problem.rng("units"))
    unit = _spreads(values.astype(float), cols, n2)
    known = np.isfinite(unit) & (np.bincount(cols, minlength=n2) >= constants.BUDGET.fewest)
    if not known.any():
        return np.ones(n2), float(np.std(values))
    if problem.F2.given:
        low, high = np.quantile(unit[known], (0.05, 0.95))
        if high <= constants.UNLIKE_COLUMNS * low:
            return np.ones(n2), _spread(sample.values)
    middle = float(np.exp(np.mean(np.log(unit[known]))))
    return np.where(known, unit / middle, 1.0), middle


def _unit_entries(n2: int) -> int:
    """How many entries are drawn for the units of the columns, where those of the sample are too few."""
    return min(ENTRIES_PER_COLUMN * n2, constants.BUDGET.block)


def _spread(x: Array) -> float:
    return float(_spreads(x, np.zeros(len(x), np.intp), 1)[0])


def _spreads(x: Array, group: Array, n: int) -> Array:
    """Of each of n groups: from the quartiles; where half of the values are the same, the standard deviation.

    NaN where all are the same.
    """
    order = np.lexsort((x, group))
    x, group = x[order], group[order]
    counts = np.bincount(group, minlength=n)
    some = np.flatnonzero(counts)
    counts = counts[some]
    first, last, which = np.cumsum(counts) - counts, counts - 1, np.repeat(np.arange(len(some)), counts)

    def quantile(q: float) -> Array:
        at = (q * last).astype(np.intp)
        low, high = x[first + at], x[first + np.minimum(at + 1, last)]
        between: Array = low + (high - low) * (q * last - at)
        return between

    width = (quantile(0.75) - quantile(0.25)) / 1.349
    mean = np.bincount(which, x) / counts
    deviation = np.sqrt(np.bincount(which, (x - mean[which]) ** 2) / counts)
    found = np.full(n, np.nan)
    found[some] = np.where(x[first + last] > x[first], np.where(width > 0, width, deviation), np.nan)
    return found
