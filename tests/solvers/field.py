"""What the tests of the field's methods share: problems whose answer is known, and exact starts."""

from __future__ import annotations

from itertools import islice

import numpy as np

from irpca import Status
from irpca.datasets import Problem, make_problem
from irpca.engines import choose
from irpca.features import Features
from irpca.problem import Problem as Asked
from irpca.solvers import subspace


def gaussian(n1, n2, rank=3, corruption=0.1, seed=0, *, even=False, d=8) -> Problem:
    """L of Gaussian factors, well conditioned; F1 and F2 are those factors and noise beside them, d columns in all.

    ``even`` puts as many gross errors into every row, and into every column, as a share can be known to a method.
    """
    rng = np.random.default_rng(seed)
    F1, F2 = rng.standard_normal((n1, d)), rng.standard_normal((n2, d))
    W = np.zeros((d, d))
    W[range(rank), range(rank)] = 1
    L = F1 @ W @ F2.T
    places = _even_places(n1, n2, corruption, rng) if even else rng.random((n1, n2)) < corruption
    S = np.where(places, rng.uniform(1, 10, (n1, n2)) * rng.choice([-1, 1], (n1, n2)), 0.0)
    return Problem(L + S, F1, F2, W, L, S, np.zeros((n1, n2)))


def _even_places(n1, n2, share, rng):
    """A band around the matrix, its rows and columns shuffled."""
    shift = np.arange(n1) * n2 // n1
    band = (np.arange(n2) - shift[:, None]) % n2 < round(share * n2)
    return band[rng.permutation(n1)][:, rng.permutation(n2)]


def conditioned(n1, n2, rank=3, corruption=0.1, seed=0, **more) -> Problem:
    """The paper's generator with orthonormal features: one singular value of L five times as large as the others."""
    return make_problem(
        n1, n2, 12, 10, rank=rank, corruption=corruption, features="conditioned", random_state=seed, **more
    )


def densest(problem) -> float:
    """The largest share of corrupted entries in any row or column."""
    return max(problem.corrupted.mean(axis=0).max(), problem.corrupted.mean(axis=1).max())


def recovers(problem, result, error=1e-8):
    """L to ``error``, S to the entry, the rank, and a run that says so."""
    assert result.status is Status.CONVERGED, result.summary()
    assert problem.relative_error(result.L) <= error
    assert result.rank == np.linalg.matrix_rank(problem.W)
    np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted)
    np.testing.assert_allclose(result.S.toarray(), problem.S, atol=10 * error * np.abs(problem.L).max())


def start_exactly(monkeypatch, *modules):
    """Give these modules singular triplets from an SVD in the place of a subspace iteration."""

    def exact(matrix, V, wanted, **_):
        U, s, Vt = np.linalg.svd(matrix.times(np.eye(len(V))), full_matrices=False)
        k = V.shape[1]
        return U[:, :k], s[:k], Vt[:k].T

    for place in [subspace, *modules]:
        monkeypatch.setattr(place, "leading", exact)


def distance(A, B):
    return np.linalg.norm(A - B) / np.linalg.norm(B)


def to_solve(M, F1=None, F2=None, rank=None, seed=0):
    """What a solver is given."""
    F1, F2 = (F if isinstance(F, Features) else Features.of(F, n) for F, n in zip((F1, F2), M.shape, strict=True))
    return Asked(choose(M), F1, F2, rank, np.random.SeedSequence(seed))


def first_iterates(solver, M, rank, count, **options):
    """What a solver without features yields first."""
    return list(islice(solver.iterate(to_solve(M, rank=rank), **options), count))


def same_steps(states, transcribed):
    """The iterates of a gradient method, and how many entries it set aside for each."""
    for state, (L, S) in zip(states, transcribed[1:], strict=True):
        assert distance(state.L.dense(), L) <= 1e-8
        assert state.trim.trimmed == np.count_nonzero(S)
