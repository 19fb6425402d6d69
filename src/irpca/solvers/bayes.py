"""The default model, fitted by a race: candidate fits on a part of M, the best extended to all of it, sweeps, a report.

Candidates are fits of one model (:mod:`irpca.model`) from several starts, compared by how well they predict held-out
entries (:mod:`irpca.model.choice`). The size of M decides how much is read, never what is done: the part is always
chosen, fitted and extended in the same way, and sweeps over M end when they have converged or when as many as
``max_iter`` were made, which the status says then.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from .. import constants
from ..engines.base import Look
from ..features import Features, outside
from ..lowrank import Array, Deferred, LowRank, times
from ..model.calibration import Calibration
from ..model.choice import better, is_strict
from ..model.columns import ENTRIES_PER_COLUMN, entries_for_units
from ..model.factors import Fit
from ..model.noise import NoiseModel, widened
from ..problem import Problem
from ..result import Certificate, Choice, Expected, State
from ..sample import Sample, rounding_floor
from .crossfit import CrossFit, predict_unseen
from .mapping import AS_THEY_ARE, check_columns, choose_maps
from .mapping import looks as looks_for_kinds
from .part import Part, Setup, check_options, lines_of_part, scale_of
from .race import Race
from .recipes import Recipe
from .trimmed import EXACT, Exactness

__all__ = ["check_options", "iterate", "looks"]


def iterate(
    problem: Problem,
    *,
    extra_rank: int | str = "auto",
    noise: float | None = None,
    imperfect: bool = False,
    columns: str | Sequence[str] = AS_THEY_ARE,
    tol: float = 0.0,
    max_iter: int = 100,
    start: LowRank | None = None,
) -> Iterator[State]:
    """Robust Bayesian matrix factorisation, with features in the priors and gross errors in the noise.

    A settled state is an answer: solve() stops there. What follows such a yield is done for callers who go on.

    Parameters
    ----------
    extra_rank : int or "auto"
        Number of components in addition to those that features explain. 0: L is exactly ``F1 W F2ᵀ``, as in the paper;
        "auto": chosen by held-out entries. Without features it has no effect.
    noise : float or None
        Standard deviation of the noise, if it is known.
    imperfect : bool
        Whether features are known to be wrong or missing for some lines, so that L is not exactly ``F1 W F2ᵀ``.
    columns : "as they are", "auto", or a kind for each column of M
        "auto": columns are mapped, each by its kind (skewed numbers, few ordered values, values piled up at a bound),
        or all by the same map, as held-out cells call for: columns that are alike if these cells are clearly predicted
        better then, columns of different quantities unless they are clearly predicted worse, columns that have
        features by one map for all, if that is clearly better. L is then of latent values; entries of ``Result.L`` are
        in units of M. Kinds are "auto", "as it is", "logarithm", "number" (with a map, if any helps) and "ordered". No
        effect if ``noise`` is given or the fit is exact.
    tol, max_iter : float, int
        Sweeps over M end when L changes by less than ``tol``, or than noise lets one see, and after ``max_iter``.
    start : LowRank or None
        A robust fit of M to start from, among others.
    """
    setup = Setup.of(problem, extra_rank, noise, imperfect)
    wanted = check_columns(columns, problem.shape[1], noise)
    if constant := _constant(problem.shape, setup.problem.sample):
        yield constant

    # Candidate fits on a part of M; choice by held-out entries. More components are offered as long as they help.
    part, race = yield from _compare(setup, start)
    best, chosen = race.best_candidate.fit, None
    if wanted:
        now = _interim(part, best, "comparing maps of columns", 0.7)
        chosen = yield from choose_maps(setup, part, race, wanted, now)
    if chosen:
        setup = replace(setup, problem=setup.problem.mapped(chosen.maps))
        part, race = yield from _compare(setup, None)
        best = race.best_candidate.fit
    yield _interim(part, best, "fitting all of the table", 0.7)

    # An exact fit, if the best one is nearly that; its noise need not be found on all of M then.
    if part.held.nearly_exact(best):
        fit = part.extend(best)
        if exact := part.find_exact(best, fit):
            yield Report(part, race.certificate).exact(fit, *exact)

    # The chosen fit to all entries of that part, then to all of M: by least squares, or by sweeps.
    assert race.winner is not None
    fits = []
    for table in part.folds.tables:
        fits.append(table.fit(race.winner))
        yield _interim(part, best, "predicting cells left out", 0.7)
    again = replace(part.table.fit(race.winner), strict=is_strict(part.folds.held, fits))
    crossed = predict_unseen(part, again, fits)
    report, fit = Report(part, race.certificate, chosen.why if chosen else "", crossed), part.extend(again)
    if stepped := _steps_on_M(fit, part):
        while True:
            yield report.state(stepped[0], True, stepped[1])
    before, tol, made = fit.copy(), max(tol, constants.FINAL_TOLERANCE), 0
    for refits_left in (True, False):
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
    if exact := part.find_exact(fit.of_lines(*part.table.lines), fit):
        yield report.exact(fit, *exact)
    while True:
        yield report.state(fit.principal(), settled=True, converged=converged)
        fit.sweep()


def looks(problem: Problem, columns: str | Sequence[str] = AS_THEY_ARE, **_: Any) -> list[Look]:
    """What will be looked at before the first read of all of M, as far as that does not depend on M."""
    n1, n2 = problem.shape
    if n1 * n2 <= constants.BUDGET.memory:
        return [Look(lines=(np.arange(n1), np.arange(n2)))]
    wanted = [
        Look(size=constants.BUDGET.judged, seed=problem.seed_for("sample")),
        Look(lines=lines_of_part(problem, problem.rank or constants.FIRST_COMPONENTS)),
    ]
    if ENTRIES_PER_COLUMN * n2 > constants.BUDGET.judged:
        wanted.append(Look(size=entries_for_units(n2), seed=problem.seed_for("units")))
    return wanted + looks_for_kinds(problem, columns)


def _compare(setup: Setup, start: LowRank | None) -> Generator[State, None, tuple[Part, Race]]:
    """Return the part on which fits were compared, and what came of it.

    Further parts offer more components, as long as these help.
    """
    rank = setup.problem.rank
    offered = rank or constants.FIRST_COMPONENTS
    part, fewer = setup.part(offered, start), None
    while True:
        race = Race(part.folds, setup.ties, short=offered > constants.FIRST_COMPONENTS)
        for k, fit in enumerate(race, 1):
            yield _interim(part, fit, f"comparing fits, {k} made", 0.7 * min(k / race.about, 1.0))
        best = race.best_candidate
        if fewer and not better(best, part.judge("fewer components", fewer[2])):
            return fewer[0], fewer[1]
        if rank is not None or (wanted := part.more_components(best.fit, offered)) is None:
            return part, race
        offered, fewer = wanted, (part, race, part.extend(best.fit))
        part = setup.part(offered, part.in_units_of_M(fewer[2]))


def _interim(part: Part, fit: Fit, stage: str, progress: float) -> State:
    """A fit to the part that is not the last: the answer if time runs out. It is extended to M only then."""
    deviation, now = replace(fit.noise, least=part.columns.least).deviation, fit.copy()
    state = State(
        Deferred(lambda: whole().L),
        constants.REPORTED_THRESHOLD * deviation,
        1.0,
        noise=deviation,
        settled=False,
        stage=stage,
        progress=progress,
        maps=part.problem.maps,
        whole=lambda: whole(),
    )

    @cache
    def whole() -> State:
        fit = part.lift(now)
        return _with_scale(replace(state, L=part.in_units_of_M(fit)), fit, part)

    return state


def _with_scale(state: State, fit: Fit, part: Part, crossed: CrossFit | None = None) -> State:
    """A state of this fit with the scales of the noise and the uncertainty of L, in units of M; two reads."""
    unit = part.columns.unit
    scale, variances = scale_of(fit, unit)
    if crossed is not None:
        names = "widths", "middle", "confused", "sharpness", "slopes"
        scale = replace(scale, **{name: getattr(crossed, name) for name in names})
    if state.maps is not None:
        scale = scale.mapped(state.L, state.maps)
    fit = replace(fit, unit=unit, col_variances=variances)
    return replace(state, scale=scale, gross=fit.noise.gross, fit=fit, whole=None)


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
    if not all(fit.tied) or (part.columns.unit != 1).any() or part.problem.maps is not None:
        return None
    residuals = fit.residuals
    fit = replace(fit, noise=widened(fit.noise, residuals))
    noise, sides, (n1, n2) = fit.noise, (fit.rows, fit.cols), part.M.shape
    scales = zip((noise.rows, noise.cols), part.table.lines, strict=True)
    apart = max(float(np.log(variances[lines]).std()) for variances, lines in scales)
    if noise.shares[0] < constants.MIN_GAUSSIAN_SHARE or apart > constants.EQUAL_NOISE_SPREAD:
        return None
    Q1, Q2 = (side.basis / np.sqrt(len(side.basis)) for side in sides)
    C = np.sqrt(n1 * n2) * fit.rows.coefficients @ fit.cols.coefficients.T
    L, zeta = LowRank.from_core(Q1, C, Q2, fit.rank), _limit(noise, residuals)
    steps = []
    for _ in range(2):
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


def _one_component(fit: Fit, noise: NoiseModel) -> NoiseModel:
    """The noise as one Gaussian, of the deviation that is given, or with the scale of the residuals of the fit."""
    s = noise.target or noise.s * Calibration(fit.residuals / noise.s, noise.gross).scale
    return replace(noise, s=s, shares=np.eye(len(noise.shares))[0])


@dataclass(frozen=True, eq=False)
class Report:
    """Turns fits into states."""

    part: Part
    certificate: Certificate
    why_mapped: str = ""
    crossed: CrossFit | None = None

    @property
    def problem(self) -> Problem:
        return self.part.problem

    def state(self, fit: Fit, settled: bool = False, L: LowRank | None = None, converged: bool = True) -> State:
        part, noise = self.part, fit.noise
        L = part.in_units_of_M(fit) if L is None else L
        deviation = noise.deviation
        why = "so many components predict held-out cells best" if fit.rank else "no component predicts held-out cells"
        chosen = (
            *((Choice("columns", "mapped", self.why_mapped),) if self.why_mapped else ()),
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
            certificate=replace(self.certificate, unseen=None if self.crossed is None else self.crossed.unseen),
            maps=part.problem.maps,
        )
        return replace(state, whole=lambda: _with_scale(state, fit, part, self.crossed))

    def exact(self, fit: Fit, L: LowRank, exact: Exactness) -> State:
        assert exact.zeta is not None
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
        U, V = fit.rows.mean, fit.cols.mean * self.part.columns.unit[:, None]
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
        explained = self.part.folds.first[0].fit(Recipe(self.part.setup.ties[0])).principal().rank
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
