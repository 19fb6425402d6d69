"""The exact fit where features determine one side of L or both: trimmed least squares, on as much of M as it takes.

Entries beyond a threshold count as missing, so each step is least squares on the kept ones. The threshold comes from
the residuals themselves: clean ones are as small as L is wrong, gross errors of any kind are far more spread out, so
the clean ones are a peak at zero over a flat ground, even where they are one in a hundred. Each step narrows the
peak, until it is rounding. Every block of M with features of both sides has the same W, so a small block is tried
first, and larger ones, up to all of M, as long as they may tell more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .. import constants
from ..engines.base import Engine, Normal, Trim
from ..features import Features
from ..lowrank import Array, LowRank, relative_change, relative_distance
from ..model.peaks import Peak, find_peak
from ..problem import Problem
from ..regression import conjugate_gradients, regress_rows
from ..result import MIN_LINE_EVIDENCE, Choice, State, unfitted_lines
from ..sample import Sample, in_memory, rounding_floor
from .blocks import ROWS_PER_FEATURE, Block, FeatureBlock, draw_blocks, draw_lines

EXACT = Choice("noise", 0.0, "the residuals of all cells that are not outliers are rounding errors")
NOT_EXACT = (
    "no L fits more cells to rounding than chance explains, so no exact fit was found, and what is returned is no "
    "answer. If values are noisy, or features do not explain all of L, use solver='irpca'"
)


def iterate(problem: Problem) -> Iterator[State]:
    """Trimmed least squares in feature space, for data without noise; needs features of both sides, or of one.

    In a large table it recovers L from one clean cell in a hundred with features of both sides, from one to three in
    ten with those of one side; and it certifies itself: so many residuals at rounding cannot be chance. Where there is
    no exact fit, the result says so.
    """
    if not any(problem.given):
        raise ValueError("solver='trimmed' needs features of rows or columns; solver='irpca' does without")
    found = yield from search(problem)
    if found and found.certified:
        yield found.state(problem)
    L = LowRank.zero(problem.shape) if found is None else found.L
    while True:
        yield State(L, float(np.median(problem.sample.sizes(L))), 0.0, failure=NOT_EXACT)


def search(problem: Problem) -> Generator[State, None, TrimmedFit | None]:
    """Look for an exact fit; the best that was found, with the states on the way to it."""
    looking, found = Search(problem, problem.rng("blocks"), problem.rng("block fits")), None
    for found in looking.fits():
        if found.exact.zeta is None:
            yield State(found.L, np.inf, 1.0, settled=False, stage="looking for an exact fit")
    if found and found.exact.zeta is not None and not looking.missed_lines(found):
        return replace(found, certified=True)
    return found


@dataclass(frozen=True, eq=False)
class Exactness:
    """Whether a fit is exact, judged by the residuals at sampled entries.

    Attributes
    ----------
    zeta : float or None
        A larger residual is a gross error; None: the fit is not exact.
    clean : float
        Share of the entries within it; if zeta is None, of those fitted to rounding.
    score : float
        Mean logarithm of the residuals: the lower, the better the fit.
    """

    zeta: float | None
    clean: float
    score: float


def exactness(sample: Sample, L: LowRank, entries: int, unknowns: int) -> Exactness:
    """Whether L fits more entries to rounding than chance explains.

    Values that occur often, such as zeros, are left out: a wrong L may fit them exactly too.
    """
    fitted = sample.at(L)
    sizes = np.abs(sample.values - fitted)
    largest = min(float(np.abs(x).max(initial=0.0)) for x in (fitted, sample.values))  # L may have run away
    floor = max(rounding_floor(sample.dtype, largest), sample.stored_precision(largest))
    telling = sizes[sample.rare]
    close = telling[telling <= constants.ROUNDING_MARGIN * floor]
    score = float(np.log(np.maximum(sizes, max(floor, np.finfo(float).tiny))).mean())
    needed = max(constants.MIN_ENTRIES_PER_UNKNOWN * unknowns / entries, sample.by_chance) * len(telling)
    # Else L may be no larger than rounding.
    distinguishable = floor <= constants.MAX_RELATIVE_ROUNDING * float(np.std(fitted))
    if not distinguishable or len(close) < max(needed, constants.BUDGET.fewest) or np.median(close) > floor:
        # With noise, twice as many residuals are within twice the limit; those are subtracted.
        once, twice = (int(np.count_nonzero(telling <= k * constants.ROUNDING_SPREAD * floor)) for k in (1, 2))
        return Exactness(None, max(2 * once - twice, 0) / max(len(telling), 1), score)
    # Rounding grows where features are coherent; gross errors are far larger than the residuals of clean entries.
    zeta = max(floor, constants.ROUNDING_SPREAD * _largest_rounding(close, constants.ROUNDING_MARGIN * floor))
    return Exactness(zeta, float(np.mean(sizes <= zeta)), score)


def _largest_rounding(close: Array, limit: float) -> float:
    """A size that all but a thousandth of the rounding errors among residuals up to ``limit`` are within.

    The others are gross errors that happen to be small: evenly distributed, so that those in the upper half of the
    range tell how many are below any size.
    """
    sizes = np.sort(close)
    density = np.count_nonzero(sizes > 0.5 * limit) / (0.5 * limit) if limit > 0 else 0.0
    rounding = np.arange(1, len(sizes) + 1) - density * sizes  # how many there are up to each size
    enough = rounding >= 0.999 * (len(sizes) - density * limit)
    return float(sizes[int(np.argmax(enough))])


@dataclass(frozen=True, eq=False)
class TrimmedFit:
    """The best fit found, and whether sampled entries show it to be exact.

    Attributes
    ----------
    L, exact : LowRank, Exactness
    unfitted : rows and columns that it does not fit
    certified : whether it is exact at lines of high leverage, too
    """

    L: LowRank
    exact: Exactness
    unfitted: tuple[Array, ...] = ()
    certified: bool = False

    def state(self, problem: Problem) -> State:
        """An exact fit of the features."""
        L, exact = self.L, self.exact
        assert exact.zeta is not None
        reason = (
            f"the singular values after the first {L.rank} are rounding errors"
            if L.rank < min(problem.F1.d, problem.F2.d)
            else "all singular values are larger than rounding errors"
        )
        chosen = () if problem.rank else (Choice("rank", L.rank, reason),)
        doubts = tuple(unfitted_lines(axis, lines) for axis, lines in enumerate(self.unfitted) if len(lines))
        corruption = 1 - exact.clean
        return State(
            L, exact.zeta, 0.0, noise=0.0, expected_corruption=corruption, choices=(*chosen, EXACT), doubts=doubts
        )


@dataclass(frozen=True, eq=False)
class Search:
    """What an exact fit is looked for in, and by what.

    Attributes
    ----------
    problem : Problem
    lines, rng : choose the rows and columns that are looked at, and the entries by which thresholds are set
    """

    problem: Problem
    lines: np.random.Generator
    rng: np.random.Generator

    def fits(self) -> Iterator[TrimmedFit]:
        """Fits, each the best so far; the last is exact, or no exact fit was found."""
        return _on_blocks(self) if all(self.problem.given) else _on_lines(self)

    def judged(self, L: LowRank, unknowns: int) -> Exactness:
        """Whether an L with so many unknowns is exact."""
        return exactness(self.problem.sample, L, self.problem.engine.n_observed, unknowns)

    def missed_lines(self, found: TrimmedFit) -> bool:
        """Whether rows or columns of high leverage are badly fitted: too few of them to show in the sample."""
        L, exact, rng = found.L, found.exact, self.rng
        assert exact.zeta is not None
        engine, n = self.problem.engine, self.problem.shape
        for axis, F in enumerate(self.problem.features):
            if F.given and F.coherent:
                lines = draw_lines(F, min(256, F.n), rng)  # those of high leverage first
                across = rng.integers(n[1 - axis], size=(len(lines), 128))
                along = np.broadcast_to(lines[:, None], across.shape)
                rows, cols = (along.ravel(), across.ravel()) if axis == 0 else (across.ravel(), along.ravel())
                sizes = np.abs(engine.entries(rows, cols) - L.entries(rows, cols)).reshape(across.shape)
                seen = np.maximum((~np.isnan(sizes)).sum(axis=1), 1)
                if (((sizes <= exact.zeta).sum(axis=1) / seen) < 0.25 * exact.clean).any():
                    return True
        return False


def _on_blocks(search: Search) -> Iterator[TrimmedFit]:
    """With features of both sides: fits on blocks of growing size.

    Least squares on all entries of a block tell at the cost of one look at each whether it is worth more: an error of
    the fit is smaller on a larger block, and so is the width of the peak; noise is the same on every block.
    """
    problem, rng = search.problem, search.rng
    F1, F2, rank = problem.F1, problem.F2, problem.rank
    best: TrimmedFit | None = None
    small, fitted, before = False, 0, np.inf
    enough = min(constants.BUDGET.few // 2 * F1.d * F2.d, constants.BUDGET.block)
    for block in draw_blocks(problem.engine, F1, F2, search.lines):
        start = Descent.begin(block, rank, rng)
        large = block.engine.n_observed >= enough
        minority = start.peak.share < constants.MAJORITY and not large
        narrower, before = start.peak.zeta < constants.NARROWER * before, start.peak.zeta
        if not (fitted < 2 or minority or narrower):
            if large:
                return
            continue
        for descent in descents(start, rng):
            found = _lifted(descent.L, block, search)
            exact = found.exact.zeta is not None
            if exact and rank is None:
                found = _reduced(descent.L, found, block, search)
            if best is None or small or exact or found.exact.score < best.exact.score:
                best, small = found, block.small
            yield best
            if exact:
                return
        fitted += not block.small
        if large and fitted >= 2 and not narrower:
            return


def _lifted(L: LowRank, block: FeatureBlock, search: Search) -> TrimmedFit:
    """The fit of a block as one of M."""
    whole = block.lift(L)
    return TrimmedFit(whole, search.judged(whole, L.rank * (sum(block.unknowns) - L.rank)))


def _reduced(on_block: LowRank, found: TrimmedFit, block: FeatureBlock, search: Search) -> TrimmedFit:
    """An exact fit less the components that are rounding.

    What rounding is, the residuals of its own factors tell, too: with fewer components they round otherwise.
    """
    fewer, exact = found, found.exact
    for _ in range(2):
        rank = _exact_rank(on_block, exact, block)
        if fewer.L.rank != rank:
            fewer = _lifted(on_block.truncate(rank), block, search)
        exact = max(exact, fewer.exact, key=lambda exact: exact.zeta or 0.0)
    return TrimmedFit(fewer.L, exact)


def _exact_rank(L: LowRank, exact: Exactness, block: Block) -> int:
    """In the block's own coordinates: those of all of M stretch the block's rounding errors."""
    assert exact.zeta is not None
    rounding = exact.zeta / constants.ROUNDING_SPREAD / np.sqrt(exact.clean)
    return max(int(np.count_nonzero(L.singular_values > rounding_edge(rounding, *block.unknowns))), 1)


def _on_lines(search: Search) -> Iterator[TrimmedFit]:
    """With features of one side: what some lines of the other have in common, then every line on its own.

    Each line of the side without features is a regression on the features of the other. On some of these lines that
    has an exact fit, or on none; the components found there are few, and the other lines need to tell no more than
    those. If lines are left that do not fit, more entries of each are taken.
    """
    for at in first_lines(search.problem.shape, *search.problem.features, search.lines):
        found = _line_by_line(search, at)
        if found is not None:
            yield found
            if found.exact.zeta is not None and not found.unfitted:
                return


def first_lines(
    shape: tuple[int, int], F1: Features, F2: Features, rng: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """Rows and columns on which components are looked for, where one side has features; then more entries of each."""
    axis, F = (1, F1) if F1.given else (0, F2)
    fewest = max(constants.BUDGET.lines, 8 * ROWS_PER_FEATURE * F.d)
    most = min(F.n, max(constants.BUDGET.few, fewest))
    for entries in (fewest, most) if 2 * fewest <= most else (most,):
        across, n = draw_lines(F, entries, rng), shape[axis]
        some = np.sort(rng.choice(n, min(n, max(constants.BUDGET.lines**2 // len(across), 2)), replace=False))
        yield (some, across) if axis == 0 else (across, some)


def _line_by_line(search: Search, at: tuple[Array, Array]) -> TrimmedFit | None:
    """The fit by components found at some rows and columns."""
    problem, rng = search.problem, search.rng
    engine, rank = problem.engine, problem.rank
    axis, F = (1, problem.F1) if problem.F1.given else (0, problem.F2)  # axis is that of the side without features
    some, across = at[axis], at[1 - axis]
    n, (Q, R) = engine.shape[axis], F.restrict(across)
    block = Block(in_memory(_entries(engine, axis, some, across)), None, Q)
    if (found := _exact_on(block, rank, rng)) is None:
        return None
    L, exact = found
    assert exact.zeta is not None
    fits, _, _ = block.engine.products(L, exact.zeta, np.ones((len(across), 1)), kept=True)
    fitted = fits[:, 0] >= L.rank + MIN_LINE_EVIDENCE  # others say nothing about the components
    L = LowRank.from_product(L.left[fitted] @ L.core, L.right, rank)
    V = (L if rank else L.truncate(_exact_rank(L, exact, block))).right
    factors, kept, poor, together = np.zeros((n, V.shape[1])), np.zeros(n), np.arange(n), True
    for _ in range(constants.MAX_LINE_ROUNDS):
        for lines in [poor] if together else poor[:, None]:
            again, more, _ = fit_lines(engine, axis, lines, across, V, rng)
            better = more > kept[lines]
            factors[lines[better]], kept[lines[better]] = again[better], more[better]
        before, poor = len(poor), _poor(kept, engine.counts[axis], V.shape[1])
        stuck = len(poor) == before or len(poor) < constants.BUDGET.fewest
        if not len(poor) or not together or (stuck and len(poor) > constants.BUDGET.lines):
            break
        together = not stuck  # or they find no threshold that serves them all
    whole = LowRank.from_spans((factors, None), None, F.spanned(np.linalg.solve(R, Q.T @ V)))
    whole = whole if axis == 0 else whole.T
    judged = search.judged(whole, whole.rank * (n + F.d - whole.rank))
    if rank is None and judged.zeta is not None:
        whole = whole.truncate(_exact_rank(whole, judged, Block(engine, None, Q)))
    none = np.zeros(0, np.intp)
    return TrimmedFit(whole, judged, () if not len(poor) else (poor, none) if axis == 0 else (none, poor))


def _exact_on(block: Block, rank: int | None, rng: np.random.Generator) -> tuple[LowRank, Exactness] | None:
    """An exact fit to a block by itself, if there is one."""
    for descent in descents(Descent.begin(block, rank, rng), rng):
        L = descent.L
        exact = exactness(descent.sample, L, block.engine.n_observed, L.rank * (sum(block.unknowns) - L.rank))
        if exact.zeta is not None:
            return L, exact
    return None


def _poor(kept: Array, counts: Array, rank: int) -> Array:
    """Lines of which far fewer entries are fitted than of others, or hardly more than one for each component."""
    usual = float(np.median(kept / np.maximum(counts, 1))) if len(kept) else 0.0
    least = np.maximum(rank + MIN_LINE_EVIDENCE, constants.MAJORITY * usual * counts)
    return np.flatnonzero((kept < least) & (counts > 0))


def fit_rows(
    X: Array, V: Array, dtype: np.dtype, rng: np.random.Generator, start: Array | None = None, zeta: float = np.inf
) -> tuple[Array, Array]:
    """Coefficients of every row of X on V by trimmed least squares, and how many of its entries they fit to rounding.

    X was stored as ``dtype``. As :class:`Descent`, but each row is solved by itself. The threshold is that of the rows
    not yet fitted: those that are would make it fall before the others can follow. ``start``: coefficients that are
    nearly right, with which most clean residuals are within ``zeta``.
    """
    r = V.shape[1]
    U = np.zeros((len(X), r)) if start is None else start.copy()
    R, fitted, left = X - U @ V.T, np.zeros(len(X), int), np.arange(len(X))
    for _ in range(constants.MAX_STEPS):
        kept = np.abs(R) <= zeta  # NaN is not
        step = regress_rows(R, kept, V)
        U[left] += step
        L = U[left] @ V.T
        sizes = np.abs(X[left] - L)
        floor = rounding_floor(dtype, float(np.abs(L).max(initial=0.0)))
        fitted[left] = (sizes <= constants.ROUNDING_SPREAD * floor).sum(axis=1)
        going = fitted[left] < np.maximum(r + MIN_LINE_EVIDENCE, constants.PEAK_SHARE * kept.sum(axis=1))
        before, left, sizes = zeta, left[going], sizes[going]
        seen = sizes[np.isfinite(sizes)]
        if not len(seen):
            break
        zeta = max(
            find_peak(_some(seen, rng), floor).zeta,
            before / constants.THRESHOLD_DECAY if np.isfinite(before) else 0,
            floor,
        )
        if np.linalg.norm(step) <= constants.ROUNDING * np.linalg.norm(U) and zeta >= before / 1.02:
            break
        R = X[left] - L[going]
    if len(left := np.flatnonzero(fitted < r + MIN_LINE_EVIDENCE)):
        U[left] = _by_subsets(X[left], V, floor, rng) if start is None else start[left]
        fitted[left] = (np.abs(X[left] - U[left] @ V.T) <= constants.ROUNDING_SPREAD * floor).sum(axis=1)
    R = X - U @ V.T
    floor = rounding_floor(dtype, float(np.abs(X - R)[np.isfinite(X)].max(initial=0.0)))
    U += regress_rows(R, np.abs(R) <= constants.ROUNDING_SPREAD * floor, V)
    close = np.abs(X - U @ V.T) <= constants.ROUNDING_SPREAD * floor
    fitted = close.sum(axis=1)
    # Where those that fit hardly show some component, what they say of it may be chance.
    squares = np.einsum("ja,jb->jab", V, V).reshape(len(V), r * r)
    shown = np.linalg.eigvalsh((close @ squares).reshape(-1, r, r))[:, 0]
    fitted[shown < constants.MIN_REMAINING_MOMENT * close.mean(axis=1)] = 0
    return U, fitted


def _some(sizes: Array, rng: np.random.Generator) -> Array:
    """As many residuals as tell where their peak is."""
    most = constants.BUDGET.sample
    return sizes if len(sizes) <= most else rng.choice(sizes, most, replace=False)


def sharpen(X: Array, L: LowRank, zeta: float, dtype: np.dtype) -> LowRank:
    """Trimmed least squares from a nearly exact L, rows and columns in turn, with a threshold that falls to rounding.

    Residuals of clean entries are within ``zeta`` at first.
    """
    for _ in range(constants.MAX_STEPS):
        before = L
        for _ in range(2):  # columns are the rows of the transposed matrix
            U, V = L.left @ L.core, L.right
            R = X - U @ V.T
            U = U + regress_rows(R, np.abs(R) <= zeta, V)
            L, X = LowRank.from_product(V, U), X.T
        fitted = L.dense()
        sizes = np.abs(X - fitted)
        kept, floor = sizes[sizes <= zeta], rounding_floor(dtype, float(np.abs(fitted).max()))
        if not len(kept) or not relative_distance(L, before) > constants.ROUNDING:
            break
        zeta = min(zeta, max(10 * float(np.quantile(kept, 0.8)), zeta / constants.THRESHOLD_DECAY, floor))
    return L


def _by_subsets(X: Array, V: Array, floor: float, rng: np.random.Generator) -> Array:
    """Coefficients of every row of X on V by as many random entries as there are; those that meet the most entries.

    For rows of few entries, in which gross errors leave no peak: if one draw in a hundred is clean, it is found.
    """
    n, r = V.shape
    best, most = np.zeros((len(X), r)), np.zeros(len(X))
    for _ in range(constants.ROW_SUBSETS):
        at = np.argpartition(np.where(np.isfinite(X), rng.random(X.shape), np.inf), min(r, n - 1), axis=1)[:, :r]
        rows = np.take_along_axis(X, at, axis=1)
        A = V[at]
        usable = np.isfinite(rows).all(axis=1) & (np.abs(np.linalg.det(A)) > np.finfo(float).tiny)
        U = np.zeros((len(X), r))
        U[usable] = np.linalg.solve(A[usable], rows[usable][:, :, None])[:, :, 0]
        meets = (np.abs(X - U @ V.T) <= constants.ROUNDING_SPREAD * floor).sum(axis=1)
        better = meets > most
        best[better], most[better] = U[better], meets[better]
    return best


def _entries(engine: Engine, axis: int, lines: Array, across: Array) -> Array:
    """Entries of some rows (0) or columns in some lines of the other side; one row of the answer for each."""
    X = engine.block(lines, across) if axis == 0 else engine.block(across, lines).T
    return X.astype(float)


def fit_lines(
    engine: Engine,
    axis: int,
    lines: Array,
    across: Array,
    V: Array,
    rng: np.random.Generator,
    start: tuple[Array, float] | None = None,
) -> tuple[Array, Array, Array]:
    """Return what :func:`fit_rows` finds for some rows (0) or columns of M, by their entries in ``across``.

    Coefficients on V, how many entries they fit to rounding, and how many there are. ``start`` holds coefficients to
    start from, and the threshold that belongs to them.
    """
    r = V.shape[1]
    found, kept, counts = np.empty((len(lines), r)), np.empty(len(lines)), np.empty(len(lines))
    step = max(constants.BUDGET.block // max(len(across), r * r), 1)
    for first in range(0, len(lines), step):
        some = slice(first, first + step)
        X = _entries(engine, axis, lines[some], across)
        near = () if start is None else (start[0][some], start[1])
        found[some], kept[some] = fit_rows(X, V, engine.dtype, rng, *near)
        counts[some] = np.isfinite(X).sum(axis=1)
    return found, kept, counts


def extend(
    engine: Engine, lines: tuple[Array, Array], L: LowRank, near: LowRank, zeta: float, rng: np.random.Generator
) -> LowRank | None:
    """Return L of all of M from its exact fit to some rows and columns; None if too many lines do not fit.

    Every row is regressed on the columns of the fit, and every column on its rows: ``L = A s⁻¹ Bᵀ``. ``near`` is a fit
    of all of M whose clean residuals are within ``zeta``.
    """
    sides = []
    for axis, (V, whole) in enumerate(((L.right, near), (L.left, near.T))):
        across, every = lines[1 - axis], np.arange(engine.shape[axis])
        start = whole.left @ (whole.core @ (whole.right[across].T @ V))  # V is orthonormal
        factors, kept, counts = fit_lines(engine, axis, every, across, V, rng, (start, zeta))
        enough = counts >= L.rank + MIN_LINE_EVIDENCE  # with fewer entries, none could be shown to fit
        if len(_poor(kept[enough], counts[enough], L.rank)) > constants.MAX_ODD_LINES * len(every):
            return None
        sides.append(factors)
    return LowRank.from_spans((sides[0], None), np.linalg.inv(L.core), (sides[1], None))


def descents(first: Descent, rng: np.random.Generator) -> Iterator[Descent]:
    """Ways to descend on a block from least squares on all its entries, until one has led to an exact fit.

    First with few components, those given or those that stand out: fewer unknowns. Then with all of them: what gross
    errors hide stays out of sight as long as it is left out.
    """
    first.run()
    if first.uncovered:
        first = Descent.begin(first.block, first.rank, rng)
        first.run(slowly=True)
    yield first
    most = min(first.block.unknowns)
    if first.L.rank < most and 4 * most <= min(first.block.engine.shape):
        every = Descent.begin(first.block, most, rng)
        every.run()
        yield replace(every, L=every.above_rounding(every.L) if first.rank is None else every.L.truncate(first.rank))


@dataclass(eq=False)
class Descent:
    """Trimmed least squares on a block, with a threshold that follows the peak of the residuals.

    Attributes
    ----------
    L, zeta : the fit, and the threshold of its last step
    peak : that of the residuals of L
    """

    block: Block
    rank: int | None
    sample: Sample
    L: LowRank
    peak: Peak
    zeta: float = np.inf

    @classmethod
    def begin(cls, block: Block, rank: int | None, rng: np.random.Generator) -> Descent:
        """Least squares on all entries."""
        sample = Sample.draw(block.engine, constants.BUDGET.sample, rng)
        L, _, _ = least_squares(block, LowRank.zero(block.engine.shape), np.inf, rank)
        descent = cls(block, rank, sample, L, Peak(np.inf, 0.0))
        descent.peak = descent.find_peak()
        return descent

    def find_peak(self) -> Peak:
        """That of the residuals; where features are zero, L is, and tells nothing."""
        fitted, L = self.sample.at(self.L), self.L
        fewest = L.rank * (sum(self.block.unknowns) - L.rank) / self.block.engine.n_observed
        return find_peak(np.abs(self.sample.values - fitted)[fitted != 0], self.floor, fewest)

    @property
    def floor(self) -> float:
        return rounding_floor(self.block.engine.dtype, float(np.abs(self.sample.at(self.L)).max(initial=0.0)))

    def run(self, slowly: bool = False) -> None:
        """Steps until the peak is rounding, or as narrow as it gets.

        ``slowly``: the threshold falls from the largest entry, and by no more than THRESHOLD_DECAY a step. With
        features such as indicators a coefficient may depend on few entries of M; a low threshold can trim all of them,
        and the coefficient stays where it is. Where rows have no features, each may lag behind.
        """
        if slowly:
            self.zeta = float(np.abs(self.sample.values).max())
        slowly = slowly or self.block.Q1 is None
        narrowest, waited = np.inf, 0
        for _ in range(constants.MAX_STEPS):
            lowest = self.zeta / constants.THRESHOLD_DECAY if slowly and np.isfinite(self.zeta) else 0.0
            self.zeta = max(self.peak.zeta, lowest, self.floor)
            self.L, moved, _ = least_squares(self.block, self.L, self.zeta, self.rank)
            self.peak = self.find_peak()
            waited = 0 if self.zeta < narrowest / 1.02 else waited + 1
            narrowest = min(narrowest, self.zeta)
            if moved <= 1e-9 and (waited or moved <= constants.ROUNDING):
                break
            if waited >= constants.MAX_STEPS_WITHOUT_GAIN and self.zeta > self.floor and moved > 1e-6:
                break
        if self.rank is None:
            self.L = self.above_rounding(self.L)

    def above_rounding(self, L: LowRank) -> LowRank:
        """L less the components that are rounding; at least one is left."""
        edge = rounding_edge(self.floor / constants.ROUNDING_SPREAD, *self.block.unknowns)
        return L.truncate(max(int(np.count_nonzero(L.singular_values > edge)), 1))

    @property
    def uncovered(self) -> bool:
        """Whether nearly all entries that determine some coefficient of the core were trimmed."""
        block = self.block
        if block.Q1 is None:
            return False
        kept, _, _ = block.engine.products(self.L, self.zeta, block.Q2**2, kept=True)
        coverage = (block.Q1**2).T @ kept
        return bool(coverage.min() < 0.2 * coverage.max())


def rounding_edge(size: float, d1: int, d2: int) -> float:
    """About the largest singular value of rounding errors of this size, in the coordinates of a block."""
    return float((np.sqrt(d1) + np.sqrt(d2) + 1) * size)


def least_squares(block: Block, L: LowRank, zeta: float, rank: int | None) -> tuple[LowRank, float, Trim]:
    """Least squares on the entries that L keeps; by how much L moved, relative to its size.

    The rank is the one given or, if that is None, the number of components that stand out of what the kept residuals
    do to them. By conjugate gradients; each step asks the engine once. The closer L is, the more digits the next one is
    worth, as far as there are any. Far from the solution the whole core is fitted, then truncated; close to it, the fit
    is along the matrices of the same rank, which takes fewer flops and fewer entries.
    """
    normal = block.engine.normal(L, zeta, block.Q1, block.Q2)
    size = float(np.linalg.norm(L.core))
    n1, n2 = L.shape
    kept = normal.trim.kept / (n1 * n2) * size
    off = float(np.linalg.norm(normal.gradient)) / kept if kept > 0 else 1.0
    u, v = _coordinates(block.Q1, L.left), _coordinates(block.Q2, L.right)
    # What is left of a step that is not truncated stays.
    coarsest = constants.COARSEST_STEP if rank and rank < min(len(u), len(v)) else constants.COARSEST_STEP**2
    digits = float(np.clip(max(min(off, 1.0) ** 2, 1e-16 / max(off, 1e-16)), 1e-10, coarsest))
    short = 0 < 4 * L.rank <= min(len(u), len(v)) and rank in (None, L.rank)
    if short and _longest(normal) < constants.FIXED_RANK_STEP * L.singular_values[-1]:
        return *_along_rank(block, L, u, v, normal, digits), normal.trim
    C = u @ L.core @ v.T
    step = conjugate_gradients(normal.gradient, normal.times, digits, constants.MAX_STEPS)
    core = LowRank.from_core(None, C + step, None, rank)
    if rank is None:
        left = normal.trim.energy - float(np.vdot(normal.gradient, step))  # of what least squares leave of T
        core = core.truncate(_visible(core, normal.trim.kept, left, n1 * n2))
    return _in_block(block, core), relative_change(core.dense(), C), normal.trim


def _coordinates(Q: Array | None, B: Array) -> Array:
    return B if Q is None else Q.T @ B


def _in_block(block: Block, core: LowRank) -> LowRank:
    left, right = (B if Q is None else Q @ B for Q, B in ((block.Q1, core.left), (block.Q2, core.right)))
    return LowRank(left, core.core, right)


def _visible(core: LowRank, kept: int, energy: float, entries: int) -> int:
    """How many components are larger than those that random residuals of this energy would make; at least one."""
    d1, d2 = core.shape
    variance = max(energy, 0.0) / max(kept - d1 * d2, 1)
    deviation = np.sqrt(variance * entries / max(kept, 1))  # of every number in the core
    edge = constants.NOISE_EDGE_FACTOR * deviation * sum(np.sqrt(core.shape))
    return max(int(np.count_nonzero(core.singular_values > edge)), 1)


def _longest(normal: Normal) -> float:
    """About the largest singular value of the step that the gradient asks for, by its fourth moment: hardly more."""
    G = normal.gradient
    return float(np.linalg.norm(G.T @ G)) ** 0.5 / max(normal.trim.kept_share, np.finfo(float).eps)


def _along_rank(block: Block, L: LowRank, u: Array, v: Array, normal: Normal, digits: float) -> tuple[LowRank, float]:
    """The step u Bᵀ + A vᵀ, A orthogonal to u: all directions in which L = Q1 u s vᵀ Q2ᵀ can move at its rank."""
    d1 = len(u)

    def tangent(left: Array, right: Array) -> Array:
        return np.vstack([left - u @ (u.T @ left), right])

    def operator(P: Array) -> Array:
        A, B = P[:d1], P[d1:]
        left, right = (B if Q is None else Q @ B for Q, B in ((block.Q1, A), (block.Q2, B)))
        step = LowRank(np.hstack([L.left, left]), np.eye(2 * L.rank), np.hstack([right, L.right]))
        KX, KY = normal.products(step, L.right, L.left)
        return tangent(_coordinates(block.Q1, KX), _coordinates(block.Q2, KY))

    right = tangent(normal.gradient @ v, normal.gradient.T @ u)
    step = conjugate_gradients(right, operator, digits, constants.MAX_STEPS)
    A, B = step[:d1], step[d1:]
    core = LowRank.from_product(np.hstack([u, A]), np.hstack([v @ L.core.T + B, v]), L.rank)
    return _in_block(block, core), float(np.linalg.norm(step) / np.linalg.norm(core.core))
