import sys
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import eye_array

from irpca import solve
from irpca.features import Features, FeatureWarning

seeds = st.integers(0, 2**32 - 1)
properties = settings(max_examples=30)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def F(rng):
    return rng.standard_normal((30, 4)) @ np.diag([1, 10, 0.1, 3])


def projector(A):
    return A @ np.linalg.pinv(A)


def warned(F, name="F1", side="rows"):
    """The features, and the one warning they gave."""
    with pytest.warns(FeatureWarning) as caught:
        features = Features.of(F, len(F), name, side)
    assert len(caught) == 1
    return features, str(caught[0].message)


# Orthonormal coordinates.


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32, object, "U8"])
def test_numbers_of_any_kind_become_float64(dtype):
    F = np.array([[1, 0], [1, 1], [0, 1], [1, 1]]).astype(dtype)
    features = Features.of(F, 4)
    assert features.F.dtype == features.Q.dtype == features.R.dtype == np.float64
    np.testing.assert_allclose(features.Q @ features.R, [[1, 0], [1, 1], [0, 1], [1, 1]], rtol=0, atol=1e-14)


# Many rows: a look at some of them is enough, and Q is found when it is asked for.


def many_rows(rng, n=5000, d=6):
    return rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) * np.logspace(-4, 4, d)


def test_a_look_at_some_rows_gives_coordinates_close_to_orthonormal(rng):
    F = many_rows(rng)
    features = Features.of(F, 5000)
    basis = F @ features.to_basis
    assert features.d == 6
    s = np.linalg.svd(basis, compute_uv=False)
    assert 0.8 < s[-1] <= s[0] < 1.25
    assert "_orthonormal" not in vars(features)
    index = rng.integers(5000, size=40)
    Q, R = features.restrict(index)
    np.testing.assert_allclose(Q @ R, basis[index], rtol=0, atol=1e-14)
    np.testing.assert_allclose(Q.T @ Q, np.eye(6), rtol=0, atol=1e-13)
    A = rng.standard_normal((6, 2))
    tall, small = features.spanned(A)
    assert tall is F
    np.testing.assert_allclose(tall @ small, basis @ A, rtol=0, atol=1e-13)
    assert "_orthonormal" not in vars(features)


def test_the_same_answers_as_from_all_rows(rng):
    F = many_rows(rng)
    features = Features.of(F, 5000)
    Q, R = np.linalg.qr(F)
    all_rows = Features(F, 5000, 6, exact=(Q, R))
    assert features.exact is None
    np.testing.assert_allclose(features.Q.T @ features.Q, np.eye(6), rtol=0, atol=1e-14)
    np.testing.assert_allclose(features.Q @ features.R / R.std(axis=0), F / R.std(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(features.leverage, all_rows.leverage, rtol=1e-10)
    for name in "mu", "kappa", "sigma_max":
        assert getattr(features, name) == pytest.approx(getattr(all_rows, name), rel=1e-9)
    A = rng.standard_normal((6, 2)) / np.logspace(-4, 4, 6)[:, None]
    for found in features.coefficients(F @ A), all_rows.coefficients(F @ A):
        np.testing.assert_allclose(found / A, 1, rtol=1e-9)
    index = np.arange(5, 300)
    assert not features.coherent
    for several in features, all_rows:
        np.testing.assert_allclose(projector(several.restrict(index)[0]), projector(F[index]), rtol=0, atol=1e-9)


WHY = ["one row stands out", "one row breaks a tie", "a rare feature", "a group", "a repeated feature", "collinear"]


@pytest.mark.parametrize("why", [*WHY, "few rows"])
def test_all_rows_are_looked_at_where_some_may_not_speak_for_them(rng, why):
    F = rng.standard_normal((5000, 4))
    here = np.arange(5000) == 77
    F[:, 1] = {
        "one row stands out": np.where(here, 30, F[:, 1]),
        "one row breaks a tie": F[:, 0] + 5e-3 * F[:, 1] + 5 * here,
        "a rare feature": here,
        "a group": rng.random(5000) < 0.03,
        "a repeated feature": F[:, 0],
        "collinear": F[:, 0] + 1e-6 * F[:, 1],
    }.get(why, F[:, 1])
    F = F[:1000] if why == "few rows" else F
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureWarning)
        features = Features.of(F, len(F))
    assert features.to_basis is None and features.exact is not None
    assert features.d == (3 if why == "a repeated feature" else 4)
    if why in ("one row stands out", "one row breaks a tie", "a rare feature", "a group"):
        assert features.coherent


# Constants of the paper.


@properties
@given(seeds, st.integers(1, 5), st.integers(5, 12))
def test_kappa_mu_and_leverage(seed, d, n):
    F = np.random.default_rng(seed).standard_normal((n, d))
    features = Features.of(F, n)
    U, s, _ = np.linalg.svd(F, full_matrices=False)
    assert features.sigma_max == pytest.approx(s[0], rel=1e-10)
    assert features.kappa == pytest.approx(s[0] / s[-1], rel=1e-6)
    np.testing.assert_allclose(features.singular_values, s, rtol=0, atol=1e-10 * s[0])
    np.testing.assert_allclose(features.leverage, (U**2).sum(axis=1), rtol=0, atol=1e-8)
    assert features.leverage.sum() == pytest.approx(d, rel=1e-12)
    mu = max(np.linalg.norm(row) for row in U) * np.sqrt(n / d)
    assert features.mu == pytest.approx(mu, rel=1e-8)
    assert 1 - 1e-12 <= features.mu <= np.sqrt(n / d) + 1e-12


# What does not matter: the units of the features, and which combinations of them are given.


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_features_whose_squares_leave_the_range_of_floats(F, scale):
    features = Features.of(F * scale, 30)
    assert features.d == 4
    np.testing.assert_allclose(features.Q @ features.Q.T, projector(F), rtol=0, atol=1e-12)
    assert features.kappa == pytest.approx(Features.of(F, 30).kappa, rel=1e-9)


@properties
@given(seeds, st.lists(st.sampled_from([-8, -3, 0, 3, 8]), min_size=4, max_size=4))
def test_units_and_combinations_of_features_do_not_matter(seed, powers):
    rng = np.random.default_rng(seed)
    F, mix = rng.standard_normal((20, 4)), np.linalg.qr(rng.standard_normal((4, 4)))[0]
    mix = mix @ np.diag([1, 1e2, 1e-2, 3]) @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    plain = Features.of(F, 20)
    for other in (Features.of(F * 10.0 ** np.array(powers), 20), Features.of(F @ mix, 20)):
        assert other.d == 4
        np.testing.assert_allclose(other.Q @ other.Q.T, plain.Q @ plain.Q.T, rtol=0, atol=1e-9)
        np.testing.assert_allclose(other.leverage, plain.leverage, rtol=0, atol=1e-9)


# Back to the user's own coordinates.


def test_solve_does_not_take_small_units_for_redundant(rng):
    """Least squares with a cut-off relative to the largest singular value would lose the small feature."""
    F = rng.standard_normal((30, 2)) * [1e12, 1e-12]
    features = Features.of(F, 30)
    W = rng.standard_normal((2, 3)) / [[1e12], [1e-12]]
    np.testing.assert_allclose(features.solve(features.Q.T @ (F @ W)), W, rtol=1e-9, atol=0)


def test_solve_gives_the_shortest_coefficients_for_redundant_features(rng):
    a, b = rng.standard_normal((2, 30))
    F = np.stack([a, b, a], axis=1)
    features, _ = warned(F)
    L = np.outer(a, [2.0]) + np.outer(b, [5.0])
    W = features.solve(features.Q.T @ L)
    np.testing.assert_allclose(W, [[1], [5], [1]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(W, np.linalg.pinv(F) @ L, rtol=0, atol=1e-12)


def test_restrict(F):
    features = Features.of(F, 30)
    for index in (np.array([3, 17, 4, 29, 8, 0]), np.array([5, 6])):  # the second has fewer rows than features
        Q, R = features.restrict(index)
        np.testing.assert_allclose(Q @ R, features.Q[index], rtol=0, atol=1e-14)
        np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), rtol=0, atol=1e-14)


# Nothing known.


def test_identity_is_never_made():
    n = 20_000
    C = np.ones((n, 1))
    tracemalloc.start()
    features = Features.of(None, n)
    assert (features.given, features.Q, features.R, features.n, features.d) == (False, None, None, n, n)
    assert (features.kappa, features.mu, features.sigma_max) == (1, 1, 1) and features.solve(C) is C
    np.testing.assert_array_equal(features.leverage, np.ones(n))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 * n


# Redundant features are reduced, with a warning that names them.


def test_collinear(rng):
    F = rng.standard_normal((30, 5))
    F[:, 2] = F[:, 0] - 3 * F[:, 1]
    features, message = warned(F)
    assert features.d == 4
    np.testing.assert_allclose(features.Q.T @ features.Q, np.eye(4), rtol=0, atol=1e-13)
    np.testing.assert_allclose(features.Q @ features.R, F, rtol=0, atol=1e-13)
    np.testing.assert_allclose(features.Q @ features.Q.T, projector(F[:, [0, 1, 3, 4]]), rtol=0, atol=1e-12)
    assert features.leverage.sum() == pytest.approx(4, rel=1e-12)
    s = np.linalg.svd(F, compute_uv=False)
    assert features.kappa == pytest.approx(s[0] / s[3], rel=1e-9)
    assert message == (
        "F1 has 5 columns but only 4 independent ones (column 2 collinear with earlier columns). "
        "The fit uses the independent ones; of all coefficients (W) that give the same expected values, the smallest "
        "are reported. If columns were lost to rounding (high powers, for example), centre and scale the features or "
        "use orthogonal ones"
    )


THREE, ONES = np.eye(3)[np.arange(30) % 3], np.ones((30, 1))
REDUNDANT = {  # which, how many are left, and what is said of them
    "zero": (np.eye(30)[:, :4] * [0, 1, 1, 0], 2, "(columns 0, 3 all zero)."),
    "constants": (
        np.hstack([ONES, THREE[:, :1], 7 * ONES, 0 * ONES]),
        2,
        "(column 3 all zero; column 2 collinear with",
    ),
    "groups": (np.hstack([ONES, THREE, THREE[::-1, :1]]), 3, "(columns 3, 4 collinear with earlier columns)"),
    "small units": (np.hstack([THREE[:, :2], 1e-8 * THREE[:, :1] + 1e-8 * THREE[:, 1:2]]), 2, "(column 2 collinear"),
    "many": (np.ones((30, 12)), 1, "(columns 1, 2, 3, 4, 5, 6, 7, 8 and 3 more collinear with earlier columns)"),
}


@pytest.mark.parametrize("F, d, words", REDUNDANT.values(), ids=REDUNDANT)
def test_redundant_columns_are_named(F, d, words):
    features, message = warned(F, "F2", "columns")
    assert features.d == d and words in message
    assert message.startswith(f"F2 has {F.shape[1]} columns but only {d} independent one")
    np.testing.assert_allclose(features.Q @ features.R, F, rtol=0, atol=1e-13)


def test_nearly_collinear_is_not_collinear(rng):
    F = rng.standard_normal((30, 3))
    F[:, 2] = F[:, 0] + 1e-7 * F[:, 2]
    features = Features.of(F, 30)  # without a warning
    assert features.d == 3
    assert features.kappa > 1e6


def test_the_warning_points_to_the_callers_line(rng):
    F = np.ones((30, 2))
    with pytest.warns(FeatureWarning) as caught:
        line = sys._getframe().f_lineno + 1
        Features.of(F, 30)
        solve(rng.standard_normal((30, 30)), F, np.ones((30, 1)), rank=1, solver="irpca_iht")
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line), (__file__, line + 1)]


# What is refused, and how.

NOT_FEATURES = {
    "sparse": (eye_array(6).tocsr(), r"F1 is a sparse matrix; pass F1.toarray\(\)"),
    "one dimension": (np.ones(6), r"F1 must have two dimensions, got shape \(6,\); did you mean F1.reshape\(-1, 1\)"),
    "complex": (np.ones((6, 1), complex), "F1 is complex; pass real features, for example real and imaginary parts"),
    "text": (np.array([["a"]] * 6), "F1 has dtype <U1 and does not convert to numbers; encode text as numbers"),
    "transposed": (np.ones((2, 6)), r"F1 has 2 rows but M has 6 rows; did you mean F1.T\?$"),
    "too long": (np.ones((7, 2)), "F1 has 7 rows but M has 6 rows$"),
    "no columns": (np.ones((6, 0)), "F1 has no columns; pass None if nothing is known about the rows of M$"),
    "NaN": (np.full((6, 1), np.nan), "F1 holds NaN or infinite values; every one of the rows needs all its"),
    "infinite": (np.full((6, 1), np.inf), "F1 holds NaN or infinite values"),
    "too many": (np.eye(7)[:6], "F1 has 7 features for only 6 rows of M: .*; pass fewer than 6 features, or None"),
    "all zero": (np.zeros((6, 2)), "F1 is all zero; pass None if nothing is known about the rows of M$"),
    "masked": (np.ma.masked_less(np.arange(6.0)[:, None], 1), "F1 is a masked array; every one of the"),
}


@pytest.mark.parametrize("F, message", NOT_FEATURES.values(), ids=NOT_FEATURES.keys())
def test_refused(F, message):
    with pytest.raises(ValueError, match=message):
        Features.of(F, 6, "F1", "rows")
