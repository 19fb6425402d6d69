"""Features that explain a part of L only: the free part is found, and none where there is none."""

import numpy as np
import pytest

import irpca
from irpca.datasets import make_problem
from irpca.engines import choose
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.result import Status
from irpca.solvers.beside import Parts, leading, sweep


def size(L):
    return np.sqrt(np.mean(L**2))


def outside(Q, shape, rng):
    """Orthonormal directions, orthogonal to Q."""
    B = rng.standard_normal(shape)
    return np.linalg.qr(B - Q @ (Q.T @ B))[0]


class Imperfect:
    """L with ``extra`` directions outside the span of features, of as much energy as what is inside."""

    def __init__(self, extra=2, corruption=0.2, noise=0.0, shape=(240, 200), seed=0, oblique=False):
        rng = np.random.default_rng(seed)
        n1, n2 = shape
        problem = make_problem(n1, n2, 8, 7, rank=3, corruption=0.0, features="conditioned", random_state=seed)
        self.F1, self.F2 = problem.F1, problem.F2
        Q1, Q2 = (
            np.zeros((n, 1)) if oblique else np.linalg.qr(F)[0] for n, F in zip(shape, (self.F1, self.F2), strict=True)
        )
        inside = problem.L / size(problem.L)
        self.L = inside
        if extra:
            free = outside(Q1, (n1, extra), rng) @ outside(Q2, (n2, extra), rng).T
            self.L = inside + free / size(free)
        self.corrupted = rng.random(shape) < corruption
        errors = rng.choice([-1, 1], shape) * rng.uniform(2, 15, shape)
        self.M = self.L + noise * rng.standard_normal(shape) + np.where(self.corrupted, errors, 0.0)

    def error(self, L):
        return float(np.linalg.norm(L.dense() - self.L) / np.linalg.norm(self.L))


def chosen(result):
    return {choice.name: choice.value for choice in result.choices}


@pytest.mark.parametrize("corruption", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("rank", [3, "auto"])
def test_the_free_part_is_found_exactly(corruption, rank):
    problem = Imperfect(corruption=corruption)
    result = irpca.solve(problem.M, problem.F1, problem.F2, rank=rank, extra_rank="auto")
    assert result.status is Status.CONVERGED
    assert problem.error(result.L) <= 1e-12
    assert chosen(result)["extra_rank"] == 2 and result.rank == 5
    assert ((result.S != 0).toarray() == problem.corrupted).all()
    assert result.shares["features"] == pytest.approx(0.5, abs=1e-9)
    assert sum(result.shares.values()) == pytest.approx(1, abs=1e-12)


def test_features_alone_would_be_wrong():
    """Or there would be nothing to find."""
    problem = Imperfect()
    result = irpca.solve(problem.M, problem.F1, problem.F2)
    assert problem.error(result.L) > 0.5
    assert any("extra_rank='auto' looks for that part" in doubt for doubt in result.doubts)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_perfect_features_lose_nothing(noise):
    problem = Imperfect(extra=0, noise=noise)
    alone = irpca.solve(problem.M, problem.F1, problem.F2)
    result = irpca.solve(problem.M, problem.F1, problem.F2, extra_rank="auto")
    assert chosen(result)["extra_rank"] == 0 and result.shares == {}
    assert problem.error(result.L) <= 1.01 * problem.error(alone.L) + 1e-14
    assert alone.doubts == () and result.rank == alone.rank


@pytest.mark.parametrize("corruption", [0.1, 0.4])
def test_noise_leaves_about_the_error_of_one_who_knows_the_support(corruption):
    problem = Imperfect(corruption=corruption, noise=0.1)
    result = irpca.solve(problem.M, problem.F1, problem.F2, extra_rank="auto")
    assert chosen(result)["extra_rank"] == 2 and chosen(result)["rank"] == 3
    M = np.where(problem.corrupted, np.nan, problem.M)
    Q1, Q2 = (np.linalg.qr(F)[0] for F in (problem.F1, problem.F2))
    parts = Parts.of(LowRank.from_product(problem.L, np.eye(200)), Q1, Q2)
    rest = LowRank.from_product(problem.L - Q1 @ (Q1.T @ problem.L), np.eye(200), 2)
    parts = Parts(Q1, parts.C, Q2, rest.left @ rest.core, rest.right)
    for _ in range(8):
        parts, _, _ = sweep(choose(M), parts, np.inf, 3)
    assert problem.error(result.L) <= 1.2 * problem.error(parts.L)


def test_directions_that_reach_into_the_span_are_found_too():
    problem = Imperfect(oblique=True)
    result = irpca.solve(problem.M, problem.F1, problem.F2, extra_rank="auto")
    assert result.status is Status.CONVERGED and result.rank == 5
    assert problem.error(result.L) <= 1e-12


def test_a_number_of_directions_may_be_asked_for():
    problem = Imperfect()
    result = irpca.solve(problem.M, problem.F1, problem.F2, rank=3, extra_rank=2)
    assert problem.error(result.L) <= 1e-12 and result.rank == 5
    assert "extra_rank" not in chosen(result)


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_features_of_one_side(side):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((200, 6))
    Q = np.linalg.qr(F)[0]
    inside = rng.standard_normal((240, 3)) @ (F @ rng.standard_normal((6, 3))).T
    free = rng.standard_normal((240, 2)) @ outside(Q, (200, 2), rng).T
    L = inside / inside.std() + free / free.std()
    M = np.where(rng.random(L.shape) < 0.2, L + 20, L)
    if side == "columns":
        result = irpca.solve(M, None, F, extra_rank="auto")
        found = result.L.dense()
    else:
        result = irpca.solve(M.T, F, None, extra_rank="auto")
        found = result.L.dense().T
    assert result.status is Status.CONVERGED and chosen(result)["extra_rank"] == 2
    assert np.linalg.norm(found - L) <= 1e-12 * np.linalg.norm(L)
    rows, columns = result.expected
    assert (rows is None) == (side == "columns") and (columns is None) == (side == "rows")


def test_holes_are_no_hindrance():
    problem = Imperfect(corruption=0.2, shape=(300, 250))
    M = np.where(np.random.default_rng(1).random(problem.M.shape) < 0.4, np.nan, problem.M)
    result = irpca.solve(M, problem.F1, problem.F2, extra_rank="auto")
    assert result.engine == "observed" and chosen(result)["extra_rank"] == 2
    assert problem.error(result.L) <= 1e-12


def test_new_rows_and_columns_get_what_features_say_of_L():
    """That is L projected on their span, whichever part it came from."""
    problem = Imperfect(oblique=True)
    result = irpca.solve(problem.M, problem.F1, problem.F2, extra_rank="auto")
    rows, columns = result.expected
    P1, P2 = (F @ np.linalg.pinv(F) for F in (problem.F1, problem.F2))
    said = rows(problem.F1) @ result.L.core @ columns(problem.F2).T
    np.testing.assert_allclose(said, P1 @ problem.L @ P2, atol=1e-10)
    np.testing.assert_allclose(problem.F1 @ result.W @ problem.F2.T, said, atol=1e-10)
    np.testing.assert_allclose(rows(problem.F1) @ result.L.core @ result.L.right.T, P1 @ problem.L, atol=1e-10)


def test_directions_of_noise_do_not_stand_out():
    rng = np.random.default_rng(0)
    for shape in ((100, 100), (400, 60)):
        M = rng.standard_normal(shape)
        assert leading(choose(M), LowRank.zero(shape), np.inf, 5)[0].shape == (shape[0], 0)
        assert leading(choose(M), LowRank.zero(shape), np.inf, 5, every=True)[0].shape == (shape[0], 5)
        M[:, 0] += 5 * np.arange(shape[0]) / shape[0]
        M += 0.5 * np.outer(rng.standard_normal(shape[0]), rng.standard_normal(shape[1]))
        U, V = leading(choose(M), LowRank.zero(shape), np.inf, 5)
        assert 1 <= U.shape[1] <= 2 and V.shape[1] == U.shape[1]


def test_noise_alone_gets_no_free_part():
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((150, 4)), rng.standard_normal((120, 4))
    M = F1 @ rng.standard_normal((4, 4)) @ F2.T + 3 * rng.standard_normal((150, 120))
    assert chosen(irpca.solve(M, F1, F2, extra_rank="auto"))["extra_rank"] == 0


def test_a_sweep_is_least_squares_on_what_is_kept():
    """At rest, the kept residual is orthogonal to all that C, U and V can still change."""
    problem = Imperfect(noise=0.1)
    engine = choose(problem.M)
    F1, F2 = Features.of(problem.F1, 240), Features.of(problem.F2, 200)
    parts = Parts.of(LowRank.from_product(problem.L, np.eye(200)), F1.Q, F2.Q)
    rest = LowRank.from_product(problem.L - parts.L.dense(), np.eye(200), 2)
    parts = Parts(F1.Q, parts.C, F2.Q, rest.left @ rest.core, rest.right)
    for _ in range(60):
        parts, _, _ = sweep(engine, parts, 1.0, None)
    T = problem.M - parts.L.dense()
    T[np.abs(T) > 1.0] = 0
    for gradient in (F1.Q.T @ T @ F2.Q, T @ np.linalg.qr(parts.V)[0], T.T @ np.linalg.qr(parts.U)[0]):
        assert np.abs(gradient).max() <= 1e-6


def test_a_row_without_observations_is_what_its_features_say():
    problem = Imperfect(oblique=True)
    M = problem.M.copy()
    M[[3, 50]], M[:, 7] = np.nan, np.nan
    result = irpca.solve(M, problem.F1, problem.F2, extra_rank="auto")
    rows, columns = result.expected
    L = result.L
    np.testing.assert_allclose(L.left[[3, 50]], rows(problem.F1[[3, 50]]), atol=1e-12)
    np.testing.assert_allclose(L.right[7], columns(problem.F2[7]), atol=1e-12)
    seen = np.ix_(np.setdiff1d(np.arange(240), [3, 50]), np.setdiff1d(np.arange(200), [7]))
    np.testing.assert_allclose(L.dense()[seen], problem.L[seen], atol=1e-10)
    assert sum("no observed entry" in doubt and "what the features say" in doubt for doubt in result.doubts) == 2


def test_few_entries_of_a_row_do_not_lead_it_astray():
    """Without a ridge, a row of as many entries as it has free directions would fit its noise."""
    problem = Imperfect(noise=0.5, corruption=0.05, shape=(300, 250))
    rng = np.random.default_rng(1)
    M = np.where(rng.random(problem.M.shape) < 0.5, np.nan, problem.M)
    few = np.arange(60)
    M[few] = np.where(rng.random((60, 250)) < 0.02, problem.M[few], np.nan)
    result = irpca.solve(M, problem.F1, problem.F2, rank=3, extra_rank=2)
    assert result.status is Status.CONVERGED
    error = result.L.dense()[few] - problem.L[few]
    alone = irpca.solve(M, problem.F1, problem.F2, rank=3).L.dense()[few] - problem.L[few]
    assert np.linalg.norm(error) < np.linalg.norm(alone)
