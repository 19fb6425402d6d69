"""Bayesian factors with features and Student noise: for data that are mostly noise and seen in few places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from ..engines.base import Engine, Soft, Trim
from ..features import Features
from ..lowrank import Array, LowRank, relative_distance, singular_triplets, tall_qr
from ..result import Choice, Expected, State
from ..sampling import Sample, check_scale
from ..threshold import rounding_floor

NU = 2.0  # degrees of freedom of the noise: the fewer, the less a large residual counts
DIRECTIONS = 10  # free ones that "auto" offers
LEAST_FREE = 0.2  # of the variance of the noise: the room that priors leave all free directions, lest they die out
ALIVE = 2.0  # times its least: a direction with so much room has earned it
AT_FIRST = 0.5, 0.6  # standard deviations of effects and of directions, in units of the spread of M and of its root
PATIENCE = 3  # sweeps before priors are learned: at first the factors know nothing
SETTLING = 30  # sweeps before a small step means anything: a direction comes out of the noise slowly at first
LEAST_NOISE = 1e-7  # of the spread of M: what has less is as good as exact
PSEUDO = 10.0  # observations, for which the common variance counts in that of a row
LOOK = 1 << 15  # entries to judge residuals by
MEDIAN = 1.4826  # times the median size of Gaussian residuals is their standard deviation
GROSS = 3.0  # such standard deviations: beyond is a gross error
FALLING = 0.9  # times its last value: a variance below that has not come to rest
NEGLIGIBLE = 0.01  # a step this small beside the uncertainty of L is as good as none


def bayes(
    engine: Engine,
    F1: Features,
    F2: Features,
    rank: None,
    *,
    extra_rank: int | str = "auto",
    biases: bool = True,
    robust: bool = True,
    random_state: np.random.Generator,
) -> Iterator[State]:
    """Factors of rows and columns with priors that features inform, by variational Bayes.

    ``m_ij = U_i · V_j + noise`` with priors ``U_i ~ N(a + F1_i A, 1/λ)`` and ``V_j ~ N(b + F2_j B, 1/κ)``: the less M
    says about a row, the closer it stays to what its features say, or to what rows are on average. All of a, A, λ, b,
    B, κ and the noise are learned. It is for noisy data with few observations per row, such as ratings, where fits
    without shrinkage fit the noise. It takes no rank. The noise follows Student's distribution, with a variance for
    each row: what is far from L counts for little, a row far from L in most places too, and nothing has to be told
    apart from noise to be harmless.

    A sweep is a regression for each row and each column, and two reads of M. Memory is that of ``(extra_rank + 2)²``
    numbers for each of them, several times: about 10 kB for ten directions.

    Parameters
    ----------
    extra_rank : int or "auto"
        Number of free directions beside the biases. ``"auto"``: 10, of which those that M does not speak for are all
        but closed. With 0, L is an overall mean, effects of rows and effects of columns, each with what features say of
        them; row features can interact with column features only in free directions.
    biases : bool
        Whether each row and each column has an effect of its own beside the free directions.
    robust : bool
        False: Gaussian noise of one variance, to see what robustness does.

    Notes
    -----
    Student noise has no gap behind which gross errors begin. S holds what is beyond three standard deviations of the
    core of the residuals; so are about 3 % of honest ratings.

    ``shares`` are of the energy of L over all entries, observed or not, in parts that are orthogonal: the overall mean;
    what is in the span of the features, effects included; the rest of the effects; what is left.
    """
    free = _directions(extra_rank, biases, engine.shape)
    sample = Sample.draw(engine, LOOK, random_state)
    rows, cols, noise = _start(engine, F1, F2, free, biases, robust, sample, random_state)
    spans = _span(F1, biases), _span(F2, biases)
    L = LowRank.zero(engine.shape)
    for sweep in count(1):
        # Rows given columns, and then the noise of each.
        sums = Sums.of(*engine.times(_product(rows, cols), noise.soft, cols.mean, cols.moments()))
        uncertainty = rows.update(sums.divided(noise.variances))
        noise.learn(sums, uncertainty)
        # Columns given rows. Each row counts as much as its noise lets it.
        each = 1 / noise.variances[:, None]
        cols.update(Sums.of(*engine.t_times(_product(rows, cols), noise.soft, each * rows.mean, each * rows.moments())))
        # Priors given both.
        room = LEAST_FREE * noise.common / max(free, 1)
        if sweep > PATIENCE:
            rows.learn(np.sqrt(room))
            cols.learn(np.sqrt(room))
        before = L
        L, expected = _finished(rows, cols)
        sizes = sample.sizes(L)
        sigma = MEDIAN * float(np.median(sizes))
        zeta = max(GROSS * sigma, rounding_floor(engine.dtype, float(np.abs(sample.at(L)).max())))
        alive = int(np.count_nonzero(rows.room * cols.room > ALIVE * room))
        yield State(
            L,
            zeta,
            relative_distance(L, before),
            noise=sigma,
            tolerance=_tolerance(engine, L, float(uncertainty @ noise.variances)),
            settled=sweep >= SETTLING and not noise.falling,
            expected_corruption=float(np.mean(sizes > zeta)),
            expected=expected,
            shares=_shares(L, *spans, biases),
            choices=_choices(sigma, len(sizes), alive, free),
        )


class Lines:
    """The factors of one side, with a Gaussian posterior for every line, and the prior that they share.

    Parameters
    ----------
    mean : array of shape (n, K)
        At first; changed in place. Coordinates that are not ``own`` are fixed.
    own : slice
    free : boolean array
        Which of the own coordinates are free directions; the others are effects.
    F : Features
    counts : array of shape (n,)
        How many entries of each line are observed.
    spread : float
        Standard deviation of M, more or less. Factors are of the size of its root.
    """

    def __init__(self, mean: Array, own: slice, free: Array, F: Features, counts: Array, spread: float) -> None:
        self.mean, self.own, self.free, self.counts = mean, own, free, counts
        self.covariance = np.zeros((*mean.shape, mean.shape[1]))
        self.seen = counts > 0
        effect, direction = AT_FIRST
        self.variances = np.where(free, direction**2 * spread, effect**2 * spread**2)  # 1/λ
        self.coefficient_variances = self.variances.copy()
        self.centre = np.where(free, 0.0, mean[:, own])
        # All lines seen are alike where priors are learned. A new line is more like those with many entries.
        self.alike, self.by_count = Regression(F, self.seen.astype(float)), Regression(F, counts)

    @property
    def room(self) -> Array:
        """How far the prior lets each free direction go."""
        return self.variances[self.free]

    @property
    def _ridge(self) -> Array:
        return self.variances / (self.coefficient_variances * np.count_nonzero(self.seen))

    def moments(self) -> Array:
        """What :class:`Sums` wants summed: second moments, covariances, and ones."""
        upper = np.triu_indices(self.mean.shape[1])
        second = self.covariance + self.mean[:, :, None] * self.mean[:, None, :]
        return np.column_stack([second[:, *upper], self.covariance[:, *upper], np.ones(len(second))])

    def update(self, sums: Sums) -> Array:
        """New posteriors, given those of the other side.

        Returns what the uncertainty of L adds to the energy of the residuals of each line: the sum over its entries of
        w · var(U_i · V_j), in units of the noise.
        """
        own, mean = self.own, self.mean
        pull = sums.products - np.einsum("iab,ib->ia", sums.covariances, mean)
        covariance = _inverse(sums.moments[:, own, own] + np.diag(1 / self.variances), sums.rounding)
        mean[:, own] += np.einsum(
            "iab,ib->ia", covariance, pull[:, own] - (mean[:, own] - self.centre) / self.variances
        )
        self.covariance[:, own, own] = covariance
        others = np.einsum("ia,iab,ib->i", mean, sums.covariances, mean, optimize=True)
        return np.einsum("iab,iab->i", self.covariance, sums.moments) + others

    def learn(self, least: float) -> None:
        """The prior from the posteriors: what features say, and how far from it lines are, no less than ``least``."""
        X, features = self.mean[:, self.own], self.alike
        offset, A = features.fit(X, self._ridge)
        self.centre = features.at(offset, A)
        uncertain = self.variances / np.count_nonzero(self.seen) / (features.curvature + self._ridge)
        if len(A):
            self.coefficient_variances = (A**2 + uncertain).mean(axis=0)
        far = (X - self.centre) ** 2 + np.einsum("iaa->ia", self.covariance[:, self.own, self.own])
        variances = features.weights @ far + (features.curvature * uncertain).sum(axis=0)
        self.variances = np.where(self.free, np.maximum(variances, least), variances)

    def completed(self) -> tuple[Array, Expected]:
        """The means, with those of lines never seen as features expect them; and that expectation."""
        offset, A = np.ones(self.mean.shape[1]), np.zeros((len(self.by_count.curvature), self.mean.shape[1]))
        offset[self.own], A[:, self.own] = self.by_count.fit(self.mean[:, self.own], self._ridge)
        mean = np.where(self.seen[:, None], self.mean, self.by_count.at(offset, A))
        return mean, self.by_count.expected(offset, A)


class Regression:
    """Lines regressed on their features and the constant, with a weight for each line: ``offset + basis @ A``.

    A has a ridge, a number for each column of what is explained; the offset has none.
    """

    def __init__(self, F: Features, weights: Array) -> None:
        self.F, self.weights = F, weights / weights.sum()
        Q = np.zeros((F.n, 0)) if F.Q is None else F.Q * np.sqrt(F.n)
        self.centre = self.weights @ Q
        curvature, self.turn = np.linalg.eigh((Q - self.centre).T * self.weights @ (Q - self.centre))
        self.curvature = np.maximum(curvature, 0.0)[:, None]
        self.basis = (Q - self.centre) @ self.turn

    def fit(self, X: Array, ridge: Array) -> tuple[Array, Array]:
        offset = self.weights @ X
        return offset, (self.basis.T * self.weights) @ (X - offset) / (self.curvature + ridge)

    def at(self, offset: Array, A: Array) -> Array:
        fitted: Array = offset + self.basis @ A
        return fitted

    def expected(self, offset: Array, A: Array) -> Expected:
        """The same for lines with features in the user's own coordinates."""
        A = self.turn @ A
        return Expected(offset - self.centre @ A, self.F.solve(A * np.sqrt(self.F.n)) if self.F.given else A)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the entries of each line, of weights w, residuals r, and factors of the other side.

    Attributes
    ----------
    products : Σ w r v
    moments : Σ w (v vᵀ + C), of means v and covariances C
    covariances : Σ w C
    weights : Σ w
    energy : Σ w r² of all lines together
    rounding : the relative error of the sums
    """

    products: Array
    moments: Array
    covariances: Array
    weights: Array
    energy: float
    rounding: float

    @classmethod
    def of(cls, products: Array, sums: Array | None, trim: Trim) -> Sums:
        """From what an engine answers if asked with :meth:`Lines.moments`."""
        assert sums is not None
        n, K = products.shape
        upper = np.triu_indices(K)
        moments, covariances = np.empty((2, n, K, K))
        for full, half in zip((moments, covariances), np.split(sums[:, :-1], 2, axis=1), strict=True):
            full[:, *upper] = half
            full[:, *upper[::-1]] = half
        rounding = 16 * float(np.finfo(sums.dtype).eps)
        return cls(products.astype(float), moments, covariances, sums[:, -1].astype(float), trim.energy, rounding)

    def divided(self, variances: Array) -> Sums:
        """The first three in units of the noise of each line."""
        each = 1 / variances[:, None, None]
        moments, covariances = each * self.moments, each * self.covariances
        return replace(self, products=each[:, 0] * self.products, moments=moments, covariances=covariances)


class Noise:
    """Student noise with a variance for every row, or Gaussian noise with one for all.

    A row may be noisier than the others, but none is trusted more than most: those who agree too well with each other
    may be one and the same.
    """

    def __init__(self, counts: Array, columns: int, variance: float, least: float, robust: bool) -> None:
        self.counts, self.columns, self.least = counts, columns, least
        self.nu = NU if robust else np.inf
        self.common, self.falling = variance, True
        self.variances = np.full(len(counts), variance)

    @property
    def soft(self) -> Soft:
        return Soft(self.variances, np.ones(self.columns), self.nu)

    def learn(self, sums: Sums, uncertainty: Array) -> None:
        """Variances from weighted residuals, and what the uncertainty of L adds to them (in units of the old)."""
        before = self.common
        if np.isinf(self.nu):
            total = sums.energy + float(uncertainty @ self.variances)
            self.common = max(total / self.counts.sum(), self.least)
            self.variances = np.full(len(self.counts), self.common)
        else:
            # The weights tell the residuals: w r²/s² = nu + 1 − nu w.
            energies = (self.nu + 1) * self.counts - self.nu * sums.weights + uncertainty
            energies = np.maximum(energies, 0.0) * self.variances  # not below, by rounding
            own = energies / np.maximum(self.counts, 1)
            self.common = max(_weighted_median(own, self.counts), self.least)
            shrunk = (energies + PSEUDO * self.common) / (self.counts + PSEUDO)
            self.variances = np.maximum(shrunk, self.common)
        self.falling = self.common < FALLING * before


def _directions(extra_rank: Any, biases: bool, shape: tuple[int, int]) -> int:
    if isinstance(extra_rank, str) and extra_rank == "auto":
        return min(DIRECTIONS, *shape)
    if isinstance(extra_rank, bool) or not isinstance(extra_rank, (int, np.integer)) or extra_rank < 0:
        raise ValueError(f"extra_rank must be 'auto' or a whole number, not negative; got {extra_rank!r}")
    if extra_rank == 0 and not biases:
        raise ValueError("extra_rank=0 and biases=False leave nothing to fit: allow one of them")
    return min(int(extra_rank), *shape)


def _start(
    engine: Engine,
    F1: Features,
    F2: Features,
    free: int,
    biases: bool,
    robust: bool,
    sample: Sample,
    rng: np.random.Generator,
) -> tuple[Lines, Lines, Noise]:
    """``U = [effect, directions, 1]`` and ``V = [1, directions, mean + effect]``; of these only V is random.

    So the order of the rows does not matter.
    """
    check_scale(float(np.abs(sample.values).max()))
    mean = float(np.median(sample.values)) if biases else 0.0
    sizes = np.abs(sample.values - mean)
    spread = MEDIAN * float(np.median(sizes)) or float(sizes.mean()) or abs(mean) or 1.0
    effects = int(biases)
    (n1, n2), width = engine.shape, free + 2 * effects
    U, V = np.zeros((n1, width)), np.zeros((n2, width))
    V[:, effects : effects + free] = AT_FIRST[1] * np.sqrt(spread) * rng.standard_normal((n2, free))
    if biases:
        U[:, -1], V[:, 0], V[:, -1] = 1.0, 1.0, mean
    counts1, counts2 = (counts.astype(float) for counts in engine.counts)
    directions = np.arange(free + effects) >= effects
    rows = Lines(U, slice(0, free + effects), directions, F1, counts1, spread)
    cols = Lines(V, slice(effects, width), directions[::-1], F2, counts2, spread)
    least = max(rounding_floor(engine.dtype, abs(mean) + spread), LEAST_NOISE * spread) ** 2
    return rows, cols, Noise(counts1, n2, spread**2, least, robust)


def _product(rows: Lines, cols: Lines) -> LowRank:
    return LowRank(rows.mean, np.eye(rows.mean.shape[1]), cols.mean)


def _finished(rows: Lines, cols: Lines) -> tuple[LowRank, tuple[Expected, Expected]]:
    """L with orthonormal outer factors, and what features say of new rows of these."""
    (U, new_row), (V, new_col) = rows.completed(), cols.completed()
    (Q1, R1), (Q2, R2) = tall_qr(U), tall_qr(V)
    u, s, v = singular_triplets(R1 @ R2.T)
    r = int(np.count_nonzero(s > len(s) * np.finfo(float).eps * s[0]))
    u, s, v = u[:, :r], s[:r], v[:, :r]
    to_left, to_right = R2.T @ v / s, R1.T @ u / s  # U @ to_left = Q1 @ u, and so does a new row
    return LowRank(Q1 @ u, np.diag(s), Q2 @ v), (_turned(new_row, to_left), _turned(new_col, to_right))


def _turned(expected: Expected, to: Array) -> Expected:
    return Expected(expected.offset @ to, expected.coefficients @ to)


def _span(F: Features, constant: bool) -> Array | None:
    """Orthonormal columns for the constant, if wanted, then for what features add to it; None: for everything."""
    if not constant:
        return F.Q
    ones = np.full((F.n, 1), F.n**-0.5)
    if F.Q is None:
        return ones
    u, s, _ = np.linalg.svd(F.Q - F.Q.mean(axis=0), full_matrices=False)
    return np.hstack([ones, u[:, s > 1e-8]])


def _shares(L: LowRank, span1: Array | None, span2: Array | None, biases: bool) -> dict[str, float]:
    """The energies of orthogonal parts of L, whose outer factors are orthonormal, beside that of all of it."""
    left = L.left if span1 is None else span1.T @ L.left
    right = L.right if span2 is None else span2.T @ L.right
    explained, total = _energy(left @ L.core @ right.T), max(_energy(L.core), float(np.finfo(float).tiny))
    if not biases:
        return {} if span1 is None and span2 is None else {"features": explained / total, "free": 1 - explained / total}
    mean = _energy(left[:1] @ L.core @ right[:1].T)
    effects = _energy(L.core @ right[:1].T) - _energy(left @ L.core @ right[:1].T)
    effects += _energy(left[:1] @ L.core) - _energy(left[:1] @ L.core @ right.T)
    parts = {"overall mean": mean, "features": explained - mean, "biases": effects}
    if len(left) == len(right) == 1:
        del parts["features"]
    shares = {name: max(energy, 0.0) / total for name, energy in parts.items()}
    return shares | {"free": max(1 - sum(shares.values()), 0.0)}


def _energy(A: Array) -> float:
    return float((A * A).sum())


def _tolerance(engine: Engine, L: LowRank, uncertainty: float) -> float:
    """A step that is small beside the uncertainty of L, per entry, is none."""
    n1, n2 = engine.shape
    size = np.sqrt(_energy(L.core) / (n1 * n2))
    negligible = NEGLIGIBLE * np.sqrt(uncertainty / engine.n_observed) / size if size > 0 else 0.0
    return float(max(negligible, 10 * np.finfo(engine.dtype).eps))


def _choices(sigma: float, entries: int, alive: int, free: int) -> tuple[Choice, ...]:
    noise = Choice("noise", sigma, f"{MEDIAN} times the median size of the residuals at {entries} random entries")
    if not free:
        return (noise,)
    others = f"the other {free - alive} have no more room than is left to any" if alive < free else "all have room"
    return noise, Choice("free directions", alive, f"as many of {free} have learned from M to be wide; {others}")


def _inverse(A: Array, rounding: float) -> Array:
    """Inverses of positive definite matrices, whose directions may be of very different sizes, known to rounding."""
    size = 1 / np.sqrt(np.einsum("iaa->ia", A))
    scale = size[:, :, None] * size[:, None, :]
    inverse: Array = np.linalg.inv(A * scale + rounding * np.eye(A.shape[1])) * scale
    return inverse


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, below[-1] / 2)]])
