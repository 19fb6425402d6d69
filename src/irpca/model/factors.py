"""Latent factors of rows and columns, with priors whose means are linear in the features.

    m_ij = u_i · v_j + e_ij        u_i ~ N(Q1_i A, Λ_u)        v_j ~ N(Q2_j B, Λ_v)

Q1 and Q2 hold the features and a constant; A, B, Λ_u and Λ_v are estimated (empirical Bayes). Where Λ is zero, the
factors of a side are determined by its features; otherwise a line with few entries is shrunk towards them. Features
that explain everything or only a part, no features, missing entries and cold start are cases of this one model. A line
is a row or a column; s is the scale of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np

from .. import constants
from ..engines.base import Engine, Lines, Prior
from ..features import Features
from ..lowrank import Array, LowRank, core_of, times
from ..sample import in_memory
from .noise import NoiseModel, refit_mixture

TINY = 1e-300
CHUNK = 1 << 22  # numbers that are made at once


@dataclass(eq=False)
class Side:
    """The factors of the rows, or of the columns: posteriors, and the prior that they share.

    Attributes
    ----------
    mean, expected : arrays of shape (n, K)
        Posterior and prior means.
    basis : array of shape (n, d)
        Columns of mean square 1, orthogonal.
    tied : bool
        Whether the basis determines the factors: Λ is zero, and the coefficients are plain least squares.
    variance : array of shape (K,)
        Λ.
    coefficients, slope_variance : arrays of shape (d, K) and (K,)
        A, and the variance of its prior.
    seen : boolean array of shape (n,)
        Which lines have entries: nothing is learned from the others.
    covariance, spread : arrays of shape (K, K) and (n,)
        The posterior covariance of line i is about ``spread[i] · covariance``.
    """

    mean: Array
    basis: Array
    tied: bool
    variance: Array
    slope_variance: Array
    seen: Array
    coefficients: Array = field(init=False)
    expected: Array = field(init=False)
    covariance: Array = field(init=False)
    spread: Array = field(init=False)

    def __post_init__(self) -> None:
        n, K = self.mean.shape
        self.coefficients = self.basis.T @ self.mean / n
        self.expected = self.basis @ self.coefficients
        if self.tied:
            self.mean, self.variance = self.expected, np.zeros(K)
        self.covariance, self.spread = np.zeros((K, K)), np.ones(n)

    @property
    def second(self) -> Array:
        """Σ of ``u uᵀ`` over all lines that have entries, uncertainty included."""
        mean = self.mean if self.seen.all() else self.mean[self.seen]
        return mean.T @ mean + self.spread[self.seen].sum() * self.covariance

    @property
    def apart(self) -> Array:
        """Covariance of factors about what features say of them; of a side that is just that, of what they say."""
        if self.tied:
            return self.covariance
        return covariance_of((self.mean - self.expected)[self.seen]) + self.covariance

    def prior(self, other: Side) -> Prior:
        return Prior(
            self.variance,
            np.ones(len(self.mean)),
            other.covariance,
            other.spread,
            other.second,
            basis=self.basis,
            ridge=1 / np.maximum(self.slope_variance, TINY),
            coefficients=self.coefficients,
        )

    def given(self, other: Side) -> Prior:
        """The prior with its mean held fixed."""
        return replace(self.prior(other), basis=None, mean=self.expected)

    def take(self, lines: Lines, learn: bool, least: float) -> None:
        """Take new posteriors and, if asked, estimate the prior from them."""
        seen, empty = self.seen, len(self.seen) - int(np.count_nonzero(self.seen))
        n = len(seen) - empty
        self.mean, self.expected = lines.mean, lines.expected
        # Posteriors of lines without entries are the prior: they would dominate the average of all.
        self.covariance = (len(seen) * lines.covariance - empty * np.diag(self.variance)) / n
        self.spread = lines.spread / max(float(lines.spread[seen].sum()) / n, TINY)
        if lines.coefficients is None:
            return
        self.coefficients = lines.coefficients
        if not learn:
            return
        uncertain = 1 / np.maximum(lines.precision + 1 / np.maximum(self.slope_variance, TINY), TINY)
        d, squares = len(self.coefficients), np.einsum("dk,dk->k", self.coefficients, self.coefficients)
        self.slope_variance = np.maximum(squares / d + uncertain, TINY)
        if not self.tied:
            away = (self.mean - self.expected)[seen]
            squares = np.einsum("ik,ik->k", away, away) + np.add.reduce(lines.variance[seen])
            self.variance = np.maximum(squares / n + d * uncertain, least)

    def some(self, lines: Array) -> Side:
        """These lines only."""
        new = copy(self)
        new.mean, new.expected, new.basis = self.mean[lines], self.expected[lines], self.basis[lines]
        new.spread, new.seen = self.spread[lines], self.seen[lines]
        return new

    def turned(self, R: Array) -> Side:
        """The same factors in other coordinates, ``mean @ R``; the prior is transformed as well."""
        new = copy(self)
        new.variance, new.slope_variance = self.variance @ (R * R), self.slope_variance @ (R * R)
        new.expected, new.coefficients = self.expected @ R, self.coefficients @ R
        new.mean = new.expected if self.tied else self.mean @ R
        new.covariance = R.T @ self.covariance @ R
        return new

    def extended(self, basis: Array, coefficients: Array, index: Array, seen: Array) -> Side:
        """The side of a larger table, in which these lines are at ``index``; others are at their prior means."""
        new = copy(self)
        new.seen = seen
        new.basis, new.coefficients, new.expected = basis, coefficients, times(basis, coefficients)
        new.mean, new.spread = new.expected, np.ones(len(basis))
        if not self.tied:
            new.mean = new.mean.copy()
            new.mean[index] = self.mean
        new.spread[index] = self.spread
        return new

    def certain(self, mean: Array, coefficients: Array) -> Side:
        """This side, tied to its basis, with other factors ``mean = basis @ coefficients``; nothing is uncertain."""
        new, (n, K) = copy(self), mean.shape
        new.mean, new.expected, new.coefficients = mean, mean, coefficients
        new.variance, new.slope_variance = np.zeros(K), np.ones(K)
        new.covariance, new.spread = np.zeros((K, K)), np.ones(n)
        return new


def basis_of(F: Features, tied: bool, unit: Array | None = None) -> Array:
    """Basis of the span of the features, with the constant unless the side is tied; columns of mean square 1.

    A tied side is a product of its features in units of M; the basis is of that in the units of its lines.
    """
    if F.Q is None:
        return np.ones((F.n, 1))
    if tied:
        plain = unit is None or (unit == 1).all()
        Q: Array = F.Q if plain or unit is None else np.linalg.qr(F.Q / unit[:, None])[0]
        return Q * np.sqrt(F.n)
    X = np.hstack([np.full((F.n, 1), 1 / np.sqrt(F.n)), F.Q])
    Q, s, _ = np.linalg.svd(X, full_matrices=False)
    return Q[:, s > constants.MIN_FEATURE_SINGULAR_VALUE * s[0]] * np.sqrt(F.n)


def restricted(basis: Array, lines: Array) -> tuple[Array, Array]:
    """The basis of some lines with columns of mean square 1, and R with ``basis[lines] = new @ R``."""
    Q, s, Vt = np.linalg.svd(basis[lines], full_matrices=False)
    kept = s > constants.MIN_FEATURE_SINGULAR_VALUE * s[0]
    root = np.sqrt(len(lines))
    return Q[:, kept] * root, (s[kept] / root)[:, None] * Vt[kept]


@dataclass(eq=False)
class Fit:
    """The model with its parameters, on the M of an engine; each sweep improves it.

    Factors and noise are in units of the columns. Where the engine's M is not, ``noise.units`` says so, and the engine
    divides what it reads.

    Attributes
    ----------
    engine : owner of M
    rows, cols : factors of both sides, ``L = rows.mean @ cols.mean.T``
    noise : NoiseModel
    sample : rows, columns and values of scattered entries, in units of the columns
    least : lower bound of the prior variances of factors
    directions : number of components if that is given; None: those hidden by noise are dropped at the end
    sweeps, step : how many were made, and the relative change of L in the last
    trust : how many inliers each row, and each column, has, by their probabilities
    unit : of the columns, for those who get the fit when it is finished
    """

    engine: Engine
    rows: Side
    cols: Side
    noise: NoiseModel
    sample: tuple[Array, Array, Array]
    least: float
    directions: int | None = None
    sweeps: int = 0
    step: float = np.inf
    refitted: bool = False  # whether its noise was fitted anew
    trust: tuple[Array, Array] | None = None
    unit: Array | None = None  # of every column of M, if M is fitted in units of its columns
    col_variances: Array | None = None  # see line_variances
    strict: bool = False  # whether noise hides components as in a table that lacks all but the inliers

    @property
    def L(self) -> LowRank:
        return LowRank(self.rows.mean, np.eye(self.rank), self.cols.mean)

    @property
    def rank(self) -> int:
        return self.rows.mean.shape[1]

    @property
    def tied(self) -> tuple[bool, bool]:
        return self.rows.tied, self.cols.tied

    @property
    def nearly_exact(self) -> bool:
        """Whether the estimated noise is so small that it may be zero."""
        return not self.noise.target and self.noise.s <= constants.NEARLY_EXACT_NOISE * self.noise.lowest

    @property
    def inliers(self) -> float:
        """How many there are, by their probabilities."""
        return self.engine.n_observed if self.trust is None else float(self.trust[0].sum())

    @property
    def spreads(self) -> tuple[Array, Array]:
        """The variance of L_ij as a sum of two products: of the rows' uncertainty, and of the columns'."""
        rows, cols = self.rows, self.cols
        both = float(np.vdot(rows.covariance, cols.covariance))
        of_rows, of_cols = np.empty((len(rows.mean), 2)), np.empty((len(cols.mean), 2))
        of_rows[:, 0], of_cols[:, 1] = rows.spread, cols.spread
        np.einsum("ik,ik->i", rows.mean @ cols.covariance, rows.mean, out=of_rows[:, 1])
        np.einsum("jk,jk->j", cols.mean @ rows.covariance, cols.mean, out=of_cols[:, 0])
        of_cols[:, 0] += cols.spread * both
        return of_rows, of_cols

    def sweep(self, refit_noise: bool = False) -> None:
        """Rows given columns, columns given rows, priors and noise: two reads."""
        n, rows, cols = self.sweeps + 1, self.rows, self.cols
        if refit_noise and n in constants.NOISE_RESTART_SWEEPS and (found := refit_mixture(self.noise, self.residuals)):
            self.noise, self.refitted = found, True
        self.sweeps = n
        noise, before = self.noise, self.L
        learn = n > constants.SWEEPS_BEFORE_PRIORS
        own = n > constants.SWEEPS_BEFORE_LINE_SCALES
        lines = self.engine.solve_lines(0, rows.mean, cols.mean, noise.for_engine(*self.spreads), rows.prior(cols))
        rows.take(lines, learn, self.least)
        noise.learn_shares(lines.sums)
        if own:
            noise.learn_scales(lines.sums, 0)
        lines = self.engine.solve_lines(1, rows.mean, cols.mean, noise.for_engine(*self.spreads), cols.prior(rows))
        cols.take(lines, learn, self.least)
        self.trust = lines.sums.rows[:, 1], lines.sums.cols[:, 1]
        noise.learn(lines.sums, rise=learn)
        if own:
            noise.learn_scales(lines.sums, 1)
        self.step = moved(self.L, before)

    def line_variances(self, axis: int) -> Array:
        """Posterior variances of the factors of every row (0) or column, n×K; n×0 where features determine them.

        One read. In principal coordinates factors are nearly independent, and these say how uncertain L is.
        """
        side, other = (self.rows, self.cols) if axis == 0 else (self.cols, self.rows)
        if side.tied or not self.rank:
            return np.zeros((len(side.mean), 0))
        weights = self.noise.for_engine(*self.spreads)
        return self.engine.solve_lines(axis, self.rows.mean, self.cols.mean, weights, side.given(other)).variance

    def principal(self) -> Fit:
        """The same in principal components, equally scaled on both sides; those hidden by noise are dropped.

        Sweeps do not use these coordinates: priors along them shrink weak components too much, for good.
        """
        if self.rank == 0:
            return self
        n1, n2 = (int(np.count_nonzero(side.seen)) for side in (self.rows, self.cols))
        E1, E2 = self.rows.second / n1, self.cols.second / n2
        w, Q = np.linalg.eigh(E1)
        w = np.maximum(w, constants.ROUNDING * max(float(w[-1]), TINY))
        root, back = (Q * np.sqrt(w)) @ Q.T, (Q / np.sqrt(w)) @ Q.T
        energy, P = np.linalg.eigh(root @ E2 @ root)
        energy, P = np.maximum(energy[::-1], max(constants.ROUNDING**2 * float(energy[-1]), TINY)), P[:, ::-1]
        if self.directions is None:
            # Weaker components are hidden by noise (Baik, Ben Arous and Péché 2005; Nadler 2008).
            noise = self.noise
            scaled = self.rows.mean / np.sqrt(noise.rows)[:, None], self.cols.mean / np.sqrt(noise.cols)[:, None]
            seen = np.linalg.svd(core_of(*scaled), compute_uv=False) ** 2
            hidden = constants.MIN_COMPONENT_ENERGY * noise.s**2 * np.sqrt(n1 * n2)
            if self.strict:
                hidden *= n1 * n2 / max(self.inliers, 1.0)
            hidden = max(hidden, constants.ROUNDING**2 * seen.max(initial=0.0))
            visible = int(np.count_nonzero(seen > hidden))
            energy, P = energy[:visible], P[:, :visible]
        length = energy**0.25
        return replace(self, rows=self.rows.turned(back @ P * length), cols=self.cols.turned(root @ P / length))

    @property
    def residuals(self) -> Array:
        """Residuals at the sampled entries, divided by α and β of their row and column: clean ones are about s."""
        i, j, values = self.sample
        noise = self.noise
        return (values - self.L.sampled(i, j)) / np.sqrt(noise.rows[i] * noise.cols[j])

    def place(self, X: Array, axis: int, lines: Array, others: Array, from_own: bool = False) -> None:
        """Estimate the factors of some rows (0) or columns from their entries X in some lines of the other side.

        They start at what features say of them or, ``from_own``, at their own. Where no entry is observed they stay as
        they are.
        """
        side, other = (self.rows, self.cols) if axis == 0 else (self.cols, self.rows)
        if side.tied or np.isnan(X).all():
            return
        scales = self.noise.cols if axis == 0 else self.noise.rows
        least = self.noise.least[others] if axis == 0 else np.full(len(others), self.noise.lowest)
        noise = replace(self.noise, rows=np.ones(len(lines)), cols=scales[others], least=least, units=None)
        across = other.some(others)
        typical = float(np.sum(side.covariance * across.second))
        start = side.mean[lines] if from_own else None
        found = placed(X, side.expected[lines], side.variance, side.covariance, across, noise, typical, start)
        side.mean[lines], side.spread[lines] = found.mean, _in_units(found.spread, typical)

    def of_lines(self, rows: Array, cols: Array) -> Fit:
        """Its factors and noise on some rows and columns alone; not to be fitted further."""
        noise = replace(
            self.noise,
            rows=self.noise.rows[rows],
            cols=self.noise.cols[cols],
            least=self.noise.least[cols],
            units=None,
        )
        return replace(self, rows=self.rows.some(rows), cols=self.cols.some(cols), noise=noise, trust=None)

    def lacks(self, X: Array) -> int:
        """How many components the entries X of all its lines show beside those that it has."""
        noise = self.noise
        scale = noise.s * noise.tail * np.sqrt(np.multiply.outer(noise.rows, noise.cols))
        Z = (X - self.L.dense()) / np.maximum(scale, np.maximum(noise.least, noise.lowest))
        Z = np.where(np.abs(Z) <= constants.MAX_CLEAN_RESIDUAL, Z, 0.0)
        for side in (self.rows, self.cols):  # factors that are not quite right leave residuals along the others
            Q = np.linalg.qr(side.mean)[0]
            Z = (Z - Q @ (Q.T @ Z)).T
        seen = np.isfinite(X)
        rows, cols = (seen.sum(axis=axis) >= constants.BUDGET.fewest for axis in (1, 0))  # others are mostly chance
        return above_noise(Z[rows][:, cols])

    def copy(self) -> Fit:
        """Another fit to the same M, to continue from."""
        rows, cols = (side.some(np.arange(len(side.mean))) for side in (self.rows, self.cols))
        noise = replace(self.noise, rows=self.noise.rows.copy(), cols=self.noise.cols.copy())
        return replace(self, rows=rows, cols=cols, noise=noise)

    @property
    def out_of_range(self) -> bool:
        """Whether expected values are far beyond all that is observed: a component runs away."""
        i, j, values = self.sample
        return bool(np.abs(self.L.sampled(i, j)).max() > constants.MAX_RATIO * np.abs(values).max())

    @property
    def standard_error(self) -> float:
        """Of L, relative to its size, that noise makes: ``σ · sqrt(unknowns / inliers)``."""
        sides, rank = (self.rows, self.cols), self.principal().rank
        d = [len(side.coefficients) if side.tied else len(side.mean) for side in sides]
        size = float(np.sum(self.rows.second * self.cols.second)) / (self.rows.seen.sum() * self.cols.seen.sum())
        square = self.noise.deviation**2 * rank * (sum(d) - rank) / max(self.inliers, 1.0)
        return float(np.sqrt(square / size)) if size > 0 else np.inf

    def done(self, step: float, settled: int) -> bool:
        """Whether the last step was below ``step``, the noise has converged, and ``settled`` sweeps were made."""
        return self.sweeps > settled and self.step < step and (self.nearly_exact or not self.noise.falling)

    def run(self, refit_noise: bool, step: float) -> None:
        """Sweep until L and the noise have converged; poorly fitted lines are fitted again."""
        most, settled = self.sweeps + constants.MAX_SWEEPS, self.sweeps + constants.MIN_SWEEPS
        for refits_left in (True, False):
            while self.sweeps < most and not self.done(step, settled):
                self.sweep(refit_noise)
                if not np.isfinite(self.step):
                    return
            if not refits_left or not self.refit_lines():
                break
            most, settled = self.sweeps + constants.MIN_SWEEPS, self.sweeps + constants.SWEEPS_BEFORE_PRIORS

    def poorly_fitted(self, axis: int) -> Array:
        """Lines with far fewer inliers than others, or with far larger residuals."""
        if self.trust is None:
            return np.zeros(0, int)
        counts = np.maximum(self.engine.counts[axis], 1)
        share, scale = self.trust[axis] / counts, (self.noise.rows, self.noise.cols)[axis]
        usual = float(np.median(share))  # a share of n entries has a standard deviation of at most 0.5 / √n
        by_chance = usual - constants.SIGNIFICANT_STANDARD_ERRORS * 0.5 / np.sqrt(counts)
        few = share < np.maximum(constants.MAJORITY * usual, by_chance)
        odd = few | (scale > constants.MAX_RATIO * np.median(scale))
        return np.flatnonzero(odd & (self.engine.counts[axis] > 0))

    def refit_lines(self) -> bool:
        """Fit lines again that may be wrong, with s decreasing from a large value; whether any got more likely."""
        found = False
        for axis in (0, 1):
            lines = self.poorly_fitted(axis)
            if not len(lines) or self.tied[axis]:
                continue
            side, scales = (self.rows, self.noise.rows) if axis == 0 else (self.cols, self.noise.cols)
            every = np.arange(self.engine.shape[1 - axis])
            X = self._entries_of(axis, lines, every)
            best = self._likelihood(X, axis, lines, every)
            for others, from_own in ((every, True), (self._well_fitted(1 - axis), False)):
                here = side.mean[lines], side.spread[lines], scales[lines]
                scales[lines] = 1.0
                self.place(X[:, others], axis, lines, others, from_own)
                likelihood = self._likelihood(X, axis, lines, every)
                worse = likelihood <= best
                for values, old in zip((side.mean, side.spread, scales), here, strict=True):
                    values[lines[worse]] = old[worse]
                best, found = np.maximum(best, likelihood), found or not worse.all()
        return found

    def _well_fitted(self, axis: int) -> Array:
        return np.setdiff1d(np.arange(self.engine.shape[axis]), self.poorly_fitted(axis))

    def _entries_of(self, axis: int, lines: Array, others: Array) -> Array:
        """Entries of some rows (0) or columns in others; one row of the answer for each."""
        rows, cols = (lines, others) if axis == 0 else (others, lines)
        X = self.engine.block(rows, cols)
        X = X if self.noise.units is None else X / self.noise.units[cols]
        return X if axis == 0 else X.T

    def _likelihood(self, X: Array, axis: int, lines: Array, others: Array) -> Array:
        """The log density of the entries X of every line, those at ``others``."""
        rows, cols = (lines, others) if axis == 0 else (others, lines)
        L = self.rows.mean[rows] @ self.cols.mean[cols].T
        least = np.maximum(self.noise.least[cols], self.noise.lowest)
        s2 = np.maximum(self.noise.s**2 * np.multiply.outer(self.noise.rows[rows], self.noise.cols[cols]), least**2)
        density = self.noise.log_density(X - (L if axis == 0 else L.T), s2 if axis == 0 else s2.T)
        found: Array = np.nansum(density, axis=1)
        return found


def above_noise(Z: Array) -> int:
    """How many singular values of residuals are larger than those of independent noise.

    Rows and columns are scaled to the same mean square; then noise has none beyond √n1 + √n2, whatever its variances
    were (Landa, Zhang and Kluger 2022).
    """
    some = np.any(Z != 0, axis=1), np.any(Z != 0, axis=0)
    Z = Z[some[0]][:, some[1]]
    if not Z.size:
        return 0
    squares = Z**2
    rows, cols = np.ones(Z.shape[0]), np.ones(Z.shape[1])
    for _ in range(3):
        rows = Z.shape[1] / np.maximum(squares @ cols, TINY)
        cols = Z.shape[0] / np.maximum(rows @ squares, TINY)
    Z = Z * np.sqrt(np.multiply.outer(rows, cols))
    values = np.linalg.eigvalsh(Z.T @ Z if Z.shape[0] > Z.shape[1] else Z @ Z.T)
    edge = constants.NOISE_EDGE_FACTOR * sum(np.sqrt(Z.shape))
    return int(np.count_nonzero(values > edge**2))


def covariance_of(factors: Array) -> Array:
    """About zero."""
    covariance: Array = factors.T @ factors / len(factors)
    return covariance


def placed(
    X: Array,
    expected: Array,
    variance: Array,
    covariance: Array,
    other: Side,
    noise: NoiseModel,
    typical: float,
    start: Array | None = None,
) -> Lines:
    """Factors of lines that were not in a fit, from their prior means and their own entries.

    The scale of the noise decreases from that of each line's residuals to that of the fit, so that no line is fitted to
    its own errors.

    Parameters
    ----------
    X : array of shape (m, n), NaN where nothing is observed
    expected : array of shape (m, K)
    variance : array of shape (K,)
        Prior variance of the factors around their means.
    covariance : array of shape (K, K)
        Of the factors of a typical line of this side, once it is placed.
    other : Side
        The other side of the fit, n lines.
    noise : NoiseModel
        ``noise.cols`` are the scales of the other side.
    typical : float
        The trace of a typical posterior covariance with ``other.second``.
    start : array of shape (m, K), or None
        Where factors start; None: where they are expected.
    """
    engine, m = in_memory(X), len(X)
    start = expected if start is None else start
    V, spread = other.mean, np.ones(m)
    prior = Prior(variance, np.ones(m), other.covariance, other.spread, other.second, mean=expected)
    sizes = np.abs(X - start @ V.T) / np.sqrt(noise.cols)
    sizes = np.where(np.isfinite(sizes), sizes, np.inf)
    counts = np.isfinite(sizes).sum(axis=1)
    middle = np.sort(sizes, axis=1)[np.arange(m), np.maximum(counts - 1, 0) // 2]
    scale = np.maximum(np.where(counts > 0, constants.START_SCALE_FACTOR * 1.4826 * middle / noise.s, 1.0), 1.0)
    mean, across = start, np.einsum("ik,ik->i", V @ covariance, V)
    while True:
        model = replace(noise, rows=scale**2)
        along = np.einsum("ik,ik->i", mean @ other.covariance, mean)
        weights = model.for_engine(np.column_stack([spread, along]), np.column_stack([across, other.spread]))
        lines = engine.solve_lines(0, mean, V, weights, prior)
        mean, spread = lines.mean, _in_units(lines.spread, typical)
        if scale.max(initial=1.0) <= 1.0:
            return lines
        scale = np.maximum(scale / constants.MAX_SCALE_DECREASE, 1.0)


def _in_units(spread: Array, typical: float) -> Array:
    """The uncertainty of lines relative to that of a typical one; an exact fit has none, and nothing to relate to."""
    return spread / typical if typical > 0 else np.ones(len(spread))


def moved(new: LowRank, old: LowRank) -> float:
    """``‖new − old‖ / ‖new‖`` from the factors, to half of the digits; ``core`` must be the identity."""
    size, before, both = (
        float(np.vdot(A.left.T @ B.left, A.right.T @ B.right)) for A, B in ((new, new), (old, old), (new, old))
    )
    change = size + before - 2 * both
    return float(np.sqrt(max(change, 0.0) / size)) if size > 0 else float(change > 0)


def begin(
    engine: Engine,
    bases: tuple[Array, Array],
    tied: tuple[bool, bool],
    L0: LowRank,
    noise: NoiseModel,
    sample: tuple[Array, Array, Array],
    directions: int,
    rng: np.random.Generator | None = None,
) -> Fit:
    """A fit of at most ``directions`` components that begins at L0, whose error is about ``noise.s``.

    Those beside the components of L0 are random or, without random numbers, the principal ones of what it leaves. Those
    hidden by noise are dropped at the end, unless ``Fit.directions`` says how many there are.
    """
    (n1, n2), s0 = engine.shape, noise.s
    L0 = LowRank.from_product(*L0.thin())
    sv = np.diag(L0.core)
    directions = min(directions, n1, n2, *(b.shape[1] for b, t in zip(bases, tied, strict=True) if t))
    kept = int(np.count_nonzero(sv > 1e-9 * sv.max(initial=0.0)))
    kept = min(kept, directions)
    new = directions - kept
    root = np.sqrt(sv[:kept]) * (n1 / n2) ** 0.25
    within = [basis if is_tied else None for basis, is_tied in zip(bases, tied, strict=True)]
    if rng is None:
        first = _principal(engine, L0, s0, within, new) * np.sqrt(n2)
    else:
        first = rng.standard_normal((bases[1].shape[1] if tied[1] else n2, new))
        first = bases[1] @ first / np.sqrt(len(first)) if tied[1] else first
    U = np.hstack([L0.left[:, :kept] * root, np.zeros((n1, new))])
    V = np.hstack([L0.right[:, :kept] * (sv[:kept] / root), constants.NEW_COMPONENT_SCALE * np.sqrt(s0) * first])
    sides = []
    for B, basis, fixed, counts in zip((U, V), bases, tied, engine.counts, strict=True):
        variance = np.r_[(B[:, :kept] ** 2).mean(axis=0), np.full(new, s0)]
        sides.append(Side(B, basis, fixed, variance, variance.copy(), counts > 0))
    i, j, values = sample
    model = replace(noise, broad=3 * float(np.std(values - L0.entries(i, j))) + s0)
    largest = max(float(side.variance.max(initial=TINY)) for side in sides)
    return Fit(engine, sides[0], sides[1], model, sample, 1e-10 * largest)


def _principal(engine: Engine, L0: LowRank, s0: float, bases: Sequence[Array | None], count: int) -> Array:
    """The first right singular vectors of the residuals of L0, within the span of the bases that are given.

    Residuals count for no more than ``s0``, about their usual size, so that gross errors weigh as others do.
    """
    n1, n2 = engine.shape
    left = engine.block(np.arange(n1), np.arange(n2)) - L0.dense()
    left = np.nan_to_num(np.clip(left, -s0, s0))
    Q1, Q2 = (None if basis is None else np.linalg.qr(basis)[0] for basis in bases)
    left = left if Q1 is None else Q1.T @ left
    left = left if Q2 is None else left @ Q2
    square = left.T @ left if left.shape[1] <= left.shape[0] else left @ left.T
    vectors = np.linalg.eigh(square)[1][:, ::-1][:, :count]
    if left.shape[1] > left.shape[0]:
        vectors = left.T @ vectors
        vectors /= np.maximum(np.linalg.norm(vectors, axis=0), TINY)
    vectors = np.hstack([vectors, np.zeros((len(vectors), count - vectors.shape[1]))])
    return vectors if Q2 is None else Q2 @ vectors
