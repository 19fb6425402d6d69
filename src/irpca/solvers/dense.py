"""M as a dense array of NumPy or torch, for methods that keep another array of its size.

Tall thin blocks come from host memory and go back there, in double precision; what is as large as M stays where M is.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array, to_device

from ..engines.base import Engine, Trim
from ..lowrank import Array, LowRank
from ..threads import available_cores, in_order

Answer = TypeVar("Answer")

SMALL = 1 << 17  # entries, below which another thread costs more than it brings
BLOCK = 1 << 16  # entries of a block of a NumPy array: what is made of one stays in cache
BLOCK_OF_TENSOR = 1 << 25  # of a tensor: what is made of one takes no more than 1 GB


class DenseMatrix:
    """M, and arrays of its size (``zeros``), gone through in blocks of rows: of NumPy on several threads.

    ``engine.reads`` counts each product with such an array, or both products at once, and each sort of one along rows
    or columns; what is done to every entry on the way there does not count.

    Attributes
    ----------
    M : array of shape (n1, n2), not to be written to
        Transposed if ``turned``, as a NumPy array in Fortran order is: its rows lie together in memory.
    missing : boolean array of the same shape, or None
        Where M is not observed; None: nowhere.
    """

    def __init__(self, engine: Engine) -> None:
        M = engine.whole()
        self.engine, self.xp, self.numpy = engine, array_namespace(M), is_numpy_array(M)
        self.turned = self.numpy and abs(M.strides[0]) < abs(M.strides[1])
        self.M = M.T if self.turned else M
        self.shape = self.M.shape
        self.missing = self.xp.isnan(self.M) if engine.n_observed < engine.shape[0] * engine.shape[1] else None

    def zeros(self) -> Any:
        return self.xp.zeros_like(self.M)

    def factors(self, L: LowRank) -> tuple[Any, Any]:
        """−U and Vᵀ of L = U Vᵀ, turned as M is, for :meth:`residual`."""
        U, V = L.T.short() if self.turned else L.short()
        return self.placed(-U), self.placed(np.ascontiguousarray(V.T))

    def residual(self, rows: slice, U: Any, Vt: Any) -> Any:
        """M − L in some rows, zero where M is not observed."""
        R = U[rows] @ Vt
        R += self.M[rows]
        return self.observed(rows, R)

    def observed(self, rows: slice, A: Any) -> Any:
        """A, of some rows, made zero where M is not observed."""
        if self.missing is not None:
            A[self.missing[rows]] = 0
        return A

    def products(self, A: Any, X: Array | None = None, Y: Array | None = None) -> tuple[Any, Any]:
        """``A @ X`` and ``A.T @ Y``, None for what is not asked; A is as large as M."""
        self.engine.reads += 1
        if self.turned:
            X, Y = Y, X
        right, left = (None if B is None else self.placed(B) for B in (X, Y))

        def work(rows: slice) -> tuple[Any, Any]:
            some = A[rows]
            return None if right is None else some @ right, None if left is None else some.T @ left[rows]

        AX, AtY = zip(*self.over_rows(work), strict=True)
        of_rows = None if right is None else self.host(self.xp.concat(AX))
        of_cols = None if left is None else self.host(sum(AtY[1:], start=AtY[0]))
        return (of_cols, of_rows) if self.turned else (of_rows, of_cols)

    def placed(self, B: Array) -> Any:
        """A thin block next to M, in its precision."""
        return self.xp.asarray(np.array(B, self.engine.dtype), device=device(self.M))

    def host(self, A: Any) -> Array:
        return np.asarray(to_device(A, "cpu")).astype(float, copy=False)

    def over_rows(self, work: Callable[[slice], Answer], axis: int = 0) -> list[Answer]:
        """``work`` on all stored rows, or columns, in as many runs as there are threads to do it."""
        n, size = self.shape[axis], self.shape[0] * self.shape[1]
        parts = min(n, available_cores()) if self.numpy and size >= SMALL else 1
        runs = [slice(first, last) for first, last in pairwise(n * k // parts for k in range(parts + 1))]
        return list(in_order(work, runs, parts, ahead=parts))

    def over_blocks(self, work: Callable[[slice], Answer], axis: int = 0) -> list[Answer]:
        """The same in blocks of few rows, or columns; the answers are in their order."""
        step = max(1, (BLOCK if self.numpy else BLOCK_OF_TENSOR) // self.shape[1 - axis])

        def walk(run: slice) -> list[Answer]:
            return [work(slice(k, min(k + step, run.stop))) for k in range(run.start, run.stop, step)]

        return list(chain.from_iterable(self.over_rows(walk, axis)))

    def trim(self, parts: list[tuple[int, float, float]]) -> Trim:
        """What :meth:`counted` said of each block, of all of them."""
        outside, energy, largest = zip(*parts, strict=True)
        return Trim(self.engine.n_observed - sum(outside), sum(outside), sum(energy), max(largest))

    def counted(self, outside: Any, T: Any) -> tuple[int, float, float]:
        """How many entries are outside, ``‖T‖²`` and ``‖T‖∞``."""
        xp = self.xp
        wide = xp.reshape(xp.astype(T, xp.float64, copy=False), (-1,))
        return int(xp.count_nonzero(outside)), float(wide @ wide), max(float(xp.max(T)), -float(xp.min(T)))


class Sum:
    """L + scale · A as an operator, A being as large as M; for ``leading`` of :mod:`.subspace`."""

    def __init__(self, M: DenseMatrix, L: LowRank, A: Any, scale: float = 1.0, trim: Trim | None = None) -> None:
        self.M, self.A, self.scale, self.trim = M, A, scale, trim
        self.U, self.V = L.thin()

    def times(self, X: Array) -> Array:
        product: Array = self.U @ (self.V.T @ X) + self.scale * self.M.products(self.A, X)[0]
        return product

    def t_times(self, X: Array) -> Array:
        product: Array = self.V @ (self.U.T @ X) + self.scale * self.M.products(self.A, Y=X)[1]
        return product
