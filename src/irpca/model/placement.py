"""Where new rows lie among those of a fit: their scores, and how uncertain these are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .. import constants
from ..engines.base import COMPONENTS, Lines, Prior
from ..engines.sparse_part import root_mean_square
from ..lowrank import Array
from ..regression import regress_rows
from ..result import Result
from ..sample import in_memory, rounding_floor
from .entry_scale import EntryScale
from .factors import Side, covariance_of, placed
from .noise import NoiseModel

UNUSUAL = 3.0  # times the usual size of entries: rows of an exact fit that are larger are brought to that size
SETTLING = 60  # passes over new rows, at most, and the relative step that ends them: the answer is then the same
SETTLED = 1e-12  # whatever other rows were placed along with a row


class Placed(NamedTuple):
    """Scores of new rows, m×r; the variances of their factors, m×K; and the scale of their noise, m.

    The latter is relative to that of a typical row.
    """

    scores: Array
    variances: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class Placement:
    """What it takes to place new rows: factors of the columns, the noise, and what is expected of a row.

    The same posterior as in the fit, in its own coordinates: ``factors @ turn`` are scores. Of an exact fit, and of
    solvers without such a model, one is made from L, the noise and the share of outliers.

    Attributes
    ----------
    columns : Side
        Factors of the columns, in their units.
    noise : NoiseModel
    unit : array of shape (n2,)
        Of each column of M.
    turn : array of shape (K, r)
    average : array of shape (K,)
        The factors that are expected of a row without features.
    own, whole : arrays of shape (K, K)
        Covariance of the factors of rows about what features say, and about the average.
    posterior : array of shape (K, K)
        Covariance of the factors of a typical row, given its entries.
    col_variances : array of shape (n2, K) or (n2, 0)
        Posterior variances of the factors of the columns, unless features determine these.
    new_rows, new_cols : arrays of shape (K, K)
        Covariance of the factors of rows, and of columns, of which only features are known.
    exact : float
        0, or the size, relative to the entries of a row, below which a residual of an exact fit is rounding.
    trims : bool
        Whether the fit left out entries that are far off; if not, scores are plain least squares.
    """

    columns: Side
    noise: NoiseModel
    unit: Array
    turn: Array
    average: Array
    own: Array
    whole: Array
    posterior: Array
    col_variances: Array
    new_rows: Array
    new_cols: Array
    exact: float = 0.0
    trims: bool = True

    @classmethod
    def of(cls, result: Result, scores: Array, V: Array, expected: tuple[Array | None, Array | None]) -> Placement:
        """From a result with ``L = scores @ V.T``, of which features ``expected`` these scores, and these V."""
        seen = result.counts[0] > 0  # of the others L is only what is expected
        if result.fit is None:
            average = scores[seen].mean(axis=0)
            own = scores - (average if expected[0] is None else expected[0])
            spread = covariance_of(own[seen]), covariance_of((scores - average)[seen])
            columns = covariance_of(V - (V.mean(axis=0) if expected[1] is None else expected[1]))
            return cls._plain(result, scores, V, average, *spread, columns)
        fit = result.fit
        unit = np.ones(len(V)) if fit.unit is None else fit.unit
        rows, average = fit.rows, fit.rows.expected[seen].mean(axis=0)
        own = np.zeros_like(rows.covariance) if rows.tied else rows.apart
        whole = own + covariance_of(rows.expected[seen] - average)
        turn = (fit.cols.mean * unit[:, None]).T @ V
        new = (rows.apart, fit.cols.apart)
        noise, variances = replace(fit.noise, units=None), fit.col_variances
        return cls(fit.cols, noise, unit, turn, average, own, whole, rows.covariance, variances, *new)

    @classmethod
    def _plain(
        cls, result: Result, scores: Array, V: Array, average: Array, own: Array, whole: Array, columns_own: Array
    ) -> Placement:
        """From L, with one noise for all entries."""
        (n2, r), n1 = V.shape, len(scores)
        ones, exact = np.ones(n2), 0.0
        typical = float(np.linalg.norm(scores)) / np.sqrt(n1 * n2)
        floor = max(constants.MIN_DETECTABLE_NOISE * typical, np.finfo(float).tiny)
        s = max(result.noise or result.residual, floor)
        if result.noise == 0:
            exact, s = max(result.zeta / max(longest(scores) * longest(V), floor), np.finfo(float).tiny), floor
        wrong = 0.0 if result.S is None else root_mean_square(result.S)
        gross = np.clip(np.nan_to_num(result.corruption, nan=constants.INITIAL_GROSS_SHARE), *constants.GROSS_LIMITS)
        broad = max(wrong, 3 * typical, constants.MAX_CLEAN_RESIDUAL * s)
        noise = NoiseModel(s, ones * np.finfo(float).tiny, np.ones(n1), ones, broad, float(gross))
        columns = Side(V, ones[:, None], False, np.zeros(r), np.zeros(r), ones > 0)
        posterior = s * s * np.eye(r)
        none = np.zeros((n2, 0))
        trims = np.isfinite(result.zeta) or result.history.corruption[-1] != 0
        scales = own, columns_own
        return cls(columns, noise, ones, np.eye(r), average, own, whole, posterior, none, *scales, exact, trims)

    @property
    def row_scale(self) -> float:
        """The scale s² of a typical row."""
        return max(self.noise.s, self.noise.lowest) ** 2

    @property
    def unexplained(self) -> float:
        """The energy of a row's scores that features leave unexplained."""
        return float(np.trace(self.turn.T @ self.own @ self.turn))

    def given(self, scores: Array) -> Placed:
        """Scores as they are, as uncertain as those of a typical row."""
        return Placed(scores, np.tile(np.diag(self.posterior), (len(scores), 1)), np.ones(len(scores)))

    @property
    def _back(self) -> Array:
        return np.linalg.pinv(self.turn)

    def scale(
        self, fitted: EntryScale | None, scores: Array, V: Array, new: tuple[bool, bool], vague: Array | None = None
    ) -> EntryScale:
        """The scales of rows and columns, those of the fit or, ``new``, known by their features alone.

        Parameters
        ----------
        fitted : EntryScale or None
            That of the fit.
        scores, V : arrays of shape (m, r) and (k, r)
            ``scores @ V.T`` is expected.
        vague : boolean array of shape (m,), or None
            New rows of which not even features are known: no more is known of them than of a row without features.
        """
        factors, columns = scores @ self._back, V @ self.turn.T
        usual = np.ones(len(self.unit)) if fitted is None else fitted.cols
        tail, middle = (1.0, 1.0) if fitted is None else (fitted.tail, fitted.middle)
        rows, cols = np.full(len(scores), self.row_scale), np.full(len(V), np.median(usual))
        if fitted is None or new[0]:
            which, owns = np.ones((len(scores), 1)), [self.new_rows if new[0] else self.posterior]
            if vague is not None:
                which, owns = np.column_stack([~vague, vague]).astype(float), [self.new_rows, self.whole]
            of_rows = which, np.hstack([_squares(columns, own) for own in owns])
        else:
            rows, K = fitted.rows, fitted.row_spread.shape[1] - self.col_variances.shape[1]
            of_rows = fitted.row_spread[:, :K], columns[:, :K] ** 2
        of_cols = self._of_columns(factors)
        if new[1]:
            of_cols = _squares(factors, self.new_cols), np.ones((len(V), 1))
        else:
            cols = usual
        row_spread, col_spread = (np.hstack(sides) for sides in zip(of_rows, of_cols, strict=True))
        widths = None if fitted is None or any(new) else fitted.widths  # they are of lines with entries
        slopes = None if fitted is None or new[1] else fitted.slopes
        return EntryScale(rows, cols, row_spread, col_spread, tail, middle, widths=widths, slopes=slopes)

    def scale_of_rows(self, fitted: EntryScale, placed: Placed) -> EntryScale:
        """The scales of new rows that were placed by their entries."""
        columns, of_cols = self.columns.mean * self.unit[:, None], self._of_columns(placed.scores @ self._back)
        row_spread, col_spread = np.hstack([placed.variances, of_cols[0]]), np.hstack([columns**2, of_cols[1]])
        rows = self.row_scale * placed.scale
        return replace(
            fitted, rows=rows, row_spread=row_spread, col_spread=col_spread, left=None, right=None, maps=None
        )

    def _of_columns(self, factors: Array) -> tuple[Array, Array]:
        """The part of the uncertainty that is due to the columns of the fit."""
        return factors[:, : self.col_variances.shape[1]] ** 2, self.col_variances * self.unit[:, None] ** 2

    def place(self, X: Array, prior: Array | None, kept: Array | None = None) -> Placed:
        """Scores of rows from their entries X across the columns ``kept``, and from ``prior``, if features say that."""
        m, rounding = len(X), rounding_floor(X.dtype, 1.0)
        if not self.turn.size:
            return Placed(np.zeros((m, self.turn.shape[1])), np.zeros((m, len(self.turn))), np.ones(m))
        kept = np.arange(len(self.unit)) if kept is None else kept
        if np.isnan(X).all():  # an engine needs an entry
            more = None if prior is None else np.vstack([prior, prior[:1]])
            found = self.place(np.vstack([X, np.zeros((1, X.shape[1]), X.dtype)]), more, kept)
            return Placed(*(part[:-1] for part in found))
        expected = np.tile(self.average, (m, 1)) if prior is None else prior @ self._back
        variance, R = np.linalg.eigh(self.whole if prior is None else self.own)
        variance = np.maximum(variance, 0.0)
        columns, rotated = self.columns.turned(R).some(kept), replace(self, posterior=R.T @ self.posterior @ R)
        noise = replace(self.noise, rows=np.ones(m), cols=self.noise.cols[kept], least=self.noise.least[kept])
        typical = float(np.sum(rotated.posterior * columns.second))
        X = np.asarray(X, float) / self.unit[kept]
        size = self._sizes(X)
        X, expected = X / size, expected / size
        lines = placed(X, expected @ R, variance, rotated.posterior, columns, noise, typical)
        lines, scale = rotated._settled(X, lines, columns, noise, variance, typical)
        factors, V = lines.mean @ R.T, self.columns.mean[kept]
        if self.exact:
            factors = self._trimmed(X, factors, V, max(self.exact, rounding))
        elif not self.trims:
            seen = np.isfinite(X)
            factors = np.where(seen.any(axis=1, keepdims=True), regress_rows(X, seen, V), factors)
        return Placed(factors * size @ self.turn, lines.variance @ (R * R).T, scale)

    def _sizes(self, X: Array) -> Array:
        """What to divide rows by, m×1. In an exact world a row may be of any size; priors fit those of usual size."""
        if not self.exact:
            return np.ones((len(X), 1))
        sizes = np.zeros(len(X))
        seen = ~np.isnan(X).all(axis=1)
        sizes[seen] = np.nanmedian(np.abs(X[seen]), axis=1)
        return np.maximum(sizes / (UNUSUAL * self.noise.s / constants.MIN_DETECTABLE_NOISE), 1.0)[:, None]

    def _settled(
        self, X: Array, lines: Lines, columns: Side, noise: NoiseModel, variance: Array, typical: float
    ) -> tuple[Lines, Array]:
        """The same with weights that have come to rest, and the scales of the rows' noise."""
        engine, V = in_memory(X), columns.mean
        prior = Prior(
            variance, np.ones(len(X)), columns.covariance, columns.spread, columns.second, mean=lines.expected
        )
        both = float(np.sum(self.posterior * columns.covariance))
        across = np.einsum("jk,jk->j", V @ self.posterior, V) + columns.spread * both
        for _ in range(SETTLING):
            before = lines.mean
            along = np.einsum("ik,ik->i", before @ columns.covariance, before)
            rows = np.column_stack([lines.spread / max(typical, np.finfo(float).tiny), along])
            weights = noise.for_engine(rows, np.column_stack([across, columns.spread]))
            lines = engine.solve_lines(0, before, V, weights, prior)
            noise = replace(noise, rows=self._scales(lines.sums.rows, noise.rows))
            if np.abs(lines.mean - before).max() <= SETTLED * np.abs(lines.mean).max():
                break
        return lines, noise.rows

    def _scales(self, sums: Array, scales: Array) -> Array:
        """The noise of rows from the sums of a read, shrunk to that of a typical one as rows of the fit are alike."""
        logs = np.log(self.noise.rows)
        apart = float(logs.var())
        energy, trust = sums[:, 0], sums[:, 1]
        if self.exact or apart < constants.EQUAL_NOISE_SPREAD**2:
            return scales
        own = np.log(np.maximum(scales * energy, np.finfo(float).tiny) / np.maximum(trust, 1.0))
        shrunk = own * apart / (apart + constants.LOG_VARIANCE_SAMPLING / np.maximum(trust, 1.0))
        found: Array = np.exp(np.where(trust > 1, np.clip(shrunk, logs.min(), logs.max()), 0.0))
        return found

    def _trimmed(self, X: Array, start: Array, V: Array, floor: float) -> Array:
        """Least squares on what is kept, as the threshold falls to rounding: factors of an exact fit.

        Rows that no such fit explains, because next to nothing of them is kept in the end, stay as they are.
        """
        typical = self.noise.s / constants.MIN_DETECTABLE_NOISE
        size = np.maximum(np.abs(start @ V.T).max(axis=1), typical)[:, None]
        X, mean = X / size, start / size
        zeta = constants.MAX_CLEAN_RESIDUAL * COMPONENTS[-1] * constants.MIN_DETECTABLE_NOISE
        for _ in range(constants.MAX_STEPS):
            zeta = max(zeta, floor)
            R = X - mean @ V.T
            kept = np.abs(R) <= zeta
            step = regress_rows(R, kept, V)
            mean = mean + step
            if zeta == floor and np.abs(step).max() <= constants.ROUNDING * np.abs(mean).max():
                break
            zeta /= constants.THRESHOLD_DECAY
        enough = kept.sum(axis=1) > V.shape[1]
        return np.where(enough[:, None], mean * size, start)


def _squares(factors: Array, covariance: Array) -> Array:
    """``f · C f`` of every line, n×1."""
    return np.einsum("ik,ik->i", factors @ covariance, factors)[:, None]


def longest(rows: Array) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))
