"""Every check of a finished fit, of any solver: what was seen, what it means, what to do.

A check is a function of a :class:`Case` that yields a :class:`~irpca.result.Doubt` or none. Thresholds are in
:mod:`irpca.constants`, with their reasons. Code that has to know what was doubted compares kinds, never texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from . import constants
from .cached import cached_property
from .engines.base import Engine, Look
from .features import Features, outside
from .labels import Labels
from .lowrank import Array, LowRank, squared_lengths
from .model.choice import skewness
from .model.entry_scale import Judge
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

SIDES = ("row", "column")


@dataclass(frozen=True, eq=False)
class Residuals:
    """Some entries of M, and how L meets them.

    Attributes
    ----------
    values, L, R : arrays of one shape
        M, L and M − L; M and M − L are NaN where M is not observed.
    scale : array
        The standard deviation that M − L should have.
    kept : boolean array
        Observed, and no outlier.
    """

    values: Array
    L: Array
    R: Array
    scale: Array
    kept: Array

    @property
    def z(self) -> Array:
        """Residuals in units of their own standard deviation; 0 where they are not kept."""
        return np.where(self.kept, self.R, 0.0) / self.scale


@dataclass(eq=False)
class Places:
    """Where a finished fit is checked: chosen before M is looked at, so that one read of it can serve all checks.

    Attributes
    ----------
    shape : of M
    seed : for the choice
    """

    shape: tuple[int, int]
    seed: np.random.SeedSequence

    @cached_property
    def seeds(self) -> dict[str, np.random.SeedSequence]:
        return dict(zip(("entries", "lines"), children(self.seed, 2), strict=True))

    @cached_property
    def lines(self) -> tuple[Array, Array]:
        """Some rows and columns."""
        rng = np.random.default_rng(self.seeds["lines"])
        rows, cols = (np.sort(rng.choice(n, min(n, constants.BUDGET.lines), replace=False)) for n in self.shape)
        return rows, cols

    def looks(self) -> list[Look]:
        return [Look(size=constants.BUDGET.judged, seed=self.seeds["entries"]), Look(lines=self.lines)]


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
    def places(self) -> Places:
        return Places(self.engine.shape, self.seed)

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
        if self.exact or (self.state.scale is None and self.common <= constants.MIN_DETECTABLE_NOISE * typical):
            return True
        sizes = np.abs(self.sample.z[self.sample.kept])
        return not len(sizes) or bool(np.quantile(sizes, 0.99) < constants.MIN_OUTLIER_LIMIT)

    @cached_property
    def drawn(self) -> tuple[Array, Array, Array]:
        return self.engine.draw(constants.BUDGET.judged, np.random.default_rng(self.places.seeds["entries"]))

    @cached_property
    def expected(self) -> Array:
        """L at those entries."""
        rows, cols, _ = self.drawn
        return self.L.sampled(rows, cols)

    @cached_property
    def sample(self) -> Residuals:
        """At random entries."""
        rows, cols, values = self.drawn
        scale = self.state.scale
        return self._residuals(
            values,
            self.expected,
            lambda R: np.full(len(rows), self.common) if scale is None else scale.unit_at(R, rows, cols),
        )

    @cached_property
    def block(self) -> Residuals:
        """Where some rows and columns meet."""
        return self.across(*self.places.lines)

    def across(self, rows: Array, cols: Array) -> Residuals:
        """All entries of some rows and columns."""

        def unit(R: Array) -> Array:
            scale = self.state.scale
            return np.full(R.shape, self.common) if scale is None else scale.unit_table(R, rows, cols)

        return self._residuals(self.engine.block(rows, cols), self.L.part(rows, cols).dense(), unit)

    def _residuals(self, values: Array, L: Array, unit: Callable[[Array], Array]) -> Residuals:
        values = np.asarray(values, float)
        R = values - L
        scale = unit(R)
        limit = self.judge.limit if self.judge.scale is None else self.judge.limit * scale
        return Residuals(values, L, R, scale, np.abs(R) <= limit)  # NaN is not kept

    @cached_property
    def common(self) -> float:
        """One standard deviation for all entries, where there is no noise model: that of those that are kept."""
        R = np.abs(np.asarray(self.drawn[2], float) - self.expected)
        kept = R if self.judge.scale is not None else R[self.judge.limit >= R]
        size = float(np.sqrt(np.mean(kept**2))) if len(kept) else 0.0
        return max(size, 1e-150)

    @cached_property
    def distinct(self) -> tuple[Array, Array]:
        """The values at random entries in order, each once, and how often each occurs."""
        values, counts = np.unique(self.sample.values, return_counts=True)
        return values, counts

    @cached_property
    def step(self) -> float:
        """The step between values that come in steps; 0 if they do not."""
        return 2 * resolution(*self.distinct)

    @property
    def unseen(self) -> Unseen | None:
        """How well cells are predicted that a fit has not seen, if there is a model to tell."""
        return None if self.state.certificate is None else self.state.certificate.unseen

    def error(self, lines: tuple[float, float], entries: float) -> float:
        """The standard error of L that noise makes, from so many entries of so many rows and columns.

        ``σ · sqrt(unknowns / entries)`` with ``rank · (d1 + d2 − rank)`` unknowns; d is the number of features of a
        side, or that of its lines if it has none or need not keep to them.
        """
        d = [F.d if tied else n for F, tied, n in zip(self.features, self.tied, lines, strict=True)]
        unknowns = self.L.rank * max(sum(d) - self.L.rank, 1)
        return float(self.noise * np.sqrt(unknowns / entries))

    @property
    def noise(self) -> float:
        """Its standard deviation; where columns are mapped, and differ widely, the root mean square of all."""
        scale = self.state.scale
        if scale is None or scale.maps is None:
            return self.state.noise or 0.0
        return float(scale.tail * np.sqrt(scale.rows.mean() * scale.cols.mean()))

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
    text = doubt.template.replace("{lines}", names(rows or columns))
    for place, found in (("row", rows), ("column", columns)):
        text = text.replace(f"{{{place}s}}", names(found)).replace(f"{{{place}}}", found[0] if found else "")
    return replace(doubt, text=text)


def _texts(lines: tuple[int, ...], labels: Labels | None) -> list[str]:
    some = np.array(lines[: NAMED + 1], np.intp)
    return [str(i) for i in some] if labels is None else labels.take(some).texts()


def _counted(n: int, axis: int, one: str, more: str) -> str:
    """``1 row has`` or ``3 rows have``."""
    return f"{n} {SIDES[axis]} {one}" if n == 1 else f"{n} {SIDES[axis]}s {more}"


# What does not need a finished fit


def failure(case: Case) -> Iterator[Doubt]:
    if case.state.failure:
        yield Doubt("failure", case.state.failure)


def unknown_lines(case: Case) -> Iterator[Doubt]:
    """Lines with too few entries for L to be known, or none at all, so that only features speak for them."""
    for axis, (F, known, counts) in enumerate(zip(case.features, case.known, case.engine.counts, strict=True)):
        unknown, empty = np.flatnonzero(~known), np.flatnonzero(known & (counts == 0))
        if len(unknown):
            few = "no values" if not counts[unknown].any() else f"fewer than {max(case.L.rank, 1)} values"
            text = f"{_counted(len(unknown), axis, 'has', 'have')} {few}: {{lines}}. There are no expected values there"
            yield about_lines("unknown-lines", axis, unknown, f"{text}, no outliers, and gaps stay empty")
        if len(empty) and F.given:
            text = f"{_counted(len(empty), axis, 'has', 'have')} no values: {{lines}}. "
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


# The values


def out_of_range(case: Case) -> Iterator[Doubt]:
    """L at the entries where it is largest, against the range of the entries that are not outliers."""
    if case.L.rank == 0:
        return
    L = case.L
    lines = _longest(L.left, L.core, case.known[0]), _longest(L.right, None, case.known[1])
    if not all(map(len, lines)):
        return
    far = L.part(*lines).dense()
    look = case.sample
    seen = look.values[look.kept]
    if not len(seen):
        return
    low, high = float(seen.min()), float(seen.max())
    rounding = constants.MIN_DETECTABLE_NOISE * max(abs(low), abs(high))
    room = constants.MAX_EXTRAPOLATION * (high - low) + rounding
    if far.min() < low - room or far.max() > high + room:
        there = case.across(*lines)  # perhaps M is as large there
        low, high = (f((end, *there.values[there.kept])) for f, end in ((min, low), (max, high)))
        room = constants.MAX_EXTRAPOLATION * (high - low) + rounding
        outside = (far < low - room) | (far > high + room)
        if outside.any():
            i, j = (line[k] for line, k in zip(lines, np.unravel_index(outside.argmax(), outside.shape), strict=True))
            worst = far.max() if far.max() - high > low - far.min() else far.min()
            template = (
                f"expected values reach {worst:.3g} (row {{row}}, column {{column}}), while clean cells are between "
                f"{low:.3g} and {high:.3g}: too many patterns for so little data. Set a lower rank="
            )
            text = template.replace("{row}", str(i)).replace("{column}", str(j))
            yield Doubt("out-of-range", text, (int(i),), (int(j),), template)


def _longest(B: Array, A: Array | None, known: Array) -> Array:
    """The known lines that are longest in ``B @ A``, A None being the identity; of equally long ones, the first."""
    lengths = np.where(known, squared_lengths(B, A), -1.0)
    most = min(constants.BUDGET.lines, int(np.count_nonzero(known)))
    if not most:
        return np.zeros(0, np.intp)
    lines = np.flatnonzero(lengths >= np.partition(lengths, -most)[-most])  # to sort all would take longer
    return lines[np.argsort(-lengths[lines], kind="stable")[:most]]


# The residuals


def skewed(case: Case) -> Iterator[Doubt]:
    """Bowley's coefficient of the residuals."""
    z = case.sample.z[case.sample.kept]
    if case.noiseless or case.step or len(z) < 100:
        return
    skew = skewness(z)
    significant = constants.SIGNIFICANT_STANDARD_ERRORS * constants.SKEWNESS_ERROR / np.sqrt(len(z))
    if abs(skew) > max(constants.MAX_SKEWNESS, significant):
        side = "above" if skew > 0 else "below"
        yield Doubt(
            "skewed-noise",
            f"the noise is not symmetric: it reaches further {side} the expected values (skewness "
            f"{skew:+.2f}). Outliers are judged on either side by themselves, but intervals are as wide on both, and "
            "expected values are not means. If all values are positive, fit their logarithms, np.log(table)",
        )


def noise_grows(case: Case) -> Iterator[Doubt]:
    """Rank correlation of the sizes of residuals with those of L."""
    look = case.sample
    n = int(look.kept.sum())
    if case.noiseless or n < 100 or case.L.rank == 0:
        return
    size, L = np.abs(look.z[look.kept]), np.abs(look.L[look.kept])
    r = float(np.corrcoef(_ranks(size), _ranks(L))[0, 1]) if np.ptp(L) > 0 else 0.0
    low, high = np.quantile(L, (0.25, 0.75))
    small, large = (float(np.sqrt(np.mean(size[part] ** 2))) for part in (low >= L, high <= L))
    significant = constants.SIGNIFICANT_STANDARD_ERRORS / np.sqrt(n)
    if r > max(constants.MAX_SIZE_CORRELATION, significant) and large > constants.MIN_NOISE_GROWTH * small:
        yield Doubt(
            "noise-grows",
            f"large values scatter more: {large / max(small, 1e-300):.1f} times as much in the "
            "quarter of the cells with "
            "the largest expected values as in that with the smallest. Too many large values are called outliers, too "
            "few small ones. If all values are positive, fit their logarithms, np.log(table); for "
            "counts, np.sqrt(table)",
        )


def _ranks(x: Array) -> Array:
    ranks = np.empty(len(x))
    ranks[np.argsort(x, kind="stable")] = np.arange(len(x))
    return ranks


def structure_left(case: Case) -> Iterator[Doubt]:
    """The largest singular value of a block of residuals, against that of independent noise of the same variances."""
    if case.noiseless or case.step:  # rounding follows L
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
    """More than a quarter; nearly half if they are apart from the noise, or if unseen cells tell how good the fit is.

    That many cells fit to rounding is no chance, however few.
    """
    if case.outliers is None or case.exact:
        return
    share = int(case.outliers[0].sum()) / case.engine.n_observed
    many = share > constants.MAX_SEPARATED_OUTLIER_SHARE
    if not many and (share <= constants.MAX_OUTLIER_SHARE or case.unseen is not None or _separated(case)):
        return
    yield Doubt(
        "many-outliers",
        f"{share:.0%} of the cells are outliers. So many are rarely all wrong: the fit is probably too simple. "
        "Try features of the rows or columns, or a higher rank=",
    )


def one_sided(case: Case) -> Iterator[Doubt]:
    """Outliers of one sign that go on below the limit: those that hide in the noise draw L to their side.

    Those are about as many as lie between the limit and twice the limit, or twice as many as lie just below it; they
    shift L by half the limit each.
    """
    if case.outliers is None or case.noiseless or not case.L.rank:
        return
    size = _in_limits(case)
    beyond, below = (np.sign(size[(np.abs(size) > low) & (np.abs(size) < 2 * low)]) for low in (1.0, 0.5))
    side = np.sign(beyond.sum())
    excess = side * beyond.sum()
    if len(beyond) < constants.BUDGET.fewest or excess <= constants.SIGNIFICANT_STANDARD_ERRORS * np.sqrt(len(beyond)):
        return
    if side * below.sum() <= constants.TIE_STANDARD_ERRORS * np.sqrt(len(below)):
        return
    typical = float(np.median(np.abs(case.sample.R / np.where(size == 0, np.inf, size))))
    shift = float(min(excess, 2 * side * below.sum())) / len(size) * typical / 2
    error = case.error(case.engine.shape, case.engine.n_observed)
    if shift > error:
        yield Doubt(
            "one-sided",
            f"most small outliers are {'too high' if side > 0 else 'too low'}. More must be hidden in the noise, and "
            f"shift the expected values by about {side * shift:+.2g} (standard error {error:.2g}): subtract that if it "
            "matters",
        )


def _in_limits(case: Case) -> Array:
    """Residuals at random entries, in units of what an outlier exceeds."""
    look, judge = case.sample, case.judge
    sizes: Array = look.R / (judge.limit if judge.scale is None else judge.limit * look.scale)
    return sizes


def _separated(case: Case) -> bool:
    """Whether hardly any residual is near the limit."""
    size = np.abs(_in_limits(case))
    near = (size > 1 / constants.NEAR_LIMIT_FACTOR) & (size < constants.NEAR_LIMIT_FACTOR)
    return bool(near.sum() < constants.MAX_NEAR_LIMIT_SHARE * (size > 1).sum())


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
            text = f"in {_counted(len(lines), axis, 'more', 'more')} than half of the cells are outliers: {{lines}}. "
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
        text = f"{_counted(len(rows), 0, 'scatters', 'scatter')} about {times:.1f} times as much as the others: "
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


def weak_features(case: Case) -> Iterator[Doubt]:
    """The share of L within what features span, against that of as many features at random."""
    share = case.state.shares.get("features")
    if share is None:
        return
    by_chance = 1.0
    for F in case.features:
        by_chance *= F.d / F.n if F.given else 1.0
    if share < min(constants.MIN_FEATURE_ADVANTAGE * by_chance, 1 - by_chance):
        yield Doubt(
            "weak-features",
            f"the features explain {share:.1%} of the expected values; as many random columns would explain "
            f"{by_chance:.1%}. They hardly help: check that their rows are in the order of the table, "
            "or leave them out",
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
        if predicted < constants.MIN_FEATURE_R2:
            name, line = ("row_features", "col_features")[axis], SIDES[axis]
            yield Doubt(
                "hardly-predicted",
                f"{name} predict {max(predicted, 0.0):.0%} of the differences between {line}s: for new {line}s, "
                f"predict({name}=…) is hardly better than the average {line}. The outliers here are not affected"
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
OF_VALUES: tuple[Check, ...] = (out_of_range, noise_grows, skewed)
ALWAYS: tuple[Check, ...] = (failure, unknown_lines)
FINISHED: tuple[Check, ...] = (
    predicted,
    intervals,
    same_outliers,
    small_table,
    out_of_range,
    no_pattern,
    weak_features,
    hardly_predicted,
    free_part_in_few,
    structure_left,
    broken_lines,
    noisy_rows,
    many_outliers,
    one_sided,
    noise_grows,
    skewed,
)
