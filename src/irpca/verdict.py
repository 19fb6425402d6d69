"""Every check of a finished fit, of any solver: what was seen, what it means, what to do.

A check is a function of a :class:`Case` that yields a :class:`~irpca.result.Doubt` or none. Thresholds are in
:mod:`irpca.constants`, with their reasons. Code that has to know what was doubted compares kinds, never texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from . import constants
from .cached import cached_property
from .engines.base import Engine, Look
from .features import Features, outside
from .labels import Labels
from .lowrank import Array, LowRank
from .model.entry_scale import REACH, EntryScale, Judge
from .result import (
    LEAST_SKILL,
    MIN_LINE_EVIDENCE,
    NAMED,
    Doubt,
    State,
    Status,
    Unseen,
    about_lines,
    names,
    unfitted_lines,
)
from .sample import children, resolution
from .wording import count

SIDES = ("row", "column")


@dataclass(frozen=True, eq=False)
class Residuals:
    """Some entries of M, and how L meets them.

    Attributes
    ----------
    values, L : arrays of one shape
        Values are NaN where M is not observed.
    kept : boolean array
        Observed, and no outlier.
    unit : array or float
        The standard deviation that M − L should have; without a model of it that of the entries that are kept.
    z : array
        M − L in these units; 0 where it is not kept.
    """

    values: Array
    L: Array
    kept: Array
    unit: Any
    z: Array


def looks(shape: tuple[int, int], seed: np.random.SeedSequence) -> tuple[Look, Look]:
    """Where a fit is checked: random entries, and some rows and columns; chosen before, so that one read serves all."""
    entries, lines = children(seed, 2)
    rng = np.random.default_rng(lines)
    rows, cols = (np.sort(rng.choice(n, min(n, constants.BUDGET.lines), replace=False)) for n in shape)
    return Look(size=constants.BUDGET.judged, seed=entries), Look(lines=(rows, cols))


@dataclass(frozen=True, eq=False)
class Case:
    """A finished fit, and a fresh look at M.

    Attributes
    ----------
    engine, features : the owner of M, and what is known of its rows and columns
    state : the last iterate
    outliers : how many each row, and each column, has, if they were asked for
    judge : what an outlier exceeds, and the lines of which L is known
    status : how the run ended
    seed : for the look
    """

    engine: Engine
    features: tuple[Features, Features]
    state: State
    outliers: tuple[Array, Array] | None
    judge: Judge
    status: Status
    seed: np.random.SeedSequence

    @cached_property
    def looks(self) -> tuple[Look, Look]:
        return looks(self.engine.shape, self.seed)

    @property
    def L(self) -> LowRank:
        return self.state.L

    @property
    def known(self) -> tuple[Array, Array]:
        """The lines of which L is known."""
        assert self.judge.known is not None
        return self.judge.known

    @property
    def exact(self) -> bool:
        """Whether nothing is left but rounding."""
        return self.state.noise == 0

    @cached_property
    def noiseless(self) -> bool:
        """Whether residuals are no noise: rounding, or what the end of an iteration left, far below the noise."""
        typical = float(np.sqrt(np.mean(self.sample.L**2)))
        if self.exact or (self.state.scale is None and self.sample.unit <= constants.MIN_DETECTABLE_NOISE * typical):
            return True
        sizes = np.abs(self.sample.z[self.sample.kept])
        return not len(sizes) or bool(np.quantile(sizes, 0.99) < constants.MIN_OUTLIER_LIMIT)

    @cached_property
    def sample(self) -> Residuals:
        """At random entries."""
        rows, cols, values = self.engine.draw(constants.BUDGET.judged, np.random.default_rng(self.looks[0].seed))
        return self._residuals(values, self.L.sampled(rows, cols), lambda R, scale: scale.unit_at(R, rows, cols))

    @cached_property
    def block(self) -> Residuals:
        """Where some rows and columns meet."""
        assert self.looks[1].lines is not None
        lines = self.looks[1].lines
        L = self.L.part(*lines).dense()
        return self._residuals(self.engine.block(*lines), L, lambda R, scale: scale.unit_table(R, *lines))

    def _residuals(self, values: Array, L: Array, unit_of: Callable[[Array, EntryScale], Array]) -> Residuals:
        values, scale = np.asarray(values, float), self.state.scale
        R: Array = values - L
        unit: Any = 1.0 if scale is None else unit_of(R, scale)
        kept = np.abs(R) <= self.judge.limit * (1.0 if self.judge.scale is None else unit)  # NaN is not kept
        if scale is None:
            unit = max(float(np.sqrt(np.mean(R[kept] ** 2))) if kept.any() else 0.0, 1e-150)
        return Residuals(values, L, kept, unit, np.where(kept, R, 0.0) / unit)

    @property
    def unseen(self) -> Unseen | None:
        """How well cells are predicted that a fit has not seen, if there is a model to tell."""
        return None if self.state.certificate is None else self.state.certificate.unseen

    @property
    def tied(self) -> tuple[bool, bool]:
        """Whether rows, and columns, are exactly what their features say."""
        tied: tuple[bool, bool] = getattr(self.state.fit, "tied", (self.features[0].given, self.features[1].given))
        return tied


def doubts_of(case: Case) -> tuple[Doubt, ...]:
    """What all checks have to say; where a run was cut short or failed, only what does not need a finished fit."""
    found = list(case.state.doubts)
    finished = case.status in (Status.CONVERGED, Status.MAX_ITER)
    for check in (*ALWAYS, *FINISHED) if finished else ALWAYS:
        if case.state.maps is None or check not in OF_VALUES:
            found += check(case)
    return tuple(found)


def labelled(doubts: Sequence[Doubt], row_labels: Labels | None, column_labels: Labels | None) -> tuple[Doubt, ...]:
    """The same doubts, with labels in the place of positions where there are labels."""
    return tuple(_labelled(doubt, row_labels, column_labels) for doubt in doubts)


def _labelled(doubt: Doubt, row_labels: Labels | None, column_labels: Labels | None) -> Doubt:
    if not doubt.template or (row_labels is None and column_labels is None):
        return doubt
    rows, columns = _texts(doubt.rows, row_labels), _texts(doubt.columns, column_labels)
    places = {"lines": rows or columns, "rows": rows, "columns": columns, "row": rows[:1]}
    text = doubt.template
    for place, found in places.items():
        text = text.replace(f"{{{place}}}", names(found))
    return replace(doubt, text=text)


def _texts(lines: tuple[int, ...], labels: Labels | None) -> list[str]:
    some = np.array(lines[: NAMED + 1], np.intp)
    return [str(i) for i in some] if labels is None else labels.take(some).texts()


# What does not need a finished fit


def failure(case: Case) -> Iterator[Doubt]:
    if case.state.failure:
        yield Doubt("failure", case.state.failure)


def unknown_lines(case: Case) -> Iterator[Doubt]:
    """Lines with too few entries for L to be known, or none at all, so that only features speak for them."""
    for axis, (F, known, counts) in enumerate(zip(case.features, case.known, case.engine.counts, strict=True)):
        have = f"{SIDES[axis]} has", f"{SIDES[axis]}s have"
        unknown, empty = np.flatnonzero(~known), np.flatnonzero(known & (counts == 0))
        if len(unknown):
            few = "no values" if not counts[unknown].any() else f"fewer than {max(case.L.rank, 1)} values"
            text = f"{count(len(unknown), *have)} {few}: {{lines}}. There are no expected values there"
            yield about_lines("unknown-lines", axis, unknown, f"{text}, no outliers, and gaps stay empty")
        if len(empty) and F.given:
            text = f"{count(len(empty), *have)} no values: {{lines}}. "
            yield about_lines("unseen-lines", axis, empty, text + "What is expected there rests on the features alone")


# Cells that a fit has not seen


def predicted(case: Case) -> Iterator[Doubt]:
    """Whether expected values are closer to such cells than the medians of their columns are."""
    unseen = case.unseen
    if unseen is None or not case.L.rank or unseen.skill >= LEAST_SKILL:
        return
    if unseen.skill <= 0:
        yield Doubt(
            "not-predicted",
            "cells that a fit has not seen are predicted no better than by the medians of their columns. Add rows, or "
            "features of the rows or columns",
        )
    else:
        yield Doubt(
            "hardly-better",
            "expected values are less than a tenth closer to cells that a fit has not seen than the medians of their "
            "columns are: look at the outliers, but do not fill gaps or replace cells by what is expected",
        )


def intervals(case: Case) -> Iterator[Doubt]:
    """Whether 95 % intervals hold, beyond chance, when they are corrected by other cells."""
    unseen, (low, high) = case.unseen, constants.COVERED_BY_INTERVALS
    if unseen is None or not case.L.rank:
        return
    share = unseen.covered[1]
    chance = constants.TIE_STANDARD_ERRORS * np.sqrt(share * (1 - share) / max(unseen.cells, 1))
    if share + chance < low or share - chance > high:
        yield Doubt(
            "intervals",
            f"95 % intervals hold {share:.0%} of the cells that a fit has not seen: neither they nor probabilities can "
            "be relied on. Add rows, or set a lower rank=",
        )


def same_outliers(case: Case) -> Iterator[Doubt]:
    if case.unseen is not None and case.unseen.agreement < constants.MAJORITY:
        yield Doubt(
            "other-outliers",
            f"only {case.unseen.agreement:.0%} of the outliers are among the clearest by fits that have not seen them: "
            "another fit would list others. Look at each before it is replaced",
        )


def small_table(case: Case) -> Iterator[Doubt]:
    n = case.engine.n_observed
    if n < constants.BUDGET.fewest:
        text = (
            f"the table has only {n} values: any pattern may be chance. At least {constants.BUDGET.fewest} are needed"
        )
        yield Doubt("too-small", f"{text}, and several hundred to find outliers reliably")


# The residuals


def skewed(case: Case) -> Iterator[Doubt]:
    """Whether 95 % intervals, which are as wide on both sides, leave hardly any clean cells out on one of them."""
    calibration, scale = case.judge.calibration, case.judge.scale
    if calibration is None or scale is None or not calibration.skewed:
        return
    below, inside = calibration.below(REACH * scale.tail * np.array([-1.0, 1.0])).tolist()
    above = 1 - inside
    least = (1 - constants.COVERED_BY_INTERVALS[1]) / 2
    if (below < least) != (above < least):
        yield Doubt(
            "skewed-noise",
            f"the noise is not symmetric: {above:.1%} of the clean cells are above their 95 % intervals, {below:.1%} "
            "below. Outliers are judged on either side by themselves, but intervals are as wide on both, and expected "
            "values are not means. If all values are positive, fit their logarithms, np.log(table)",
        )


def noise_grows(case: Case) -> Iterator[Doubt]:
    """Whether residuals are larger where L is, by their rank correlation."""
    look = case.sample
    size, L = np.abs(look.z[look.kept]), np.abs(look.L[look.kept])
    if case.noiseless or case.L.rank == 0 or len(size) < 100 or not np.ptp(L):
        return
    low, high = np.quantile(L, (0.25, 0.75))
    small, large = (float(np.median(size[part])) for part in (low >= L, high <= L))
    significant = spearmanr(size, L).statistic > constants.SIGNIFICANT_STANDARD_ERRORS / np.sqrt(len(L))
    if significant and large > constants.MIN_NOISE_GROWTH * small:
        yield Doubt(
            "noise-grows",
            f"large values scatter more: {large / max(small, 1e-300):.1f} times as much in the quarter of the cells "
            "with the largest expected values as in that with the smallest. Too many large values are called outliers, "
            "too few small ones. If all values are positive, fit their logarithms, np.log(table); for counts, "
            "np.sqrt(table)",
        )


def structure_left(case: Case) -> Iterator[Doubt]:
    """The largest singular value of a block of residuals, against that of independent noise of the same variances."""
    if case.noiseless or resolution(*np.unique(case.sample.values, return_counts=True)):  # rounding follows L
        return
    Z = case.block.z
    squares = Z**2
    lengths = [float(np.sqrt(squares.sum(axis=axis).max(initial=0.0))) for axis in (0, 1)]
    edge = sum(lengths) + float(np.sqrt(squares.sum() / max(int(case.block.kept.sum()), 1)))
    s = float(np.sqrt(np.linalg.eigvalsh(Z.T @ Z)[-1]))  # all singular values would take longer
    if s > constants.NOISE_EDGE_FACTOR * edge > 0:
        yield Doubt(
            "structure-left",
            f"what is left over still has a pattern, {s / edge:.1f} times as strong as noise would "
            "have: the fit misses "
            "something, and calls it noise and outliers. Raise rank=; with features, set extra_rank='auto'",
        )


# The outliers


def many_outliers(case: Case) -> Iterator[Doubt]:
    """Nearly half; that the others fit to rounding is no chance, however few they are."""
    if case.outliers is None or case.exact:
        return
    share = int(case.outliers[0].sum()) / case.engine.n_observed
    if share > constants.MAX_OUTLIER_SHARE:
        yield Doubt(
            "many-outliers",
            f"{share:.0%} of the cells are outliers. So many are rarely all wrong: the fit is probably too simple. "
            "Try features of the rows or columns, or a higher rank=",
        )


def broken_lines(case: Case) -> Iterator[Doubt]:
    """Lines most of whose entries are outliers, more than chance puts there; of an exact fit, those it does not fit."""
    if case.outliers is None or any(doubt.kind == "broken-lines" for doubt in case.state.doubts):
        return
    for axis in (0, 1):
        counts, found = case.engine.counts[axis], case.outliers[axis]
        if case.exact and not case.tied[axis]:
            lines = np.flatnonzero((counts - found < case.L.rank + MIN_LINE_EVIDENCE) & (found > 0) & case.known[axis])
            if len(lines):
                yield unfitted_lines(axis, lines)
                return
        share = found / np.maximum(counts, 1)
        if share.max() <= constants.MAJORITY:
            continue
        usual = float(np.clip(np.median(share), 1e-3, 1.0))
        chance = usual * counts + constants.SIGNIFICANT_STANDARD_ERRORS * np.sqrt(usual * (1 - usual) * counts)
        lines = np.flatnonzero((share > constants.MAJORITY) & (found > chance))
        if len(lines):
            rest = "rest on the features alone" if case.features[axis].given else "are unreliable"
            text = f"in {count(len(lines), SIDES[axis])} more than half of the cells are outliers: {{lines}}. "
            text += f"The expected values there {rest}. Check their source, or leave them out"
            yield about_lines("broken-lines", axis, lines, text)


def noisy_rows(case: Case) -> Iterator[Doubt]:
    """Rows far noisier than others, and so many that not all that is left over there is called a gross error.

    Columns may hold different quantities, of which some are harder to predict.
    """
    fit = case.state.fit
    if fit is None or case.noiseless:
        return
    rows = fit.noise.noisy_rows
    if len(rows) > constants.MAX_NOISY_LINES * len(fit.noise.rows):
        times = float(np.sqrt(np.median(fit.noise.rows[rows]) / np.median(fit.noise.rows)))
        text = f"{count(len(rows), 'row scatters', 'rows scatter')} about {times:.1f} times as much as the others: "
        text += (
            "{lines}. If that is not their nature, many of their cells are wrong, most of which are taken for noise "
        )
        yield about_lines("noisy-rows", 0, rows, text + "there and not listed. Check their source, or leave them out")


# What L explains


def no_pattern(case: Case) -> Iterator[Doubt]:
    if case.L.rank == 0:
        yield Doubt(
            "no-pattern",
            "no pattern is stronger than the noise, so no cell can be called wrong: all expected values are zero. Add "
            "rows, or features of the rows or columns",
        )


def hardly_predicted(case: Case) -> Iterator[Doubt]:
    """How much of the differences between lines features predict, by adjusted R² of their factors."""
    fit = case.state.fit
    if fit is None or any(case.tied) or not case.L.rank:
        return
    for axis, (F, side, other) in enumerate(
        zip(case.features, (fit.rows, fit.cols), (fit.cols, fit.rows), strict=True)
    ):
        seen = case.engine.counts[axis] > 0
        freedom = int(seen.sum()) - F.d - 1
        if not F.given or freedom < 1:
            continue
        away, all_of_it = (
            float(np.sum((A.T @ A) * other.second))
            for A in ((side.mean - side.expected)[seen], (side.mean - side.mean[seen].mean(axis=0))[seen])
        )
        predicted = 1 - away / max(all_of_it, 1e-300) * (int(seen.sum()) - 1) / freedom
        if predicted < LEAST_SKILL:  # not closer by a tenth
            name, line = ("row_features", "col_features")[axis], SIDES[axis]
            yield Doubt(
                "hardly-predicted",
                f"{name} predict {max(predicted, 0.0):.0%} of the differences between {line}s: for new {line}s, "
                f"predict({name}=…) is hardly better than the average {line}. The outliers here are not affected. "
                f"Check that its rows are in the order of the table's {line}s"
                + (". For new rows with data, use outliers(new_rows)" if axis == 0 else ""),
            )


def free_part_in_few(case: Case) -> Iterator[Doubt]:
    """Whether what features do not explain lies where some rows and some columns meet, and nowhere else."""
    if any(case.tied) or not case.L.rank or not any(F.given for F in case.features):
        return
    free, few = outside(case.L, *case.features), []
    for A, F in zip((free.left @ free.core, free.right @ free.core.T), case.features, strict=True):
        energy = np.sort((A * A).sum(axis=1))
        spread = F.d / F.n / 2 if F.given else 0.0  # as much is moved to half of the lines when it is left out
        if energy[: len(energy) // 2].sum() >= (constants.MIN_SMALLER_HALF_ENERGY + spread) * energy.sum():
            return
        few.append(int(np.count_nonzero(energy > energy.mean())))
    yield Doubt(
        "free-part-in-few",
        f"about {few[0]} rows and {few[1]} columns share a pattern that the features do not explain: "
        "it may be real, or "
        "these cells are wrong together. If they are wrong, set extra_rank=0 and fit again",
    )


Check = Callable[[Case], Iterator[Doubt]]
# Where columns are mapped, these would speak of latent values; what they look for is what maps are made for.
OF_VALUES: tuple[Check, ...] = (noise_grows, skewed)
ALWAYS: tuple[Check, ...] = (failure, unknown_lines)
FINISHED: tuple[Check, ...] = (
    predicted,
    intervals,
    same_outliers,
    small_table,
    no_pattern,
    hardly_predicted,
    free_part_in_few,
    structure_left,
    broken_lines,
    noisy_rows,
    many_outliers,
    noise_grows,
    skewed,
)
