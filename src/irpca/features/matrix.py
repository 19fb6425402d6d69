"""Features of the rows, or of the columns, of M in orthonormal coordinates."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import numpy as np

from ..arrays import as_numpy
from ..cached import cached_property
from ..lowrank import Array, LowRank, squared_lengths, tall_qr
from ..wording import count, few

SAMPLED_ROWS_PER_FEATURE = 8
MIN_SAMPLED_ROWS = 256
MIN_COLUMN_SUPPORT = 0.05  # of the rows: random rows may miss a column that is non-zero in fewer
LENGTH_PROBES = 16  # random directions by which the lengths of rows are estimated
MAX_ROW_LENGTH = 8.0  # squared, times the mean: no Gaussian row is estimated so long by as many probes


class FeatureWarning(UserWarning):
    """Features were usable, but not as given."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features F of the n rows (or columns) of M, and coordinates for what they span.

    Solvers work in orthonormal coordinates, ``F = Q @ R``: the same L, the same rank, and no condition number. To find
    Q takes time in proportion to n; code that needs a few rows only uses ``basis``, which is close to Q. Collinear
    columns are dropped, so both may have fewer columns than F.

    Parameters
    ----------
    F : array of shape (n, d), or None
        None means identity features: nothing is known about this side. The n×n identity is never made.
    n : int
    d : int
        Number of independent columns: the highest rank of L on this side.
    to_basis : array of shape (d, d), or None
        ``basis = F @ to_basis``; None: the basis is Q.
    exact : (Q, R), or None
        None: to be found when they are asked for.
    """

    F: Array | None
    n: int
    d: int
    to_basis: Array | None = None
    exact: tuple[Array, Array] | None = None

    @classmethod
    def identity(cls, n: int) -> Features:
        return cls(None, n, n)

    @classmethod
    def of(cls, F: Array | None, n: int, name: str = "F1", side: str = "rows") -> Features:
        """Check features against the side of M that they describe, and find coordinates."""
        if F is None:
            return cls.identity(n)
        F = _checked(F, n, name, side)
        to_basis = _whitening(F)
        if to_basis is not None:
            return cls(F, n, F.shape[1], to_basis)
        _check_values(F, name, side)
        Q, R = np.linalg.qr(F)
        # Scaling columns makes the rank decision independent of the units of single features.
        unit = scale_columns(R)
        s = np.linalg.svd(unit, compute_uv=False)
        k = int((s > s[0] * rounding_of(F)).sum())
        if k < F.shape[1]:
            u = np.linalg.svd(unit)[0]
            warnings.warn(_redundancy(unit, k, rounding_of(F), name), FeatureWarning, stacklevel=level_outside())
            Q, R = Q @ u[:, :k], u[:, :k].T @ R
        return cls(F, n, k, exact=(Q, R))

    @property
    def given(self) -> bool:
        return self.F is not None

    @cached_property
    def _orthonormal(self) -> tuple[Array, Array] | tuple[None, None]:
        if self.F is None:
            return None, None
        return self.exact or tall_qr(self.F)

    @property
    def Q(self) -> Array | None:
        """Orthonormal columns with the span of F; None stands for the identity."""
        return self._orthonormal[0]

    @property
    def R(self) -> Array | None:
        return self._orthonormal[1]

    @cached_property
    def coherent(self) -> bool:
        """Whether a few rows have such high leverage that random rows may miss what they determine."""
        return self.exact is not None and (self.mu > 2 or _rarest(self.exact[0]) < MIN_COLUMN_SUPPORT)

    def restrict(self, index: Array | None = None) -> tuple[Array, Array]:
        """Orthonormal coordinates of the given rows alone: ``basis[index] = Q_block @ R_block``. None: of all rows."""
        assert self.F is not None
        if index is None:
            Q, R = self._orthonormal
            assert Q is not None and R is not None
            return Q, np.eye(self.d) if self.to_basis is None else R @ self.to_basis
        rows = self.exact[0][index] if self.exact else self.F[index] @ self.to_basis
        return tall_qr(rows)

    def spanned(self, A: Array) -> tuple[Array, Array]:
        """``basis @ A`` as a product of two matrices of which the first, tall one is at hand."""
        assert self.F is not None
        return (self.exact[0], A) if self.exact else (self.F, self.to_basis @ A)

    def coefficients(self, B: Array) -> Array:
        """A with ``F @ A = B`` for a B in the span of F; the shortest such A if there are several."""
        if self.F is None:
            return B
        if self.to_basis is None:
            assert self.Q is not None
            return self.solve(self.Q.T @ B)
        rows = _some_rows(self.F)
        assert rows is not None
        part = self.F[rows] @ self.to_basis  # orthogonal, as it was made
        return self.to_basis @ (part.T @ B[rows]) * (self.n / len(rows))

    def solve(self, C: Array) -> Array:
        """``R⁺ @ C``: from orthonormal coordinates back to the user's own (the shortest such W)."""
        if self.R is None:
            return C
        k, d = self.R.shape
        if k < d:
            return np.linalg.lstsq(self.R, C, rcond=0.0)[0]  # 0: what is redundant has been dropped already
        # Columns are scaled first, else features in very different units look dependent.
        scale = np.abs(self.R).max(axis=0)
        return (np.linalg.solve(self.R / scale, C).T / scale).T

    @cached_property
    def singular_values(self) -> Array:
        return np.ones(1) if self.R is None else np.linalg.svd(self.R, compute_uv=False)

    @property
    def sigma_max(self) -> float:
        return float(self.singular_values[0])

    @property
    def kappa(self) -> float:
        """Condition number σ_max / σ_min of the independent columns."""
        return float(self.singular_values[0] / self.singular_values[-1])

    @cached_property
    def leverage(self) -> Array:
        """Squared row lengths of Q. They sum to d; d/n each is perfectly incoherent."""
        return np.ones(self.n) if self.Q is None else np.einsum("ij,ij->i", self.Q, self.Q)

    @property
    def mu(self) -> float:
        """Incoherence constant of Assumption 2, ``max_i ‖e_iᵀ Q‖ √(n/d)``: 1 is best, √(n/d) worst."""
        return float(np.sqrt(self.leverage.max() * self.n / self.d))


def _checked(F: Array, n: int, name: str, side: str) -> Array:
    """F as a float64 array of shape (n, d), or an error that says what to do."""
    if hasattr(F, "tocsr"):
        raise ValueError(f"{name} is a sparse matrix; pass {name}.toarray()")
    if isinstance(F, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array; every one of the {side} needs all its features")
    F = as_numpy(F, name)
    if F.ndim != 2:
        hint = f"; did you mean {name}.reshape(-1, 1)?" if F.ndim == 1 else ""
        raise ValueError(f"{name} must have two dimensions, got shape {F.shape}{hint}")
    if F.dtype.kind == "c":
        raise ValueError(f"{name} is complex; pass real features, for example real and imaginary parts as columns")
    if F.dtype.kind not in "fiub":
        try:
            F = F.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"{name} has dtype {F.dtype} and does not convert to numbers; encode text as numbers first"
            ) from None
    F = F.astype(np.float64, copy=False)
    if F.shape[1] == 0:
        raise ValueError(f"{name} has no columns; pass None if nothing is known about the {side} of M")
    if len(F) != n:
        hint = f"; did you mean {name}.T?" if F.shape[1] == n else ""
        raise ValueError(f"{name} has {len(F)} rows but M has {n} {side}{hint}")
    if F.shape[1] > n:
        raise ValueError(
            f"{name} has {F.shape[1]} features for only {n} {side} of M: so many can explain any values; "
            f"pass fewer than {n} features, or None if nothing is known about the {side}"
        )
    return F


def _check_values(F: Array, name: str, side: str) -> None:
    if not np.isfinite(F).all():
        raise ValueError(f"{name} holds NaN or infinite values; every one of the {side} needs all its features")
    if not F.any():
        raise ValueError(f"{name} is all zero; pass None if nothing is known about the {side} of M")


def _rarest(Q: Array) -> float:
    """The least share of rows that a column of orthonormal Q lives on: 1/3 for Gaussian ones, p for an indicator."""
    squares = Q * Q
    return float(1 / (len(Q) * np.einsum("ij,ij->j", squares, squares).max()))


def _some_rows(F: Array) -> Array | None:
    """A sample of rows in place of all; None if that saves little."""
    n, d = F.shape
    m = max(SAMPLED_ROWS_PER_FEATURE * d, MIN_SAMPLED_ROWS)
    return _rng(F).integers(n, size=m) if n >= 4 * m else None


def _rng(F: Array) -> np.random.Generator:
    """Random numbers that follow from F: equal features are sampled alike, whatever the user's seeds."""
    n, d = F.shape
    some = np.ascontiguousarray(F[:: max(1, n // 16)][:16], np.float64)
    return np.random.default_rng(np.r_[np.array([n % 2**32, d], np.uint32), np.frombuffer(some.tobytes(), np.uint32)])


def _whitening(F: Array) -> Array | None:
    """A with F @ A close to orthonormal, computed from a sample of rows; None if that may not represent all.

    It does if it is well conditioned and no row of F @ A is far longer than the others. The lengths of all rows are
    estimated by a few random directions: one product, which also shows whether all of F is finite.
    """
    rows = _some_rows(F)
    if rows is None:
        return None
    n, d = F.shape
    part = F[rows]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scale = np.sqrt(np.mean(part**2, axis=0))
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    Q, R = np.linalg.qr(part / scale)
    s = np.linalg.svd(R, compute_uv=False)
    if s[-1] < 1e-3 * s[0] or np.einsum("ij,ij->i", Q, Q).max() > 4 * d / len(rows) or _rarest(Q) < MIN_COLUMN_SUPPORT:
        return None
    A = np.linalg.inv(R * scale) * np.sqrt(len(rows) / n)
    longest = squared_lengths(F, A @ _rng(F).standard_normal((d, LENGTH_PROBES))).max() / LENGTH_PROBES
    return A if longest * n / d <= MAX_ROW_LENGTH else None


def scale_columns(R: Array) -> Array:
    """R with every column scaled to length one; columns of zeros stay."""
    peak = np.abs(R).max(axis=0)  # first: the square of a large or small entry may leave the range of floats
    scaled = R / np.where(peak > 0, peak, 1.0)
    size = np.linalg.norm(scaled, axis=0)
    return scaled / np.where(size > 0, size, 1.0)


def rounding_of(F: Array) -> float:
    """The norm that rounding may leave of a unit column that is collinear with others."""
    return float(8 * max(F.shape) * np.finfo(float).eps)


def find_independent(columns: Array, smallest: float) -> list[int]:
    """Return which unit columns, from left to right, are more than ``smallest`` away from the span of those before."""
    basis, found = np.zeros((len(columns), 0)), list[int]()
    for j, column in enumerate(columns.T):
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)
        size = np.linalg.norm(rest)
        if size > smallest:
            basis = np.column_stack([basis, rest / size])
            found.append(j)
    return found


def _redundancy(unit: Array, k: int, rounding: float, name: str) -> str:
    """Return the message about collinear columns; any orthonormal coordinates will do."""
    d = unit.shape[1]
    independent = set(find_independent(unit, d * rounding)[:k])
    zero = [j for j in range(d) if not unit[:, j].any()]
    repeated = [j for j in range(d) if j not in independent and j not in zero]
    parts = [
        f"column{'s' * (len(columns) > 1)} {few(columns, 8)} {fault}"
        for columns, fault in ((zero, "all zero"), (repeated, "collinear with earlier columns"))
        if columns
    ]
    return (
        f"{name} has {count(d, 'column')} but only {k} independent ones ({'; '.join(parts)}). "
        "The fit uses the independent ones; of all coefficients (W) that give the same expected values, the smallest "
        "are reported. If columns were lost to rounding (high powers, for example), centre and scale the features or "
        "use orthogonal ones"
    )


def level_outside() -> int:
    """The stacklevel of the first caller outside this package: the line that a warning should point to."""
    frame, level = sys._getframe(1), 1
    inside = (__name__.partition(".")[0], "contextlib")  # solve() is decorated with a context
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    return level


def outside(L: LowRank, F1: Features, F2: Features) -> LowRank:
    """The part of L outside what the features of rows and columns span together."""
    U, V = L.thin()
    inner = [A if F.Q is None else F.Q @ (F.Q.T @ A) for A, F in ((U, F1), (V, F2))]
    return LowRank.from_product(np.hstack([U, -inner[0]]), np.hstack([V, inner[1]]))
