"""Alternating projections on low-rank and on sparse matrices (Netrapalli et al. 2014)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from ..arguments import number
from ..lowrank import LowRank, relative_distance
from ..problem import Problem
from ..result import Choice, State
from .endings import nothing_left, saturation, threshold_floor
from .subspace import SPARE, Cleaned, first_look, leading


def iterate(problem: Problem, *, beta: float | None = None, decay: float = 0.5) -> Iterator[State]:
    """AltProj, in stages of growing rank; features are not used.

    ``ζ = β (σ_{k+1} + 2⁻ᵗ σ_k)``, with the singular values of M − S. A stage ends when the second term is no longer
    the larger one. Subspaces are warm-started: two reads of M per round of subspace iteration, usually one round per
    iteration. It needs the rank, and memory for factors alone. Guarantee: at most 1/(512 μ² r) of any row or column
    corrupted.

    Parameters
    ----------
    beta : float or None
        Threshold per unit of singular value. None: (n1 n2)^(-1/4) / 2, as in AccAltProj. It recovered from more
        corruption than the authors' own, (n1 n2)^(-1/4), and than twice that. Their theory has 4 μ² r / √(n1 n2).
    decay : float
        The ½ in 2⁻ᵗ: the closer to 1, the more corruption is tolerated, in more iterations.
    """
    engine, rank, random_state = problem.engine, problem.needed_rank, problem.generator()
    number(decay, "decay", above=0, below=1)
    n1, n2 = engine.shape
    scale = (n1 * n2) ** -0.25 / 2 if beta is None else number(beta, "beta", above=0)
    choices = (Choice("beta", scale, "(n1 n2)^(-1/4) / 2, since none was given"),) if beta is None else ()

    # S_0 = P_ζ(M), ζ_0 = β σ_1(M).
    L = LowRank.zero(engine.shape)
    sigma_1, V, _ = first_look(engine, rank + 1 + SPARE, random_state)
    zeta, s = scale * sigma_1, np.zeros(V.shape[1])
    for k in range(1, rank + 1):
        for t in count():
            M_S = Cleaned(engine, L, zeta)
            U, s, V = leading(M_S, V, min(k + 1, len(s)), guess=s)
            assert M_S.trim is not None
            new = LowRank(U[:, :k], np.diag(s[:k]), V[:, :k])  # L = P_k(M − S)
            next_value = s[k] if k < len(s) else 0.0
            falling = decay**t * s[k - 1]
            lowest = max(scale * next_value, threshold_floor(new, engine.dtype))
            zeta = max(scale * (next_value + falling), lowest)
            yield State(
                new,
                zeta,
                relative_distance(new, L),
                M_S.trim,
                settled=k == rank and (zeta <= 1.1 * lowest or nothing_left(new, M_S.trim)),
                failure=saturation(1 - M_S.trim.kept_share),
                choices=choices,
            )
            L = new
            if k < rank and falling <= next_value:
                break
