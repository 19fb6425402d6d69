"""Factors of rows and columns, with priors that features inform.

    m_ij = u_i · v_j + e_ij        u_i ~ N(Q1_i A, Λ_u)        v_j ~ N(Q2_j B, Λ_v)

Q1 and Q2 hold the features and a constant; A, B, Λ_u and Λ_v are learned. Where Λ is zero, a side is exactly what its
features say; with few entries a line stays close to that. Perfect features, imperfect ones, none, holes and cold start
are all this model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from . import constants
from .engines.base import COMPONENTS, Engine, Lines, Prior
from .features import Features
from .lowrank import Array, LowRank, relative_distance
from .noise import NoiseModel, refound
from .sampling import in_memory

TINY = 1e-300


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
        Whether lines are exactly what the basis says: Λ is zero, and the coefficients are plain least squares.
    variance : array of shape (K,)
        Λ.
    coefficients, slope_variance : arrays of shape (d, K) and (K,)
        A, and the variance of its prior.
    covariance, spread : arrays of shape (K, K) and (n,)
        The posterior covariance of line i is about ``spread[i] · covariance``.
    """

    mean: Array
    basis: Array
    tied: bool
    variance: Array
    slope_variance: Array
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
        """Σ of ``u uᵀ`` over all lines, uncertainty included."""
        return self.mean.T @ self.mean + self.spread.sum() * self.covariance

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
        """The same with what is expected of every line held as it is."""
        return replace(self.prior(other), basis=None, mean=self.expected)

    def take(self, lines: Lines, learn: bool, least: float) -> None:
        """New posteriors and, if asked, what they say of the prior."""
        self.mean, self.expected, self.covariance = lines.mean, lines.expected, lines.covariance
        self.spread = lines.spread / max(float(lines.spread.mean()), TINY)
        if lines.coefficients is None:
            return
        self.coefficients = lines.coefficients
        if not learn:
            return
        uncertain = 1 / np.maximum(lines.precision + 1 / np.maximum(self.slope_variance, TINY), TINY)
        self.slope_variance = np.maximum((self.coefficients**2).mean(axis=0) + uncertain, TINY)
        if not self.tied:
            away = (self.mean - self.expected) ** 2 + lines.variance
            self.variance = np.maximum(away.mean(axis=0) + len(self.coefficients) * uncertain, least)

    def some(self, lines: Array) -> Side:
        """These lines only."""
        new = Side(self.mean[lines], self.basis[lines], self.tied, self.variance, self.slope_variance)
        new.mean, new.expected = self.mean[lines], self.expected[lines]
        new.coefficients, new.covariance, new.spread = self.coefficients, self.covariance, self.spread[lines]
        return new

    def turned(self, R: Array) -> Side:
        """Other directions, ``mean @ R``; the prior follows."""
        new = Side(self.mean @ R, self.basis, self.tied, self.variance @ (R * R), self.slope_variance @ (R * R))
        new.expected, new.coefficients = self.expected @ R, self.coefficients @ R
        new.covariance, new.spread = R.T @ self.covariance @ R, self.spread
        return new

    def extended(self, basis: Array, coefficients: Array, index: Array) -> Side:
        """The same for more lines, of which these are those at ``index``; the others are what is expected of them."""
        new = Side(basis @ coefficients, basis, self.tied, self.variance, self.slope_variance)
        new.coefficients, new.covariance = coefficients, self.covariance
        new.expected = new.mean
        if not self.tied:
            new.mean = new.mean.copy()
            new.mean[index] = self.mean
        new.spread = np.ones(len(basis))
        new.spread[index] = self.spread
        return new


def basis_of(F: Features, tied: bool) -> Array:
    """What features span, with the constant unless the side is tied; columns of mean square 1."""
    if F.Q is None:
        return np.ones((F.n, 1))
    if tied:
        return F.Q * np.sqrt(F.n)
    X = np.hstack([np.full((F.n, 1), 1 / np.sqrt(F.n)), F.Q])
    Q, s, _ = np.linalg.svd(X, full_matrices=False)
    return Q[:, s > constants.REPEATED * s[0]] * np.sqrt(F.n)


def restricted(basis: Array, lines: Array) -> tuple[Array, Array]:
    """The basis of some lines with columns of mean square 1, and R with ``basis[lines] = new @ R``."""
    Q, s, Vt = np.linalg.svd(basis[lines], full_matrices=False)
    kept = s > constants.REPEATED * s[0]
    root = np.sqrt(len(lines))
    return Q[:, kept] * root, (s[kept] / root)[:, None] * Vt[kept]


@dataclass(eq=False)
class Fit:
    """The model with its parameters, on the M of an engine; each sweep improves it."""

    engine: Engine
    rows: Side
    cols: Side
    noise: NoiseModel
    sample: tuple[Array, Array, Array]
    least: float
    directions: int | None = None
    sweeps: int = 0
    step: float = np.inf
    forked: bool = False
    trust: tuple[Array, Array] | None = None

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
        """Whether noise fell to what cannot be told from none."""
        return not self.noise.target and self.noise.s <= constants.NEARLY_EXACT * self.noise.lowest

    @property
    def spreads(self) -> tuple[Array, Array]:
        """The variance of L_ij as a sum of two products: of the rows' uncertainty, and of the columns'."""
        rows, cols = self.rows, self.cols
        both = float(np.sum(rows.covariance * cols.covariance))
        across = np.einsum("jk,jk->j", cols.mean @ rows.covariance, cols.mean) + cols.spread * both
        along = np.einsum("ik,ik->i", rows.mean @ cols.covariance, rows.mean)
        return np.column_stack([rows.spread, along]), np.column_stack([across, cols.spread])

    def sweep(self, afresh: bool = False) -> None:
        """Rows given columns, columns given rows, priors and noise: two reads."""
        self.sweeps += 1
        n, rows, cols = self.sweeps, self.rows, self.cols
        if afresh and n in constants.AFRESH and (found := refound(self.noise, self.residuals)):
            self.noise, self.forked = found, True
        noise, before = self.noise, self.L
        learn, own = n > constants.PATIENCE, n > constants.OWN_SCALES and np.isinf(noise.zeta)
        lines = self.engine.solve_rows(rows.mean, cols.mean, noise.weights(*self.spreads), rows.prior(cols))
        rows.take(lines, learn, self.least)
        noise.learn_shares(lines.sums)
        if own:
            noise.learn_scales(lines.sums, 0)
        lines = self.engine.solve_cols(rows.mean, cols.mean, noise.weights(*self.spreads), cols.prior(rows))
        cols.take(lines, learn, self.least)
        self.trust = lines.sums.rows[:, 1], lines.sums.cols[:, 1]
        noise.learn(lines.sums, rise=learn)
        if own:
            noise.learn_scales(lines.sums, 1)
        self.step = moved(self.L, before)

    def principal(self) -> Fit:
        """The same with directions that are uncorrelated, and as long on both sides; those that died out are dropped.

        A fit is not swept in these directions: priors along them shrink weak ones too much, and those never come back.
        """
        if self.rank == 0:
            return self
        n1, n2 = self.engine.shape
        E1, E2 = self.rows.second / n1, self.cols.second / n2
        w, Q = np.linalg.eigh(E1)
        w = np.maximum(w, constants.ROUNDING * max(float(w[-1]), TINY))
        root, back = (Q * np.sqrt(w)) @ Q.T, (Q / np.sqrt(w)) @ Q.T
        energy, P = np.linalg.eigh(root @ E2 @ root)
        energy, P = np.maximum(energy[::-1], max(constants.ROUNDING**2 * float(energy[-1]), TINY)), P[:, ::-1]
        if self.directions is None:
            # Weaker ones are hidden by noise (Baik, Ben Arous and Péché 2005; Nadler 2008).
            noise = self.noise
            scaled = self.rows.mean / np.sqrt(noise.rows)[:, None], self.cols.mean / np.sqrt(noise.cols)[:, None]
            seen = LowRank.from_product(*scaled).singular_values ** 2
            hidden = max(constants.ALIVE * noise.s**2 * np.sqrt(n1 * n2), constants.ROUNDING**2 * seen.max(initial=0.0))
            alive = int(np.count_nonzero(seen > hidden))
            energy, P = energy[:alive], P[:, :alive]
        length = energy**0.25
        return replace(self, rows=self.rows.turned(back @ P * length), cols=self.cols.turned(root @ P / length))

    @property
    def residuals(self) -> Array:
        """At the sampled entries, in units of their lines' scales."""
        i, j, values = self.sample
        noise = self.noise
        return (values - self.L.entries(i, j)) / np.sqrt(noise.rows[i] * noise.cols[j])

    def place(self, X: Array, axis: int, lines: Array, others: Array) -> None:
        """Factors of some rows (0) or columns from their entries X, across some lines of the other side."""
        side, other = (self.rows, self.cols) if axis == 0 else (self.cols, self.rows)
        if side.tied:
            return
        scales = self.noise.cols if axis == 0 else self.noise.rows
        least = self.noise.least[others] if axis == 0 else np.full(len(others), self.noise.lowest)
        noise = replace(self.noise, rows=np.ones(len(lines)), cols=scales[others], least=least)
        across = other.some(others)
        typical = float(np.sum(side.covariance * across.second))
        found = placed(X, side.expected[lines], side.variance, side.covariance, across, noise, typical)
        side.mean[lines], side.spread[lines] = found.mean, found.spread / max(typical, TINY)

    def copy(self) -> Fit:
        """Another fit to the same M, to go on with."""
        rows, cols = (side.some(np.arange(len(side.mean))) for side in (self.rows, self.cols))
        noise = replace(self.noise, rows=self.noise.rows.copy(), cols=self.noise.cols.copy())
        return replace(self, rows=rows, cols=cols, noise=noise)

    def least_squares(self, rank: int) -> Fit:
        """Plain least squares on what is kept, of this rank: the threshold falls with what is left, to rounding."""
        U, V = self.L.thin()
        L = LowRank.from_product(U, V, rank)
        left, right = L.left @ L.core, L.right
        sides = []
        for B, side in ((left, self.rows), (right, self.cols)):
            loose = np.full(L.rank, constants.LOOSE * float((B**2).max(initial=TINY)))
            sides.append(Side(B, side.basis, side.tied, loose, loose.copy()))
        zeta = constants.BEYOND * COMPONENTS[-1] * self.noise.s
        noise = replace(self.noise, zeta=zeta, rows=np.ones(len(left)), cols=np.ones(len(right)), s=1.0)
        fit = replace(self, rows=sides[0], cols=sides[1], noise=noise)
        fit._polish()
        again = fit.copy()
        if again._replace_astray(self.noise):
            again._polish()
            return min(fit, again, key=lambda fit: fit._size)
        return fit

    @property
    def _size(self) -> float:
        """The mean logarithm of the residuals, those at rounding counted as that."""
        return float(np.log(np.maximum(np.abs(self.residuals), self._rounding)).mean())

    @property
    def _rounding(self) -> float:
        return constants.ROOM * float(np.finfo(float).eps * np.abs(self.sample[2]).max())

    def _polish(self) -> None:
        """Alternating least squares on the entries within a threshold that falls with what is left."""
        for _ in range(constants.POLISH):
            before = self.L
            for axis in (0, 1):
                side, other = (self.rows, self.cols) if axis == 0 else (self.cols, self.rows)
                Q, R = np.linalg.qr(other.mean)
                other.mean, other.coefficients = Q, other.basis.T @ Q / len(Q)
                side.mean, side.coefficients = side.mean @ R.T, side.coefficients @ R.T
                ask = self.engine.solve_rows if axis == 0 else self.engine.solve_cols
                lines = ask(self.rows.mean, self.cols.mean, self.noise.weights(*self.spreads), side.prior(other))
                side.take(replace(lines, covariance=np.zeros_like(lines.covariance)), False, 0.0)
                self.trust = lines.sums.rows[:, 1], lines.sums.cols[:, 1]
            sizes = np.abs(self.residuals)
            kept = sizes[sizes <= self.noise.zeta]
            step = relative_distance(self.L, before)
            if not np.isfinite(step):
                raise FloatingPointError("least squares on what is kept ran away: the fit is not exact")
            if not len(kept) or step < constants.ROUNDING:
                break
            lowest = self.noise.zeta / constants.DECAY
            self.noise.zeta = min(self.noise.zeta, max(10 * float(np.quantile(kept, 0.8)), lowest, self._rounding))

    def _replace_astray(self, noise: NoiseModel) -> bool:
        """Lines of which little is kept, placed anew among the others; whether there were any."""
        found = False
        for axis in (0, 1):
            lines, side = self.astray(axis), (self.rows, self.cols)[axis]
            if len(lines) and not side.tied:
                usual = np.setdiff1d(np.arange(len(side.mean)), lines)
                loose, side.variance = side.variance, side.mean[usual].var(axis=0)
                side.expected = np.tile(side.mean[usual].mean(axis=0), (len(side.mean), 1))
                exact, self.noise = self.noise, replace(noise, rows=self.noise.rows, cols=self.noise.cols)
                others = self._usual(1 - axis)
                self.place(self._entries_of(axis, lines, others), axis, lines, others)
                self.noise, side.variance, found = exact, loose, True
                self.noise.zeta = max(self.noise.zeta, constants.BEYOND * COMPONENTS[-1] * noise.s)
        return found

    def done(self, step: float, settled: int) -> bool:
        return self.sweeps > settled and self.step < step and not self.noise.falling

    def run(self, afresh: bool = False, step: float = constants.STEP, settled: int = constants.SETTLED) -> Fit:
        most, settled = self.sweeps + constants.SWEEPS, self.sweeps + settled
        for rescues_left in reversed(range(constants.RESCUES + 1)):
            while self.sweeps < most and not self.done(step, settled):
                self.sweep(afresh)
                if not np.isfinite(self.step):
                    return self
            if not rescues_left or not self.rescue():
                break
            most, settled = self.sweeps + constants.SETTLED, self.sweeps + constants.PATIENCE
        return self

    def astray(self, axis: int) -> Array:
        """Lines of whose entries far fewer are believed than of others', or that seem far noisier."""
        if self.trust is None:
            return np.zeros(0, int)
        counts = np.maximum(self.engine.counts[axis], 1)
        share, scale = self.trust[axis] / counts, (self.noise.rows, self.noise.cols)[axis]
        usual = float(np.median(share))  # a share of n entries has a standard deviation of at most 0.5 / √n
        few = share < np.maximum(constants.ASTRAY * usual, usual - constants.SURE * 0.5 / np.sqrt(counts))
        odd = few | (scale > constants.NOISIER * np.median(scale))
        lines = np.flatnonzero(odd & (self.engine.counts[axis] > 0))
        return lines if len(lines) <= constants.FEW_LINES * len(counts) else lines[:0]

    def rescue(self) -> bool:
        """Fit lines that went astray again, from a large scale that falls; whether that made any more likely."""
        found = False
        for axis in (0, 1):
            lines = self.astray(axis)
            if not len(lines) or self.tied[axis]:
                continue
            side, scales = (self.rows, self.noise.rows) if axis == 0 else (self.cols, self.noise.cols)
            mean, spread, scale = side.mean[lines], side.spread[lines], scales[lines]
            others = self._usual(1 - axis)
            X = self._entries_of(axis, lines, others)
            before = self._likelihood(X, axis, lines, others)
            scales[lines] = 1.0
            self.place(X, axis, lines, others)
            worse = self._likelihood(X, axis, lines, others) <= before
            at = lines[worse]
            side.mean[at], side.spread[at], scales[at] = mean[worse], spread[worse], scale[worse]
            found |= not worse.all()
        return found

    def _usual(self, axis: int) -> Array:
        return np.setdiff1d(np.arange(self.engine.shape[axis]), self.astray(axis))

    def _entries_of(self, axis: int, lines: Array, others: Array) -> Array:
        """Those of some rows (0) or columns across others; one row of the answer for each."""
        return self.engine.block(lines, others) if axis == 0 else self.engine.block(others, lines).T

    def _likelihood(self, X: Array, axis: int, lines: Array, others: Array) -> Array:
        """The log density of the entries X of every line, those at ``others``."""
        rows, cols = (lines, others) if axis == 0 else (others, lines)
        L = self.rows.mean[rows] @ self.cols.mean[cols].T
        least = np.maximum(self.noise.least[cols], self.noise.lowest)
        s2 = np.maximum(self.noise.s**2 * np.multiply.outer(self.noise.rows[rows], self.noise.cols[cols]), least**2)
        density = self.noise.log_density(X - (L if axis == 0 else L.T), s2 if axis == 0 else s2.T)
        found: Array = np.nansum(density, axis=1)
        return found


def placed(
    X: Array, expected: Array, variance: Array, covariance: Array, other: Side, noise: NoiseModel, typical: float
) -> Lines:
    """Factors of lines that were not in a fit, from what is expected of them and from their own entries.

    The scale of the noise falls from what each line shows to that of the fit, so that none settles on its own errors.

    Parameters
    ----------
    X : array of shape (m, n), NaN where nothing is observed
    expected : array of shape (m, K)
    variance : array of shape (K,)
        How far lines are from what is expected of them.
    covariance : array of shape (K, K)
        Of the factors of a typical line of this side, once it is placed.
    other : Side
        The other side of the fit, n lines.
    noise : NoiseModel
        ``noise.cols`` are the scales of the other side.
    typical : float
        The trace of a typical posterior covariance with ``other.second``.
    """
    engine, m = in_memory(X), len(X)
    V, spread = other.mean, np.ones(m)
    prior = Prior(variance, np.ones(m), other.covariance, other.spread, other.second, mean=expected)
    sizes = np.abs(X - expected @ V.T) / np.sqrt(noise.cols)
    sizes = np.where(np.isfinite(sizes), sizes, np.inf)
    counts = np.isfinite(sizes).sum(axis=1)
    middle = np.sort(sizes, axis=1)[np.arange(m), np.maximum(counts - 1, 0) // 2]
    scale = np.maximum(np.where(counts > 0, constants.WIDER * 1.4826 * middle / noise.s, 1.0), 1.0)
    mean, across = expected, np.einsum("ik,ik->i", V @ covariance, V)
    last = constants.LAST
    while True:
        model = replace(noise, rows=scale**2)
        along = np.einsum("ik,ik->i", mean @ other.covariance, mean)
        weights = model.weights(np.column_stack([spread, along]), np.column_stack([across, other.spread]))
        lines = engine.solve_rows(mean, V, weights, prior)
        mean, spread = lines.mean, lines.spread / max(typical, TINY)
        last -= bool(scale.max(initial=1.0) <= 1.0)
        if not last:
            return lines
        scale = np.maximum(scale / constants.PLACING, 1.0)


def moved(new: LowRank, old: LowRank) -> float:
    """``‖new − old‖ / ‖new‖`` from the factors, to half of the digits; ``core`` must be the identity."""
    U, V = np.hstack([new.left, old.left]), np.hstack([new.right, -old.right])
    size = float(np.sum((new.left.T @ new.left) * (new.right.T @ new.right)))
    change = float(np.sum((U.T @ U) * (V.T @ V)))
    return float(np.sqrt(max(change, 0.0) / size)) if size > 0 else float(change > 0)


def begin(
    engine: Engine,
    bases: tuple[Array, Array],
    tied: tuple[bool, bool],
    L0: LowRank,
    s0: float,
    least: Array,
    rank: int | None,
    directions: int,
    sample: tuple[Array, Array, Array],
    rng: np.random.Generator,
    nu: float = np.inf,
    target: float | None = None,
) -> Fit:
    """A fit that begins at L0, whose error is about s0, with random directions beside those of L0.

    ``rank`` None: as many of ``directions`` as there is something to say for.
    """
    n1, n2 = engine.shape
    s0 = max(s0, 10 * float(least.min()))
    L0 = LowRank.from_product(*L0.thin())
    sv = np.diag(L0.core)
    most = min(n1, n2, *(b.shape[1] for b, t in zip(bases, tied, strict=True) if t))
    directions = min(directions if rank is None else rank, most)
    kept = min(int((sv > 1e-9 * sv[0]).sum()), constants.KEPT, directions) if len(sv) and sv[0] > 0 else 0
    new = directions - kept
    root = np.sqrt(sv[:kept]) * (n1 / n2) ** 0.25
    random = rng.standard_normal((bases[1].shape[1] if tied[1] else n2, new))
    random = bases[1] @ random / np.sqrt(len(random)) if tied[1] else random
    U = np.hstack([L0.left[:, :kept] * root, np.zeros((n1, new))])
    V = np.hstack([L0.right[:, :kept] * (sv[:kept] / root), constants.NEW * np.sqrt(s0) * random])
    sides = []
    for B, basis, fixed in zip((U, V), bases, tied, strict=True):
        variance = np.r_[(B[:, :kept] ** 2).mean(axis=0), np.full(new, s0)]
        sides.append(Side(B, basis, fixed, variance, variance.copy()))
    i, j, values = sample
    wide = 3 * float(np.std(values - L0.entries(i, j))) + s0
    model = NoiseModel(s0, least, np.ones(n1), np.ones(n2), wide, nu=nu, target=target)
    largest = max(float(side.variance.max(initial=TINY)) for side in sides)
    return Fit(engine, sides[0], sides[1], model, sample, 1e-10 * largest, rank)
