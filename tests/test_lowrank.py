import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irpca.lowrank import (
    Deferred,
    LowRank,
    relative_change,
    relative_distance,
    singular_triplets,
    squared_lengths,
    tall_qr,
)

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)
properties = settings(max_examples=20)


def orthonormal(rng, n, k):
    return np.linalg.qr(rng.standard_normal((n, k)))[0]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def L(rng):
    return LowRank(rng.standard_normal((6, 2)), rng.standard_normal((2, 3)), rng.standard_normal((5, 3)))


# Singular triplets.


@properties
@given(seeds, sizes, sizes)
def test_triplets_put_the_matrix_together(seed, n1, n2):
    C = np.random.default_rng(seed).standard_normal((n1, n2))
    u, s, v = singular_triplets(C)
    np.testing.assert_allclose((u * s) @ v.T, C, rtol=0, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(len(s)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(v.T @ v, np.eye(len(s)), rtol=0, atol=1e-12)
    assert (np.diff(s) <= 0).all()
    assert (v[np.abs(v).argmax(axis=0), np.arange(v.shape[1])] > 0).all()  # so that signs do not depend on chance


def test_leading_triplets(rng):
    C = rng.standard_normal((6, 4))
    for rank in (0, 3, 99):
        u, s, v = singular_triplets(C, rank)
        r = min(rank, 4)
        assert (u.shape, s.shape, v.shape) == ((6, r), (r,), (4, r))
        np.testing.assert_allclose(s, np.linalg.svd(C, compute_uv=False)[:r], rtol=1e-13, atol=0)
    u, s, v = singular_triplets(np.zeros((3, 2)))
    assert np.isfinite(u).all() and np.isfinite(v).all() and not s.any()


# How far a matrix moved.


def test_relative_change(rng):
    A = rng.standard_normal((3, 4))
    assert relative_change(A, A) == 0
    assert relative_change(A, 3 * A) == pytest.approx(2, rel=1e-14)
    assert relative_change(A, np.zeros((3, 4))) == pytest.approx(1, rel=1e-14)
    assert relative_change(np.zeros((3, 4)), np.zeros((3, 4))) == 0
    assert relative_change(np.zeros((3, 4)), A) == 1


@properties
@given(seeds, sizes, sizes, st.integers(0, 4), st.integers(1, 4))
def test_relative_distance_from_the_factors_alone(seed, n1, n2, old_rank, new_rank):
    rng = np.random.default_rng(seed)
    old, new = (
        LowRank(rng.standard_normal((n1, k)), rng.standard_normal((k, k)), rng.standard_normal((n2, k)))
        for k in (old_rank, new_rank)
    )
    distance = np.linalg.norm(new.dense() - old.dense()) / np.linalg.norm(new.dense())
    assert relative_distance(new, old) == pytest.approx(distance, rel=1e-9)
    assert relative_distance(new, new) == pytest.approx(0, abs=1e-12)
    nothing = LowRank.zero(new.shape)
    assert relative_distance(nothing, nothing) == 0 and relative_distance(nothing, new) == 1
    assert relative_distance(new, nothing) == pytest.approx(1, rel=1e-14)


# The matrix.


def test_transpose_and_thin_which_has_as_few_columns_as_the_core_allows(L):
    for A in (L, L.T):
        U, V = A.thin()
        assert U.shape[1] == V.shape[1] == 2
        np.testing.assert_allclose(U @ V.T, A.left @ A.core @ A.right.T, rtol=0, atol=1e-13)
    assert L.T.shape == (5, 6) and repr(L) == "LowRank(shape=(6, 5), rank=2)"
    np.testing.assert_allclose(L.T.dense(), L.dense().T, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(L.T.T.dense(), L.dense())


def test_zero():
    nothing = LowRank.zero((4, 3))
    assert (nothing.shape, nothing.rank) == ((4, 3), 0)
    assert nothing.singular_values.shape == (0,)
    np.testing.assert_array_equal(nothing.dense(), np.zeros((4, 3)))
    np.testing.assert_array_equal(nothing.rows([1]), np.zeros((1, 3)))
    np.testing.assert_array_equal(nothing.entries([0, 3], [2, 2]), [0, 0])
    assert nothing.T.shape == (3, 4)
    assert nothing.truncate(2).rank == 0


def test_single_precision_stays(L):
    L = LowRank(*(B.astype(np.float32) for B in (L.left, L.core, L.right)))
    for B in (L.dense(), L.rows([0]), L.entries([0], [0]), *L.thin(), L.truncate(1).dense()):
        assert B.dtype == np.float32


# Best approximations.


@properties
@given(seeds, sizes, sizes, st.integers(0, 9))
def test_from_core_is_the_best_approximation(seed, d1, d2, rank):
    rng = np.random.default_rng(seed)
    Q1, Q2, C = orthonormal(rng, 12, d1), orthonormal(rng, 10, d2), rng.standard_normal((d1, d2))
    L = LowRank.from_core(Q1, C, Q2, rank)
    s = np.linalg.svd(C, compute_uv=False)
    assert L.rank == min(rank, d1, d2)
    np.testing.assert_allclose(L.singular_values, s[:rank], rtol=0, atol=1e-12)
    missed = np.linalg.norm(Q1 @ C @ Q2.T - L.dense())  # Eckart and Young: nothing of this rank comes closer
    assert missed == pytest.approx(np.linalg.norm(s[rank:]), abs=1e-12)
    for Q in L.left, L.right:
        np.testing.assert_allclose(Q.T @ Q, np.eye(L.rank), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(L.core, np.diag(np.diag(L.core)))
    np.testing.assert_allclose(LowRank.from_core(Q1, C, Q2).truncate(rank).dense(), L.dense(), rtol=0, atol=1e-12)


def test_from_core_without_a_side_means_the_identity(rng):
    Q1, C = orthonormal(rng, 7, 3), rng.standard_normal((3, 5))
    np.testing.assert_allclose(LowRank.from_core(Q1, C, None).dense(), Q1 @ C, rtol=0, atol=1e-13)
    np.testing.assert_allclose(LowRank.from_core(None, C.T, Q1).dense(), C.T @ Q1.T, rtol=0, atol=1e-13)
    np.testing.assert_allclose(LowRank.from_core(None, C, None).dense(), C, rtol=0, atol=1e-13)


@properties
@given(seeds, sizes, sizes, st.integers(0, 12))
def test_from_product(seed, n1, n2, k):
    rng = np.random.default_rng(seed)
    U, V = rng.standard_normal((n1, k)), rng.standard_normal((n2, k))  # k may exceed both
    L = LowRank.from_product(U, V)
    assert L.rank == min(n1, n2, k)
    np.testing.assert_allclose(L.dense(), U @ V.T, rtol=0, atol=1e-12)
    for Q in L.left, L.right:
        np.testing.assert_allclose(Q.T @ Q, np.eye(L.rank), rtol=0, atol=1e-12)
    s = np.linalg.svd(U @ V.T, compute_uv=False)
    np.testing.assert_allclose(L.singular_values, s[: L.rank], rtol=0, atol=1e-12)
    short = LowRank.from_product(U, V, 1)
    assert np.linalg.norm(U @ V.T - short.dense()) == pytest.approx(np.linalg.norm(s[1:]), abs=1e-12)


@pytest.mark.parametrize(("shape", "condition"), [((3000, 6), 1.0), ((3000, 6), 1e8), ((20, 6), 1e15), ((6, 6), 1e3)])
def test_tall_qr(shape, condition):
    rng = np.random.default_rng(0)
    d = shape[1]
    B = np.linalg.qr(rng.standard_normal(shape))[0] * np.geomspace(1, 1 / condition, d) @ rng.standard_normal((d, d))
    B *= np.logspace(-60, 60, d)  # units do not matter
    Q, R = tall_qr(B)
    np.testing.assert_allclose(Q.T @ Q, np.eye(d), rtol=0, atol=1e-14 * d)
    np.testing.assert_allclose(np.tril(R, -1), 0, atol=0)
    size = np.abs(B).max(axis=0)
    np.testing.assert_allclose(Q @ R / size, B / size, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1e-161, 1e160])
def test_tall_qr_where_squares_leave_the_range_of_numbers(size):
    B = np.random.default_rng(0).standard_normal((3000, 4)) * [1, size, 1, 1]
    Q, R = tall_qr(B)
    np.testing.assert_allclose(Q.T @ Q, np.eye(4), rtol=0, atol=1e-14)
    np.testing.assert_allclose(Q @ R / [1, size, 1, 1], B / [1, size, 1, 1], rtol=0, atol=1e-13)


def test_tall_qr_of_what_only_looks_well_conditioned():
    """Kahan's matrix: no column is close to the span of those before it, and all of them together are."""
    d, c = 60, 0.3
    kahan = np.diag((1 - c * c) ** (np.arange(d) / 2)) @ (np.eye(d) - c * np.triu(np.ones((d, d)), 1))
    B = np.linalg.qr(np.random.default_rng(0).standard_normal((3000, d)))[0] @ kahan
    Q, R = tall_qr(B)
    np.testing.assert_allclose(Q.T @ Q, np.eye(d), rtol=0, atol=1e-13)
    np.testing.assert_allclose(Q @ R, B, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("shape", "rank"), [((3000, 20), 2), ((300, 500), None)])
def test_from_spans(rng, shape, rank):
    """The product of what each side spans, with orthonormal factors; what was given stays as it was."""
    sides = [(rng.standard_normal((n, 5)), rng.standard_normal((5, 3))) for n in shape]
    before, core = [B.copy() for B, _ in sides], rng.standard_normal((3, 3))
    L = LowRank.from_spans(sides[0], core, sides[1], rank)
    U, V = (B @ A for B, A in sides)
    full = U @ core @ V.T
    u, s, vt = np.linalg.svd(full, full_matrices=False)
    r = rank or 3
    np.testing.assert_allclose(L.dense(), (u[:, :r] * s[:r]) @ vt[:r], rtol=0, atol=1e-11 * np.abs(full).max())
    for Q in (L.left, L.right):
        np.testing.assert_allclose(Q.T @ Q, np.eye(r), rtol=0, atol=1e-13)
    for (B, _), old in zip(sides, before, strict=True):
        np.testing.assert_array_equal(B, old)


def test_squared_lengths(rng):
    for n in (3, 40_000):
        B, A = rng.standard_normal((n, 4)), rng.standard_normal((4, 3))
        np.testing.assert_allclose(squared_lengths(B, A), ((B @ A) ** 2).sum(axis=1), rtol=1e-12)
        np.testing.assert_allclose(squared_lengths(B), (B**2).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize(("shape", "core"), [((40, 3), (2, 2)), ((3, 40), (2, 2)), ((20, 20), (3, 2))])
def test_the_core_goes_to_the_shorter_side(rng, shape, core):
    L = LowRank(
        rng.standard_normal((shape[0], core[0])), rng.standard_normal(core), rng.standard_normal((shape[1], core[1]))
    )
    U, V = L.short()
    np.testing.assert_allclose(U @ V.T, L.dense(), rtol=0, atol=1e-13)
    if core[0] == core[1]:
        assert (U is L.left) == (shape[0] > shape[1])


def test_rows_and_entries_however_many(rng):
    L = LowRank(rng.standard_normal((90, 3)), rng.standard_normal((3, 2)), rng.standard_normal((70, 2)))
    np.testing.assert_allclose(L.rows([4, 0, 4]), L.dense()[[4, 0, 4]], rtol=0, atol=1e-13)
    np.testing.assert_allclose(L.rows(np.arange(90) > 3), L.dense()[4:], rtol=0, atol=1e-13)
    assert L.rows(2).shape == (70,) and L.rows(np.array([], int)).shape == (0, 70)
    grid = np.array([[4], [0], [89]]), np.array([[1, 2]])
    np.testing.assert_allclose(L.entries(*grid), L.dense()[grid], rtol=0, atol=1e-13)
    for entries in (1, 30, 5000):
        rows, cols = rng.integers(90, size=entries), rng.integers(70, size=entries)
        np.testing.assert_allclose(L.entries(rows, cols), L.dense()[rows, cols], rtol=0, atol=1e-13)


def test_a_deferred_matrix_is_made_once_and_only_if_asked_for(L):
    made = []
    later = Deferred(lambda: made.append(L) or L)
    assert not made
    assert later.shape == L.shape and later.left is L.left and later.core is L.core and later.right is L.right
    np.testing.assert_array_equal(later.dense(), L.dense())
    assert len(made) == 1
