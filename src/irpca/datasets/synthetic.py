"""The simulations of the paper (section 5.1), and harder ones beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from ..arguments import flag, generator, naming, number, whole


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A matrix together with the parts it was put together from.

    ``M = L + S + N`` holds bit for bit, in the dtype of the problem, and ``L = F1 @ W @ F2.T`` to rounding.

    Attributes
    ----------
    M : ndarray of shape (n1, n2)
        What a solver gets to see.
    F1, F2 : ndarray of shape (n1, d1) and (n2, d2)
        Features of the rows and of the columns.
    W : ndarray of shape (d1, d2)
        The latent matrix.
    L, S, N : ndarray of shape (n1, n2)
        Low-rank part, gross corruption, Gaussian noise.
    """

    M: np.ndarray
    F1: np.ndarray
    F2: np.ndarray
    W: np.ndarray
    L: np.ndarray
    S: np.ndarray
    N: np.ndarray

    @property
    def corrupted(self) -> np.ndarray:
        """Where S is not zero, as a boolean (n1, n2) array."""
        return self.S != 0

    def relative_error(self, L: Any) -> float:
        """Return ``‖L − L_true‖_F / ‖L_true‖_F``.

        Parameters
        ----------
        L : array_like of shape (n1, n2), or anything with a ``dense()`` that returns one
        """
        L = np.asarray(L.dense() if hasattr(L, "dense") else L)
        if L.shape != self.L.shape:
            raise ValueError(f"L has shape {L.shape}, this problem {self.L.shape}: pass the whole matrix.")
        return float(np.linalg.norm(L - self.L) / np.linalg.norm(self.L))

    def __repr__(self) -> str:
        (n1, n2), (d1, d2) = self.M.shape, self.W.shape
        return (
            f"Problem({n1} × {n2}, features {d1} and {d2}, rank {np.linalg.matrix_rank(self.W)}, "
            f"{self.corrupted.mean():.1%} corrupted, noise {self.N.std():.2g}, {self.M.dtype})"
        )


def make_problem(
    n1: int = 1000,
    n2: int = 1000,
    d1: int = 20,
    d2: int = 20,
    rank: int = 5,
    corruption: float = 0.05,
    noise: float = 0.0,
    condition: float = 1.0,
    *,
    features: Literal["literal", "conditioned"] = "literal",
    outliers: Literal["paper", "uniform"] = "paper",
    sign: Literal["both", "positive"] = "both",
    pattern: Literal["random", "block", "rows"] = "random",
    outlier_scale: float = 1.0,
    symmetric: bool = False,
    dtype: DTypeLike = np.float64,
    random_state: int | np.random.Generator | None = 0,
) -> Problem:
    """Draw a problem whose answer is known: ``M = F1 W F2ᵀ + S + N``.

    The defaults are the simulation of section 5.1 of the paper.

    Parameters
    ----------
    n1, n2 : int
        Rows and columns of M.
    d1, d2 : int
        Features per row and per column. When both sides agree in size they share one F, as in the paper.
    rank : int
        Rank of W: it is drawn uniform on (0, 1), then cut to its ``rank`` largest singular values.
    corruption : float in [0, 1]
        Share of the entries that are corrupted; the paper's z/n.
    noise : float
        Standard deviation of N, in the units of M.
    condition : float, at least 1
        The diagonal of Σ_F falls geometrically from 1 to ``1/condition``.
    features : {"literal", "conditioned"}
        ``"literal"`` is F as the paper writes it: U_F and V_F Gaussian, their rows scaled to length one.
        ``"conditioned"`` makes U_F and V_F orthonormal instead, so that κ(F) is ``condition`` exactly.
    outliers : {"paper", "uniform"}
        Magnitudes. ``"paper"``: uniform on (5r/n, 10r/n) with n = √(n1 n2). ``"uniform"``: uniform on
        (0, 3 max|L|), which leaves no gap to the clean values.
    sign : {"both", "positive"}
        Whether outliers go both ways, each with probability one half, or all up.
    pattern : {"random", "block", "rows"}
        Where outliers fall. ``"random"``: each entry independently. ``"block"``: every entry that lies in
        both of a random √corruption of the rows and of the columns. ``"rows"``: a random share of whole rows.
    outlier_scale : float
        Multiplies every outlier.
    symmetric : bool
        Make W, L, S and N symmetric, with F1 = F2: the setting of the paper's theorems.
    dtype : float64 or float32
        The draw is made in double precision either way, so both hold the same problem.
    random_state : int, Generator or None
        A Generator is used as it stands and moves on; None draws afresh.

    Returns
    -------
    Problem

    Notes
    -----
    With ``features="literal"``, κ(F) is *not* ``condition``: a square Gaussian U_F is badly conditioned
    whatever Σ_F is. At d = 20 and condition 1 half of all seeds have κ(F) above 60, one in ten above 350.
    Nor do the paper's outliers stick out of M: 10r/n is 0.05, and max|L| was 0.07 to 0.25 on thirty seeds.

    Parts are drawn in the order F, W, S, N. Problems of one seed and size therefore share their L whatever
    their corruption and noise, and a noisy problem differs from its noiseless twin by N alone.

    Examples
    --------
    >>> problem = make_problem(200, 100, d1=8, d2=5, rank=2, corruption=0.1, features="conditioned")
    >>> problem
    Problem(200 × 100, features 8 and 5, rank 2, 10.1% corrupted, noise 0, float64)
    >>> problem.relative_error(problem.L)
    0.0
    """
    symmetric = flag(symmetric, "symmetric")
    _check_sizes(n1, n2, d1, d2, rank, condition, symmetric, pattern)
    number(corruption, "corruption", least=0, most=1)
    number(noise, "noise", least=0)
    number(condition, "condition", least=1)
    number(outlier_scale, "outlier_scale", least=0)
    _check_choice("features", features, ("literal", "conditioned"))
    _check_choice("outliers", outliers, ("paper", "uniform"))
    _check_choice("sign", sign, ("both", "positive"))
    _check_choice("pattern", pattern, ("random", "block", "rows"))
    with naming("dtype"):
        dtype = np.dtype(dtype)
    _check_choice("dtype", dtype, (np.dtype(np.float64), np.dtype(np.float32)))

    rng = generator(random_state)
    shared = (n1, d1) == (n2, d2)
    F1 = _draw_features(rng, n1, d1, condition, features)
    F2 = F1.copy() if shared else _draw_features(rng, n2, d2, condition, features)
    W = rng.uniform(size=(d1, d2))
    U, sigma, Vt = np.linalg.svd(_mirror(W) if symmetric else W, full_matrices=False)
    W = (U[:, :rank] * sigma[:rank]) @ Vt[:rank]
    W = _mirror(W) if symmetric else W
    L = F1 @ W @ F2.T

    support = _draw_support(rng, n1, n2, corruption, pattern, symmetric)
    unit = rank / np.sqrt(n1 * n2)
    low, high = (5 * unit, 10 * unit) if outliers == "paper" else (0.0, 3 * np.abs(L).max())
    values = outlier_scale * rng.uniform(low, high, size=np.count_nonzero(support))
    if sign == "both":
        values *= rng.choice((-1, 1), size=values.size)
    S = np.zeros((n1, n2))
    S[support] = values
    N = noise * rng.standard_normal((n1, n2)) if noise else np.zeros((n1, n2))
    if symmetric:
        L, S, N = _mirror(L), _mirror(S), _mirror(N)

    F1, F2, W, L, S, N = (part.astype(dtype, copy=False) for part in (F1, F2, W, L, S, N))
    return Problem(M=L + S + N, F1=F1, F2=F2, W=W, L=L, S=S, N=N)


def _draw_features(rng: np.random.Generator, n: int, d: int, condition: float, kind: str) -> np.ndarray:
    """Return ``(U_F Σ_F V_F)ᵀ``, of shape (n, d)."""
    U, V = rng.standard_normal((d, d)), rng.standard_normal((d, n))
    if kind == "literal":
        U /= np.linalg.norm(U, axis=1, keepdims=True)
        V /= np.linalg.norm(V, axis=1, keepdims=True)
    else:
        U, V = np.linalg.qr(U)[0], np.linalg.qr(V.T)[0].T
    sigma = np.geomspace(1, 1 / condition, d)
    return ((U * sigma) @ V).T.copy()  # .copy(): row-major, as users' features are


def _draw_support(
    rng: np.random.Generator, n1: int, n2: int, corruption: float, pattern: str, symmetric: bool
) -> np.ndarray:
    if pattern == "random":
        return rng.random((n1, n2)) < corruption
    support = np.zeros((n1, n2), dtype=bool)
    if pattern == "rows":
        support[_choose(rng, n1, corruption)] = True
    else:
        rows = _choose(rng, n1, np.sqrt(corruption))
        cols = rows if symmetric else _choose(rng, n2, np.sqrt(corruption))
        support[np.ix_(rows, cols)] = True
    return support


def _choose(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    """Return a random ``share`` of 0 … n−1, at least one of them unless the share is zero."""
    return rng.choice(n, size=max(round(share * n), int(share > 0)), replace=False)


def _mirror(A: np.ndarray) -> np.ndarray:
    """Return the upper triangle of A reflected below its diagonal: symmetric to the last bit."""
    return np.triu(A) + np.triu(A, 1).T


def _check_sizes(
    n1: int, n2: int, d1: int, d2: int, rank: int, condition: float, symmetric: bool, pattern: str
) -> None:
    for name, size in {"n1": n1, "n2": n2, "d1": d1, "d2": d2, "rank": rank}.items():
        whole(size, name, least=1)
    for side, n, d in (1, n1, d1), (2, n2, d2):
        if d > n:
            raise ValueError(f"d{side}={d} exceeds n{side}={n}: lower d{side} or raise n{side}.")
        if d == 1 and condition > 1:
            raise ValueError(f"condition={condition} needs at least two features: raise d{side} above 1.")
    if rank > min(d1, d2):
        raise ValueError(f"rank={rank} exceeds min(d1, d2)={min(d1, d2)}: lower rank or add features.")
    if symmetric and (n1, d1) != (n2, d2):
        raise ValueError(f"symmetric=True needs n1 == n2 and d1 == d2, got {n1}, {n2} and {d1}, {d2}.")
    if symmetric and pattern == "rows":
        raise ValueError('pattern="rows" cannot be symmetric: use "random" or "block", or symmetric=False.')


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not isinstance(value, str | np.dtype) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}; got {str(value)!r}.")
