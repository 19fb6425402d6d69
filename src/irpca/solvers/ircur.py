"""Iterated robust CUR (Cai, Hamm, Huang, Li, Wang 2021): L from a sample of rows and columns of M."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from ..arguments import number
from ..lowrank import Array, LowRank, relative_distance
from ..problem import Problem
from ..result import State
from ..sample import check_scale
from .endings import saturation, threshold_floor

MIN_SINGULAR_VALUE = 1e-10  # of the crossing, relative to the largest: smaller ones count as zero
ADVICE = "Raise sampling, set decay closer to 1"
CLOSE = 1e-5  # the authors' tolerance: the residual on rows and columns, relative to M


def iterate(problem: Problem, *, sampling: float = 4.0, decay: float = 0.7, resample: bool = True) -> Iterator[State]:
    """IRCUR; features are not used.

    ``sampling · r · log n`` rows and columns are sampled, in every iteration or once: the larger M, the smaller the
    share of it that is read. S costs one read more, unless ``solve(..., sparse=False)`` asks
    for L alone. It needs the rank, and memory for the sampled rows and columns, which are most of a small matrix. An M
    with missing entries is refused. No guarantee is known, and it may converge to a wrong answer: 2 of 40 draws did at
    120 × 100.

    Parameters
    ----------
    sampling : float
    decay : float
        ζ starts at max|M|, as far as it is seen, and falls by this factor.
    resample : bool
        True is more robust, False faster, for matrices of a thousand rows and columns or more.
    """
    engine, rank, random_state = problem.engine, problem.needed_rank, problem.generator()
    number(sampling, "sampling", above=0)
    number(decay, "decay", above=0, below=1)
    n1, n2 = engine.shape
    _refuse_holes(n1 * n2 - engine.n_observed)
    sizes = [max(rank, sampling * rank * np.log(n)) for n in (n1, n2)]

    L = LowRank.zero(engine.shape)
    zeta = np.inf
    for t in count():
        if t == 0 or resample:
            at_rows, at_cols = (_lines(n, size, random_state) for n, size in zip((n1, n2), sizes, strict=True))
            rows = engine.block(at_rows, np.arange(n2)).astype(float)
            cols = engine.block(np.arange(n1), at_cols).astype(float)
            if np.isnan(rows).any() or np.isnan(cols).any():  # the engine knows of missing entries once it has read one
                _refuse_holes(n1 * n2 - engine.n_observed)
        if t == 0:
            zeta = float(max(np.abs(rows).max(), np.abs(cols).max()))
            check_scale(zeta)
        else:
            zeta = max(decay * zeta, threshold_floor(L, engine.dtype))
        U, V = L.thin()
        row_rest, col_rest = rows - U[at_rows] @ V.T, cols - U @ V[at_cols].T
        kept = [np.abs(rest) <= zeta for rest in (row_rest, col_rest)]
        left = [np.where(keep, rest, 0.0) for keep, rest in zip(kept, (row_rest, col_rest), strict=True)]
        # (M − S) on the sampled rows and columns is L + T there.
        R, C = U[at_rows] @ V.T + left[0], U @ V[at_cols].T + left[1]
        new = _from_cross(C, R, C[at_rows], rank)
        share = float(np.mean(np.concatenate([keep.ravel() for keep in kept])))
        residual = sum(map(np.linalg.norm, left)) / (np.linalg.norm(rows) + np.linalg.norm(cols) or 1.0)
        yield State(
            new,
            zeta,
            relative_distance(new, L),
            settled=bool(residual <= CLOSE),
            expected_corruption=1 - share,
            failure=saturation(1 - share, ADVICE),
        )
        L = new


def _refuse_holes(missing: int) -> None:
    if missing:
        raise ValueError(
            f"solver='ircur' needs complete rows and columns, but cells of M are missing ({missing} in all): fill "
            "them, or use a solver that accepts missing cells, such as 'irpca', 'pcp' or 'accaltproj'"
        )


def _lines(n: int, size: float, rng: np.random.Generator) -> Array:
    """Drawn with replacement, and each taken once: as the authors draw. All, where so many are asked for."""
    return np.arange(n) if size >= n * np.log(n) else np.unique(rng.integers(0, n, int(np.ceil(size))))


def _from_cross(C: Array, R: Array, crossing: Array, rank: int) -> LowRank:
    """``C @ crossing⁺ @ R`` with the pseudo-inverse cut to the rank."""
    u, s, vt = np.linalg.svd(crossing, full_matrices=False)
    k = min(rank, int((s > MIN_SINGULAR_VALUE * s[0]).sum()))
    if k == 0:
        return LowRank.zero((len(C), R.shape[1]))
    return LowRank.from_product(C @ (vt[:k].T / s[:k]), R.T @ u[:, :k])
