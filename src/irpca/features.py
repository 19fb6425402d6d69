"""Features of one side of M in orthonormal coordinates."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .lowrank import Array


class FeatureWarning(UserWarning):
    """Features were usable, but not as given."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features F of the n rows (or columns) of M, as ``F = Q @ R`` with orthonormal Q.

    Solvers work in the coordinates of Q: the same L, the same rank, and no condition number. Directions that
    repeat others are dropped, so Q may have fewer columns than F.

    Parameters
    ----------
    F : array of shape (n, d), or None
        None means identity features: nothing is known about this side. The n×n identity is never made.
    Q : array of shape (n, k), or None
    R : array of shape (k, d), or None
    n : int
    """

    F: Array | None
    Q: Array | None
    R: Array | None
    n: int

    @classmethod
    def identity(cls, n: int) -> Features:
        return cls(None, None, None, n)

    @classmethod
    def of(cls, F: Array | None, n: int, name: str = "F1", side: str = "rows") -> Features:
        """Check features against the side of M that they describe, and orthonormalise them."""
        if F is None:
            return cls.identity(n)
        F = _checked(F, n, name, side)
        Q, R = np.linalg.qr(F)
        # Scaling columns makes the rank decision independent of the units of single features.
        unit = _unit_columns(R)
        u, s, _ = np.linalg.svd(unit)
        k = int((s > s[0] * _rounding(F)).sum())
        if k < F.shape[1]:
            warnings.warn(_redundancy(unit, k, _rounding(F), name), FeatureWarning, stacklevel=_outside())
            Q, R = Q @ u[:, :k], u[:, :k].T @ R
        return cls(F, Q, R, n)

    @property
    def given(self) -> bool:
        return self.F is not None

    @property
    def d(self) -> int:
        """Number of directions left for L on this side."""
        return self.n if self.Q is None else self.Q.shape[1]

    def restrict(self, index: Array) -> tuple[Array, Array]:
        """Orthonormal coordinates of the given rows alone: ``Q[index] = Q_block @ R_block``."""
        assert self.Q is not None
        Q, R = np.linalg.qr(self.Q[index])
        return Q, R

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
        """Condition number σ_max / σ_min over the directions kept."""
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
    F = np.asarray(F)
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
    if len(F) != n:
        hint = f"; did you mean {name}.T?" if F.shape[1] == n else ""
        raise ValueError(f"{name} has {len(F)} rows but M has {n} {side}{hint}")
    if F.shape[1] == 0:
        raise ValueError(f"{name} has no columns; pass None if nothing is known about the {side} of M")
    if not np.isfinite(F).all():
        raise ValueError(f"{name} holds NaN or infinite values; every one of the {side} needs all its features")
    if F.shape[1] > n:
        raise ValueError(
            f"{name} has {F.shape[1]} features for only {n} {side} of M: they explain anything; "
            f"pass fewer than {n} features, or None if nothing is known about the {side}"
        )
    if not F.any():
        raise ValueError(f"{name} is all zero; pass None if nothing is known about the {side} of M")
    return F


def _unit_columns(R: Array) -> Array:
    """R with every column scaled to length one; columns of zeros stay."""
    peak = np.abs(R).max(axis=0)  # first: the square of a large or small entry may leave the range of floats
    scaled = R / np.where(peak > 0, peak, 1.0)
    size = np.linalg.norm(scaled, axis=0)
    return scaled / np.where(size > 0, size, 1.0)


def _rounding(F: Array) -> float:
    """What rounding may leave of a column of length one that repeats others."""
    return float(8 * max(F.shape) * np.finfo(float).eps)


def _redundancy(unit: Array, k: int, rounding: float, name: str) -> str:
    """Say which columns add nothing to those before them; any orthonormal coordinates will do."""
    d = unit.shape[1]
    basis = np.zeros((len(unit), 0))
    zero, repeated = [], []
    for j, column in enumerate(unit.T):
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)
        size = np.linalg.norm(rest)
        if not column.any():
            zero.append(j)
        elif basis.shape[1] == k or size <= d * rounding:
            repeated.append(j)
        else:
            basis = np.column_stack([basis, rest / size])
    parts = [
        f"column{'s' * (len(columns) > 1)} {_listed(columns)} {fault}"
        for columns, fault in ((zero, "all zero"), (repeated, "repeating what earlier columns say"))
        if columns
    ]
    return (
        f"{name} has {d} columns but only {k} independent ones ({'; '.join(parts)}). "
        "L is fitted with the independent ones, and the shortest coefficients W are reported. If directions were lost "
        "to rounding (high powers, say), centre and scale the features or use orthogonal ones"
    )


def _outside() -> int:
    """The stacklevel of the first caller outside this package: the line that a warning should point to."""
    frame, level = sys._getframe(1), 1
    inside = (__package__, "contextlib")  # solve() is decorated with a context
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    return level


def _listed(columns: list[int], most: int = 8) -> str:
    shown = ", ".join(map(str, columns[:most]))
    return shown if len(columns) <= most else f"{shown} and {len(columns) - most} more"
