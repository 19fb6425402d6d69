"""What is solved: one matrix with a known answer per case and seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

import irpca
from irpca.lowrank import LowRank
from irpca.sample import rounding_floor
from lab.datasets import load_movielens_100k
from lab.optspace import optspace

COMPLETION = 20  # iterations of OptSpace


@dataclass(frozen=True)
class Case:
    """A point of a sweep; with a seed it is one matrix.

    ``features`` is ``"literal"`` or ``"conditioned"`` (see ``irpca.datasets.make_problem``), ``"movielens"``, or
    ``"stars"``, drawn ratings in the place of MovieLens. ``scale``, for the last two, is ``"printed"`` (L in stars, as
    section 5.2 reads) or ``"rescaled"`` (max|L| is the largest outlier).
    """

    n1: int
    n2: int
    d1: int
    d2: int
    rank: int
    corruption: float
    condition: float = 1.0
    features: str = "literal"
    scale: str = ""


def square(n: int, d: int, rank: int, corruption: float, condition: float = 1.0, features: str = "literal") -> Case:
    return Case(n, n, d, d, rank, corruption, condition, features)


@dataclass(frozen=True, eq=False)
class Instance:
    """M and its features, and what only the evaluator and oracles know.

    Attributes
    ----------
    W_norm : ``‖W‖₂``, which Algorithm 1 asks for as c_W
    mean_share, worst_share : of the corrupted entries, in M and in its fullest row or column
    floor : the size below which an entry of M − L is rounding
    """

    M: np.ndarray
    F1: np.ndarray
    F2: np.ndarray
    L: LowRank
    S: csr_array
    rank: int
    W_norm: float
    mean_share: float
    worst_share: float
    floor: float


@lru_cache(maxsize=1)  # all methods of a seed come one after the other
def make(case: Case, seed: int) -> Instance:
    if case.scale:
        return _rated(case, seed)
    sizes = (case.n1, case.n2, case.d1, case.d2, case.rank)
    problem = irpca.datasets.make_problem(
        *sizes, case.corruption, condition=case.condition, features=case.features, random_state=seed
    )
    u, s, vt = np.linalg.svd(problem.W)
    r = case.rank
    L = LowRank(problem.F1 @ u[:, :r], np.diag(s[:r]), problem.F2 @ vt[:r].T)
    return make_instance(problem.M, problem.F1, problem.F2, L, problem.S, float(np.abs(problem.L).max()), float(s[0]))


def make_instance(
    M: np.ndarray, F1: np.ndarray, F2: np.ndarray, L: LowRank, S: np.ndarray, largest: float, W_norm: float
) -> Instance:
    corrupted = S != 0
    worst = max(corrupted.mean(axis=0).max(), corrupted.mean(axis=1).max())
    shares = float(corrupted.mean()), float(worst)
    return Instance(M, F1, F2, L, csr_array(S), L.rank, W_norm, *shares, rounding_floor(M.dtype, largest))


def _rated(case: Case, seed: int) -> Instance:
    """Section 5.2: ratings completed by OptSpace, features from their singular vectors, outliers as in the text."""
    U, sigma, V = _completed(case.features, case.n1, case.n2, case.rank)
    rng = np.random.default_rng(seed)
    F1, F2 = _features(rng, U, case.d1), _features(rng, V, case.d2)
    unit = case.rank / np.sqrt(case.n1 * case.n2)
    L = (U * sigma) @ V.T
    if case.scale == "rescaled":
        factor = 10 * unit / np.abs(L).max()
        L, sigma = L * factor, sigma * factor
    S = np.where(rng.random(L.shape) < case.corruption, rng.uniform(5 * unit, 10 * unit, L.shape), 0.0)
    S *= rng.choice((-1, 1), L.shape)
    # F1 and F2 are orthonormal, so that L and W have the same singular values.
    return make_instance(L + S, F1, F2, LowRank(U, np.diag(sigma), V), S, float(np.abs(L).max()), float(sigma[0]))


def _features(rng: np.random.Generator, U: np.ndarray, d: int) -> np.ndarray:
    """U, completed to d orthonormal columns at random, then rotated at random."""
    n, r = U.shape
    Q = np.linalg.qr(np.hstack([U, rng.standard_normal((n, d - r))]))[0]
    rotation, R = np.linalg.qr(rng.standard_normal((d, d)))
    rotation *= np.sign(np.diag(R))  # uniform over all rotations and reflections; a reflection changes no span
    return Q @ rotation


@lru_cache(maxsize=2)
def _completed(source: str, n1: int, n2: int, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular triplets of the completed ratings, once per process."""
    ratings = load_movielens_100k().ratings if source == "movielens" else _stars(n1, n2, rank)
    if ratings.shape != (n1, n2):
        raise ValueError(f"the ratings of {source!r} are {ratings.shape}, this case says {(n1, n2)}")
    # Few iterations, as in the authors' demonstration: further on, films with a rating or two run off to ±100 stars.
    U, V = optspace(ratings, rank, max_iter=COMPLETION, random_state=0).L.thin()
    L = LowRank.from_product(U, V, rank)
    return L.left, L.singular_values, L.right


def _stars(n1: int, n2: int, rank: int) -> csr_array:
    """Half of a table of tastes, rounded to 1 … 5 stars."""
    rng = np.random.default_rng(0)
    taste = 3 + rng.standard_normal((n1, rank)) @ rng.standard_normal((rank, n2)) / np.sqrt(rank)
    return csr_array(np.where(rng.random((n1, n2)) < 0.5, np.clip(np.rint(taste), 1, 5), 0))
