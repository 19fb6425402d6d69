"""Bayesian factors: the algorithm against its formulas, what shrinkage and robustness are good for, and invariances."""

from itertools import islice

import numpy as np
import pytest
from solvers.field import distance, gaussian, module

import irpca
from irpca.datasets import make_problem
from irpca.engines import ReferenceEngine, observed
from irpca.features import Features
from irpca.solvers import bayes

constants = module("bayes")


def with_holes(M, share=0.5, seed=0):
    """M with NaN in the place of all but a share of its entries."""
    return np.where(np.random.default_rng(seed).random(M.shape) < share, M, np.nan)


def ratings(n1=150, n2=120, rank=2, noise=1.0, share=0.4, seed=0, gross=0.0):
    """Effects of rows and of columns, few directions, and much noise: the truth, and what is seen of it."""
    rng = np.random.default_rng(seed)
    L = 3 + 0.5 * rng.standard_normal((n1, 1)) + 0.5 * rng.standard_normal(n2)
    L += rng.standard_normal((n1, rank)) @ rng.standard_normal((rank, n2)) / rank**0.5
    M = L + noise * rng.standard_normal((n1, n2))
    M += np.where(rng.random((n1, n2)) < gross, 8 * rng.choice([-1, 1], (n1, n2)), 0)
    return L, with_holes(M, share, seed)


def solve(M, F1=None, F2=None, **options):
    return irpca.solve(M, F1, F2, solver="bayes", **options)


def error(result, L):
    """Root mean square of what L is missed by, over all entries."""
    return float(np.sqrt(np.mean((result.L.dense() - L) ** 2)))


# The algorithm, typed once more: dense, line by line, each posterior from its formula and not from its last value.


def posteriors(Y, W, other, covariances, own, centre, variances):
    """Means and covariances of all lines that see ``Y`` through ``other``; their last coordinate but the own is 1."""
    K = other.shape[1]
    fixed = np.setdiff1d(np.arange(K), np.arange(K)[own])
    means, spreads = np.ones((len(Y), K)), np.zeros((len(Y), K, K))
    for i, (y, w) in enumerate(zip(Y, W, strict=True)):
        E = np.einsum("j,jab->ab", w, covariances + np.einsum("ja,jb->jab", other, other))
        C = np.linalg.inv(E[own, own] + np.diag(1 / variances))
        means[i, own] = C @ ((w * y) @ other[:, own] - E[own, fixed].sum(axis=1) + centre[i] / variances)
        spreads[i, own, own] = C
    return means, spreads


def learned(X, C, Q, variances, coefficient_variances, free, least):
    """The centre of a prior, its variances, and those of the coefficients of features."""
    n, d = Q.shape
    G = np.sqrt(n) * (Q - Q.mean(axis=0))
    centre, new, coefficients = np.empty_like(X), np.empty_like(variances), coefficient_variances.copy()
    for c, (x, variance) in enumerate(zip(X.T, variances, strict=True)):
        P = np.linalg.inv(G.T @ G / variance + np.eye(d) / coefficient_variances[c])
        a = P @ G.T @ (x - x.mean()) / variance
        centre[:, c] = x.mean() + G @ a
        if d:
            coefficients[c] = (a @ a + np.trace(P)) / d
        new[c] = np.mean((x - centre[:, c]) ** 2 + C[:, c, c]) + np.trace(G @ P @ G.T) / n
    return centre, np.where(free, np.maximum(new, least), new), coefficients


def transcription(M, Q1, Q2, k, V, spread, mean, sweeps, nu):
    """U and V of every sweep, from the first V on."""
    n1, n2 = M.shape
    seen, Y = ~np.isnan(M), np.nan_to_num(M)
    U = np.column_stack([np.zeros((n1, k + 1)), np.ones(n1)])
    CU, CV = np.zeros((n1, k + 2, k + 2)), np.zeros((n2, k + 2, k + 2))
    rows, cols = slice(0, k + 1), slice(1, k + 2)
    free1, free2 = np.arange(k + 1) > 0, np.arange(k + 1) < k
    v1, v2 = (np.where(free, 0.36 * spread, 0.25 * spread**2) for free in (free1, free2))
    a1, a2, c1, c2 = v1, v2, np.zeros((n1, k + 1)), np.where(free2, 0.0, mean) * np.ones((n2, 1))
    s2, counts = np.full((n1, 1), spread**2), seen.sum(axis=1)
    for sweep in range(sweeps):
        R = Y - U @ V.T
        W = seen * (nu + 1) / (nu + R**2 / s2)
        U, CU = posteriors(Y, W / s2, V, CV, rows, c1, v1)
        doubt = np.einsum("ia,jab,ib->ij", U, CV, U) + np.einsum("ja,iab,jb->ij", V, CU, V)
        energy = (W * (R**2 + doubt + np.einsum("iab,jab->ij", CU, CV))).sum(axis=1)
        common = np.sort(np.repeat(energy / counts, counts))[(counts.sum() - 1) // 2]
        s2 = np.maximum((energy + 10 * common) / (counts + 10), common)[:, None]
        W = seen * (nu + 1) / (nu + (Y - U @ V.T) ** 2 / s2) / s2
        V, CV = posteriors(Y.T, W.T, U, CU, cols, c2, v2)
        if sweep >= 3:
            least = np.sqrt(0.2 * common / k)
            c1, v1, a1 = learned(U[:, rows], CU[:, rows, rows], Q1, v1, a1, free1, least)
            c2, v2, a2 = learned(V[:, cols], CV[:, cols, cols], Q2, v2, a2, free2, least)
        yield U @ V.T


@pytest.mark.parametrize("features", [(False, False), (True, False), (True, True)])
def test_the_transcription(features):
    rng = np.random.default_rng(5)
    _, M = ratings(14, 11, share=0.7)
    F1, F2 = (
        Features.of(rng.standard_normal((n, d)), n) if given else Features.identity(n)
        for n, d, given in zip((14, 11), (3, 2), features, strict=True)
    )
    k, values = 2, M[~np.isnan(M)]
    mean = np.median(values)
    spread = 1.4826 * np.median(np.abs(values - mean))
    V = np.ones((11, k + 2))
    V[:, 1:-1] = 0.6 * np.sqrt(spread) * np.random.default_rng(0).standard_normal((11, k))
    V[:, -1] = mean
    Q1, Q2 = (np.zeros((F.n, 0)) if F.Q is None else F.Q for F in (F1, F2))
    literal = transcription(M, Q1, Q2, k, V, spread, mean, 8, constants.NU)
    states = bayes(observed(M), F1, F2, None, extra_rank=k, random_state=np.random.default_rng(0))
    for state, L in zip(islice(states, 8), literal, strict=True):
        assert distance(state.L.dense(), L) <= 1e-10


def test_gaussian_noise_is_the_limit(monkeypatch):
    """Student noise of very many degrees of freedom, and one variance for all rows."""
    _, M = ratings(40, 30)
    gauss = solve(M, robust=False, max_iter=10)
    monkeypatch.setattr(constants, "NU", 1e9)
    monkeypatch.setattr(constants, "PSEUDO", 1e12)
    monkeypatch.setattr(constants, "_weighted_median", lambda values, weights: np.average(values, weights=weights))
    assert distance(solve(M, max_iter=10).L.dense(), gauss.L.dense()) <= 1e-5


# What it is for


def test_recovers_where_there_is_little_noise():
    L, M = ratings(rank=3, noise=0.01)
    result = solve(M, max_iter=300)
    assert result.converged and error(result, L) <= 0.006
    assert 0.007 <= result.noise <= 0.011


def test_shrinkage_beats_least_squares_in_noise():
    L, M = ratings(noise=1.5, share=0.3)
    counts = (~np.isnan(M)).sum()
    effects = np.full(M.shape, np.nanmean(M))
    effects += np.nanmean(M - effects, axis=1, keepdims=True)
    effects += np.nanmean(M - effects, axis=0)
    rest = np.nan_to_num(M - effects) * M.size / counts
    u, s, vt = np.linalg.svd(rest)
    plain = effects + (u[:, :2] * s[:2]) @ vt[:2]
    result = solve(M)
    assert error(result, L) < 0.8 * min(np.sqrt(np.mean((A - L) ** 2)) for A in (effects, plain))


def test_gross_errors_do_little():
    L, clean = ratings(noise=0.5)
    _, M = ratings(noise=0.5, gross=0.1)
    robust, plain = (error(solve(M, robust=r), L) - error(solve(clean, robust=r), L) for r in (True, False))
    assert plain > 0.2
    assert robust < plain / 3


def test_a_row_of_nonsense_is_left_alone():
    """It costs the other rows next to nothing."""
    L, clean = ratings(noise=0.5)
    nonsense = np.random.default_rng(1).uniform(-30, 30, (5, 120))
    M = np.vstack([np.where(np.isnan(clean[:5]), np.nan, nonsense), clean[5:]])
    with_it, without = (np.sqrt(np.mean((solve(A).L.dense() - L)[5:] ** 2)) for A in (M, clean))
    assert with_it < 1.1 * without


def test_honest_noise_is_not_called_an_error():
    _, M = ratings(noise=1.0)
    result = solve(M)
    assert result.corruption < 0.02
    assert 0.6 < result.noise < 1.1
    assert result.S.nnz == pytest.approx(result.corruption * (~np.isnan(M)).sum())


# Features


def by_features(n1=200, n2=150, own=0.2, share=0.15, seed=0):
    """A problem most of which features explain; the rest is free."""
    rng = np.random.default_rng(seed)
    F1, F2 = rng.standard_normal((n1, 4)), rng.standard_normal((n2, 3))
    A, B = rng.standard_normal((4, 2)), rng.standard_normal((3, 2))
    U, V = F1 @ A + own * rng.standard_normal((n1, 2)), F2 @ B + own * rng.standard_normal((n2, 2))
    L = 3 + U @ V.T / 2
    return F1, F2, L, with_holes(L + rng.standard_normal(L.shape), share)


def test_features_of_each_side_help():
    F1, F2, L, M = by_features()
    none, rows, cols, both = (error(solve(M, *F), L) for F in ((None, None), (F1, None), (None, F2), (F1, F2)))
    assert max(rows, cols) < none
    assert both < min(rows, cols)


def test_lines_never_seen_are_what_their_features_say():
    F1, F2, L, M = by_features()
    M[:20], M[:, :15] = np.nan, np.nan
    result = solve(M, F1, F2)
    missed = result.L.dense() - L
    size = np.std(L)
    assert np.sqrt(np.mean(missed[:20, 15:] ** 2)) < 0.5 * size
    assert np.sqrt(np.mean(missed[20:, :15] ** 2)) < 0.5 * size
    assert np.sqrt(np.mean(missed[:20, :15] ** 2)) < 0.5 * size
    # New lines with the same features are the same.
    rows, cols = result.expected
    core, dense = result.L.core, result.L.dense()
    np.testing.assert_allclose(rows(F1[:20]) @ core @ result.L.right.T, dense[:20], atol=1e-10)
    np.testing.assert_allclose(result.L.left @ core @ cols(F2[:15]).T, dense[:, :15], atol=1e-10)
    np.testing.assert_allclose(rows(F1[:20]) @ core @ cols(F2[:15]).T, dense[:20, :15], atol=1e-10)


def test_without_features_a_new_line_is_the_average():
    _, M = ratings()
    M[3] = np.nan
    result = solve(M)
    rows, cols = result.expected
    assert rows(np.zeros((2, 0))).shape == (2, result.L.rank)
    expected = rows.offset @ result.L.core @ result.L.right.T
    np.testing.assert_allclose(expected, result.L.dense()[3], atol=1e-10)
    counts = (~np.isnan(M)).sum(axis=1)
    np.testing.assert_allclose(expected, counts @ result.L.dense() / counts.sum(), atol=1e-10)
    assert cols.coefficients.shape == (0, result.L.rank)


def test_units_and_mixtures_of_features_do_not_matter():
    F1, F2, _, M = by_features(60, 50)
    rng = np.random.default_rng(1)
    one, other = (solve(M, *F, max_iter=20) for F in ((F1, F2), (F1 @ rng.standard_normal((4, 4)), 1e3 * F2)))
    assert distance(other.L.dense(), one.L.dense()) <= 1e-6


def test_shares_are_of_all_of_L():
    F1, F2, _, M = by_features()
    both, none = solve(M, F1, F2), solve(M)
    assert set(both.shares) == {"overall mean", "features", "biases", "free"}
    assert set(none.shares) == {"overall mean", "biases", "free"}
    for result in both, none:
        assert sum(result.shares.values()) == pytest.approx(1, abs=1e-12)
        assert min(result.shares.values()) >= 0
        dense = result.L.dense()
        mean = dense.mean() ** 2 / np.mean(dense**2)
        assert result.shares["overall mean"] == pytest.approx(mean, rel=1e-10)
    effects = (dense.mean(axis=0).var() + dense.mean(axis=1).var()) / np.mean(dense**2)
    assert none.shares["biases"] == pytest.approx(effects, rel=1e-8)
    assert both.shares["features"] > 10 * both.shares["free"]


# Options


def test_effects_alone():
    rng = np.random.default_rng(0)
    L = 3 + rng.standard_normal((80, 1)) + rng.standard_normal(60)
    result = solve(with_holes(L + rng.standard_normal(L.shape), 0.3), extra_rank=0)
    assert result.rank == 2
    assert error(result, L) < 0.4
    assert result.shares["free"] < 1e-10
    assert [choice.name for choice in result.choices] == ["noise"]


def test_directions_alone():
    L, M = ratings(noise=0.3)
    result = solve(M, biases=False)
    assert result.rank <= 10
    assert error(result, L) < 0.25
    assert result.shares == {}
    F = np.random.default_rng(0).standard_normal((150, 3))
    assert set(solve(M, F, biases=False, max_iter=5).shares) == {"features", "free"}


def test_how_many_directions_are_alive():
    choices = {choice.name: choice for choice in solve(ratings(noise=1.0)[1]).choices}
    assert choices["free directions"].value == 2
    assert "of 10" in choices["free directions"].reason
    assert set(choices) == {"noise", "free directions"}


def test_few_lines_have_few_directions():
    assert solve(with_holes(np.random.default_rng(0).standard_normal((30, 3)), 0.9), max_iter=5).rank <= 3


@pytest.mark.parametrize("extra_rank", [-1, 1.5, True, "many"])
def test_what_is_no_number_of_directions(extra_rank):
    with pytest.raises(ValueError, match="extra_rank must be 'auto' or a whole number, not negative"):
        solve(ratings()[1], extra_rank=extra_rank)


def test_something_must_be_left_to_fit():
    with pytest.raises(ValueError, match="extra_rank=0 and biases=False leave nothing to fit"):
        solve(ratings()[1], extra_rank=0, biases=False)


def test_a_rank_is_not_used():
    assert any("takes no rank" in doubt for doubt in solve(ratings(30, 20)[1], rank=3, max_iter=3).doubts)


# Invariances


def test_rows_in_another_order():
    _, M = ratings(60, 50)
    order = np.random.default_rng(1).permutation(60)
    one, other = solve(M, max_iter=30), solve(M[order], max_iter=30)
    assert distance(other.L.dense(), one.L.dense()[order]) <= 1e-8


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_M(scale):
    _, M = ratings(60, 50)
    one, other = solve(M, max_iter=30), solve(scale * M, max_iter=30)
    assert distance(other.L.dense(), scale * one.L.dense()) <= 1e-8
    assert other.zeta == pytest.approx(scale * one.zeta, rel=1e-8)


def test_a_constant_more():
    _, M = ratings(60, 50)
    one, other = solve(M, max_iter=30), solve(M + 100, max_iter=30)
    assert distance(other.L.dense() - 100, one.L.dense()) <= 1e-8


def test_the_same_again_and_from_another_start():
    _, M = ratings()
    one, again, other = solve(M), solve(M), solve(M, random_state=1)
    np.testing.assert_array_equal(one.L.dense(), again.L.dense())
    assert distance(other.L.dense(), one.L.dense()) < 0.05


def test_single_precision():
    _, M = ratings(60, 50)
    single, double = solve(M.astype(np.float32), max_iter=30), solve(M, max_iter=30)
    assert single.S.dtype == np.float32
    assert distance(single.L.dense(), double.L.dense()) <= 1e-3
    exact = make_problem(80, 60, 4, 3, rank=2, corruption=0).M.astype(np.float32)
    assert distance(solve(with_holes(exact, 0.7).astype(np.float32)).L.dense(), exact) <= 1e-3


def test_engines_give_the_same_answer():
    _, M = ratings(40, 30)
    there = ~np.isnan(M)
    one, other = (solve(M, engine=engine, max_iter=10) for engine in ("auto", ReferenceEngine(M, there)))
    assert (one.engine, other.engine) == ("observed", "reference")
    assert distance(other.L.dense(), one.L.dense()) <= 1e-10
    assert one.reads == other.reads


# The cost, and the odd cases


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_exact_data_with_gross_errors(dtype, features, share, seed):
    """Not what it is for, but directions that die out must not spoil the arithmetic of the others."""
    problem = gaussian(120, 100, rank=2, corruption=0.05, even=True, seed=seed)
    M = with_holes(problem.M, share, seed=1).astype(dtype)
    result = solve(M, *((problem.F1, problem.F2) if features else ()), engine="observed")
    assert result.converged
    # No end before the noise has stopped falling.
    assert problem.relative_error(result.L) <= (1e-9 if features and dtype is np.float64 else 1e-6)
    assert (result.S.toarray() != 0)[problem.corrupted & ~np.isnan(M)].all()


def test_two_reads_a_sweep():
    result = solve(ratings()[1], max_iter=10)
    np.testing.assert_array_equal(np.diff(result.history.reads), 2)


def test_all_alike():
    M = with_holes(np.full((20, 15), 3.0))
    result = solve(M)
    np.testing.assert_allclose(result.L.dense(), 3, rtol=1e-6)
    with pytest.raises(ValueError, match="M is all zero"):
        solve(0 * M)


def test_most_entries_alike():
    _, M = ratings(60, 50, noise=0.5)
    M[np.isfinite(M) & (np.random.default_rng(1).random(M.shape) < 0.6)] = 3.0
    result = solve(M)
    assert result.L.rank > 0 and np.isfinite(result.L.dense()).all()
