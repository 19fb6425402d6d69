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
from ..cached import cached_property
from ..engines.base import Engine, Normal
from ..features import Features
from ..lowrank import Array, LowRank, relative_change, relative_distance
from ..model.peaks import Peak, find_peak
from ..problem import Problem
from ..regression import conjugate_gradients, regress_rows
from ..result import MIN_LINE_EVIDENCE, Choice, State, unfitted_lines
from ..sample import Sample, in_memory, rounding_floor
from .blocks import ROWS_PER_FEATURE, Block, draw_blocks, draw_lines

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
        return
    L = found.L if found else LowRank.zero(problem.shape)
    yield State(L, float(np.median(problem.sample.sizes(L))), 0.0, failure=NOT_EXACT)


def search(problem: Problem) -> Generator[State, None, TrimmedFit | None]:
    """Look for an exact fit; the best that was found, with the states on the way to it."""
    best = None
    for found in _on_blocks(problem) if all(problem.given) else _on_lines(problem):
        if found.certified and not found.unfitted:
            return found
        if best is None or found.exact.score < best.exact.score:
            best = found
        yield State(best.L, np.inf, 1.0, settled=False, stage="looking for an exact fit")
    return best


@dataclass(frozen=True, eq=False)
class Exactness:
    """Whether a fit is exact, judged by the residuals at sampled entries.

    Attributes
    ----------
    zeta : float or None
        A larger residual is a gross error; None: the fit is not exact.
    clean : float
        Share of the entries within it.
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
    close = telling[telling <= constants.ROUNDING_SPREAD * floor]
    score = float(np.log(np.maximum(sizes, max(floor, np.finfo(float).tiny))).mean())
    needed = max(constants.MIN_ENTRIES_PER_UNKNOWN * unknowns / entries, sample.by_chance) * len(telling)
    # Else L may be no larger than rounding.
    distinguishable = floor <= constants.MAX_RELATIVE_ROUNDING * float(np.std(fitted))
    if not distinguishable or len(close) < max(needed, constants.BUDGET.fewest) or np.median(close) > floor:
        return Exactness(None, 0.0, score)
    # Rounding grows where features are coherent; gross errors are far larger than the residuals of clean entries.
    zeta = max(floor, constants.ROUNDING_SPREAD * float(np.quantile(close, 0.999)))
    return Exactness(zeta, float(np.mean(sizes <= zeta)), score)


@dataclass(frozen=True, eq=False)
class TrimmedFit:
    """A fit to all of M, and whether sampled entries show it to be exact.

    Attributes
    ----------
    L, exact : LowRank, Exactness
    unfitted : rows and columns that it does not fit
    """

    L: LowRank
    exact: Exactness
    unfitted: tuple[Array, ...] = ()

    @property
    def certified(self) -> bool:
        """Whether it is exact, but for lines that it does not fit."""
        return self.exact.zeta is not None

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


def _on_blocks(problem: Problem) -> Iterator[TrimmedFit]:
    """With features of both sides: fits on blocks of growing size.

    Least squares on all entries of a block tell at the cost of one look at each whether it is worth more: an error of
    the fit is smaller on a larger block, and so is the width of the peak; noise is the same on every block.
    """
    rng, before = problem.rng("block fits"), np.inf
    for k, block in enumerate(draw_blocks(problem.engine, *problem.features, problem.rng("blocks"))):
        descent = Descent.on(block, problem.rank, rng)
        width = descent.peak(descent.start).zeta
        if k > 1 and width >= constants.NARROWER * before:
            return
        before = width
        for L in descent.fits():
            found = judged(problem, block.lift(L), *block.unknowns)
            if found.exact.zeta is not None and problem.rank is None:
                found = judged(problem, block.lift(L.truncate(_exact_rank(L, found.exact, block))), *block.unknowns)
            yield found


def judged(problem: Problem, L: LowRank, d1: int, d2: int) -> TrimmedFit:
    """A fit whose core has d1 × d2 numbers."""
    return TrimmedFit(L, exactness(problem.sample, L, problem.engine.n_observed, L.rank * (d1 + d2 - L.rank)))


def _exact_rank(L: LowRank, exact: Exactness, block: Block) -> int:
    """How many components are larger than rounding makes, in the block's own coordinates: those of M stretch errors."""
    assert exact.zeta is not None
    rounding = exact.zeta / constants.ROUNDING_SPREAD / np.sqrt(exact.clean)
    edge = rounding * (np.sqrt(block.unknowns).sum() + 1)
    return max(int(np.count_nonzero(L.singular_values > edge)), 1)


def _on_lines(problem: Problem) -> Iterator[TrimmedFit]:
    """With features of one side: what some lines of the other have in common, then every line on its own.

    Each line of the side without features is a regression on the features of the other. On some of these lines that
    has an exact fit, or on none; the components found there are few, and the other lines need to tell no more than
    those. If lines are left that do not fit, more entries of each are taken.
    """
    rng = problem.rng("block fits")
    for at in first_lines(problem.shape, *problem.features, problem.rng("blocks")):
        found = _line_by_line(problem, at, rng)
        if found is not None:
            yield found


def first_lines(
    shape: tuple[int, int], F1: Features, F2: Features, rng: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """Rows and columns on which components are looked for, where one side has features; then more entries of each."""
    axis, F = (1, F1) if F1.given else (0, F2)
    fewest = max(constants.BUDGET.lines, 16 * ROWS_PER_FEATURE * F.d)
    most = min(F.n, max(constants.BUDGET.few, fewest))
    for entries in (fewest, most) if 2 * fewest <= most else (most,):
        across, n = draw_lines(F, entries, rng), shape[axis]
        some = np.sort(rng.choice(n, min(n, max(constants.BUDGET.lines**2 // len(across), 2)), replace=False))
        yield (some, across) if axis == 0 else (across, some)


def _line_by_line(problem: Problem, at: tuple[Array, Array], rng: np.random.Generator) -> TrimmedFit | None:
    """The fit by components found at some rows and columns."""
    engine, rank = problem.engine, problem.rank
    axis, F = (1, problem.F1) if problem.F1.given else (0, problem.F2)  # axis is that of the side without features
    some, across = at[axis], at[1 - axis]
    n, (Q, R) = engine.shape[axis], F.restrict(across)
    X = _entries(engine, axis, some, across)
    block = Block(in_memory(X), None, Q)
    descent = Descent.on(block, rank, rng)
    for L in descent.fits():
        exact = exactness(descent.sample, L, block.engine.n_observed, L.rank * (sum(block.unknowns) - L.rank))
        if exact.zeta is not None:
            break
    else:
        return None
    fitted = (np.abs(X - L.dense()) <= exact.zeta).sum(axis=1) >= L.rank + MIN_LINE_EVIDENCE
    L = LowRank.from_product(L.left[fitted] @ L.core, L.right, rank)  # other lines say nothing about the components
    V = (L if rank else L.truncate(_exact_rank(L, exact, block))).right
    factors, kept, _ = fit_lines(engine, axis, np.arange(n), across, V, rng)
    poor = _poor(kept, engine.counts[axis], V.shape[1])
    if len(poor) <= constants.BUDGET.lines:  # each by itself: one threshold may not serve them all
        for line in poor[:, None]:
            again, more, _ = fit_lines(engine, axis, line, across, V, rng)
            if more > kept[line]:
                factors[line], kept[line] = again, more
        poor = _poor(kept, engine.counts[axis], V.shape[1])
    whole = LowRank.from_spans((factors, None), None, F.spanned(np.linalg.solve(R, Q.T @ V)))
    found = judged(problem, whole if axis == 0 else whole.T, n, F.d)
    if rank is None and found.certified:
        found = replace(found, L=found.L.truncate(_exact_rank(found.L, found.exact, Block(engine, None, Q))))
    none = np.zeros(0, np.intp)
    return replace(found, unfitted=() if not len(poor) else (poor, none) if axis == 0 else (none, poor))


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
        before, left = zeta, left[going]
        seen = sizes[going][np.isfinite(sizes[going])]
        if not len(seen):
            break
        some = rng.choice(seen, min(len(seen), constants.BUDGET.sample), replace=False)
        lowest = before / constants.THRESHOLD_DECAY if np.isfinite(before) else 0.0
        zeta = max(find_peak(some, floor).zeta, lowest, floor)
        if np.linalg.norm(step) <= constants.ROUNDING * np.linalg.norm(U) and zeta >= before / 1.02:
            break
        R = X[left] - L[going]
    if len(left := np.flatnonzero(fitted < r + MIN_LINE_EVIDENCE)):
        U[left] = _by_subsets(X[left], V, floor, rng) if start is None else start[left]
    R = X - U @ V.T
    floor = rounding_floor(dtype, float(np.abs(X - R)[np.isfinite(X)].max(initial=0.0)))
    U += regress_rows(R, np.abs(R) <= constants.ROUNDING_SPREAD * floor, V)
    return U, (np.abs(X - U @ V.T) <= constants.ROUNDING_SPREAD * floor).sum(axis=1)


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


@dataclass(frozen=True, eq=False)
class Descent:
    """Trimmed least squares on a block, with a threshold that follows the peak of the residuals.

    Attributes
    ----------
    block, rank : where L is looked for, and its rank; None: to be found
    sample : entries of the block, by whose residuals the threshold is set
    """

    block: Block
    rank: int | None
    sample: Sample

    @classmethod
    def on(cls, block: Block, rank: int | None, rng: np.random.Generator) -> Descent:
        return cls(block, rank, Sample.draw(block.engine, constants.BUDGET.sample, rng))

    @cached_property
    def start(self) -> LowRank:
        """Least squares on all entries."""
        return least_squares(self.block, LowRank.zero(self.block.engine.shape), np.inf, self.rank)[0]

    def fits(self) -> Iterator[LowRank]:
        """Where ways to descend end; who asks for the next has found that none before it led to an exact fit.

        First slowly, with few components, those given or those that stand out. Then fast, where clean cells are too few
        to be seen among all others. Then with all components: gross errors may hide some.
        """
        yield self.run(slowly=True)
        yield self.run()
        most = min(self.block.unknowns)
        if self.rank != most and 4 * most <= min(self.block.engine.shape):
            yield replace(self, rank=most).run().truncate(self.rank or most)

    def run(self, slowly: bool = False) -> LowRank:
        """Steps until the peak is rounding, or as narrow as it gets.

        ``slowly``: the threshold falls from the largest entry, and by no more than THRESHOLD_DECAY a step. With
        features such as indicators a coefficient may depend on few entries of M; a low threshold can trim all of them,
        and the coefficient stays where it is. Where rows have no features, each may lag behind.
        """
        L, zeta = self.start, float(np.abs(self.sample.values).max()) if slowly else np.inf
        narrowest, waited = np.inf, 0
        for _ in range(constants.MAX_STEPS):
            floor, lowest = self.floor(L), zeta / constants.THRESHOLD_DECAY
            zeta = max(self.peak(L).zeta, floor)
            if np.isfinite(lowest) and (slowly or self.block.Q1 is None):
                zeta = max(zeta, lowest)
            L, moved = least_squares(self.block, L, zeta, self.rank)
            waited = 0 if zeta < narrowest / 1.02 else waited + 1
            narrowest = min(narrowest, zeta)
            if moved <= (1e-9 if waited else constants.ROUNDING) or (waited > 4 and zeta > floor and moved > 1e-6):
                break
        return L

    def peak(self, L: LowRank) -> Peak:
        """That of the residuals; where features are zero, L is, and tells nothing."""
        fitted = self.sample.at(L)
        fewest = L.rank * (sum(self.block.unknowns) - L.rank) / self.block.engine.n_observed
        return find_peak(np.abs(self.sample.values - fitted)[fitted != 0], self.floor(L), fewest)

    def floor(self, L: LowRank) -> float:
        return rounding_floor(self.block.engine.dtype, float(np.abs(self.sample.at(L)).max(initial=0.0)))


def least_squares(block: Block, L: LowRank, zeta: float, rank: int | None) -> tuple[LowRank, float]:
    """Least squares on the entries that L keeps; by how much L moved, relative to its size.

    The rank is the one given or, if that is None, the number of components that stand out of what the kept residuals
    do to them. By conjugate gradients; each step asks the engine once. The closer L is, the more digits the next one is
    worth. Far from the solution the whole core is fitted, then truncated; close to it, the fit is along the matrices of
    the same rank, which takes fewer flops and fewer entries.
    """
    normal = block.engine.normal(L, zeta, block.Q1, block.Q2)
    size = float(np.linalg.norm(L.core))
    n1, n2 = L.shape
    kept = normal.trim.kept / (n1 * n2) * size
    off = float(np.linalg.norm(normal.gradient)) / kept if kept > 0 else 1.0
    u, v = _coordinates(block.Q1, L.left), _coordinates(block.Q2, L.right)
    digits = float(np.clip(off**2, 1e-10, constants.COARSEST_STEP))
    short = 0 < 4 * L.rank <= min(len(u), len(v)) and rank in (None, L.rank)
    if short and _longest(normal) < constants.FIXED_RANK_STEP * L.singular_values[-1]:
        return _along_rank(block, L, u, v, normal, digits)
    C = u @ L.core @ v.T
    step = conjugate_gradients(normal.gradient, normal.times, digits, constants.MAX_STEPS)
    core = LowRank.from_core(None, C + step, None, rank)
    if rank is None:
        left = normal.trim.energy - float(np.vdot(normal.gradient, step))  # of what least squares leave of T
        core = core.truncate(_visible(core, normal.trim.kept, left, n1 * n2))
    return _in_block(block, core), relative_change(core.dense(), C)


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
