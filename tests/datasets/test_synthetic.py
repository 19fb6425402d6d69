import numpy as np
import pytest

from irpca.datasets import make_problem

SMALL = dict(n1=60, n2=50, d1=6, d2=4, rank=3, corruption=0.2)
SQUARE = dict(n1=60, n2=60, d1=6, d2=6, rank=3, corruption=0.2)


def test_defaults_are_the_size_of_the_paper():
    problem = make_problem()
    assert problem.M.shape == (1000, 1000)
    assert problem.F1.shape == problem.F2.shape == (1000, 20)
    assert problem.W.shape == (20, 20)
    assert np.linalg.matrix_rank(problem.W) == 5
    assert problem.corrupted.mean() == pytest.approx(0.05, abs=5 * np.sqrt(0.05 * 0.95 / 1e6))
    assert not problem.N.any()


def test_the_parts_add_up():
    for dtype in (np.float64, np.float32):
        problem = make_problem(**SMALL, noise=0.01, dtype=dtype)
        assert {part.dtype for part in vars(problem).values()} == {np.dtype(dtype)}
        np.testing.assert_array_equal(problem.M, problem.L + problem.S + problem.N)
        L = problem.F1 @ problem.W @ problem.F2.T
        assert np.abs(problem.L - L).max() <= 20 * np.finfo(dtype).eps * np.abs(L).max()


def test_float32_holds_the_problem_of_float64():
    single, double = make_problem(**SMALL, noise=0.01, dtype="float32"), make_problem(**SMALL, noise=0.01)
    np.testing.assert_array_equal(single.corrupted, double.corrupted)
    for name in ("F1", "F2", "W", "L", "S", "N"):
        np.testing.assert_array_equal(getattr(single, name), getattr(double, name).astype(np.float32))


# Features


def test_literal_features_follow_section_5_1():
    # The recipe of the paper, typed again from its text, on the same stream of random numbers.
    rng = np.random.default_rng(7)
    U, V = rng.standard_normal((6, 6)), rng.standard_normal((6, 60))
    U = np.array([row / np.sqrt(row @ row) for row in U])
    V = np.array([row / np.sqrt(row @ row) for row in V])
    sigma = np.diag(np.logspace(0, -np.log10(30), 6))
    F1 = make_problem(**SMALL, condition=30, random_state=7).F1
    np.testing.assert_allclose(F1, (U @ sigma @ V).T, rtol=0, atol=1e-14)


def test_singular_values_of_conditioned_features_fall_geometrically():
    problem = make_problem(**SMALL, features="conditioned", condition=32.0)
    for F in (problem.F1, problem.F2):
        right = np.geomspace(1, 1 / 32, F.shape[1])
        np.testing.assert_allclose(np.linalg.svd(F, compute_uv=False), right, rtol=1e-12)


@pytest.mark.parametrize("features", ["literal", "conditioned"])
def test_one_set_of_features_where_both_sides_agree_in_size(features):
    square = make_problem(**SQUARE, features=features)
    np.testing.assert_array_equal(square.F1, square.F2)
    assert not np.shares_memory(square.F1, square.F2)
    same_n = make_problem(60, 60, d1=6, d2=5, rank=3, features=features)
    assert not np.allclose(same_n.F1[:, :5], same_n.F2)


# The latent matrix


def test_latent_matrix_is_the_best_rank_r_part_of_a_uniform_draw():
    full = make_problem(**SMALL | dict(rank=4)).W  # min(d1, d2): nothing is cut
    assert 0 < full.min() < full.max() < 1
    U, sigma, Vt = np.linalg.svd(full)
    cut = make_problem(**SMALL | dict(rank=2)).W
    np.testing.assert_allclose(cut, U[:, :2] * sigma[:2] @ Vt[:2], rtol=0, atol=1e-13)


# The corruption


def test_random_support_has_its_share_of_entries():
    for corruption in (0.0, 0.3, 1.0):
        share = make_problem(400, 300, corruption=corruption).corrupted.mean()
        assert share == pytest.approx(corruption, abs=5 * np.sqrt(corruption * (1 - corruption) / 120_000))


def test_outliers_of_the_paper_fill_their_interval():
    problem = make_problem(400, 100, rank=3, corruption=0.5, outlier_scale=1000.0)
    size = np.abs(problem.S[problem.corrupted]) / 1000.0
    unit = 3 / 200  # r / sqrt(n1 n2)
    assert 5 * unit <= size.min() < 5.01 * unit
    assert 9.99 * unit < size.max() <= 10 * unit
    assert size.mean() == pytest.approx(7.5 * unit, rel=0.01)


def test_uniform_outliers_leave_no_gap():
    problem = make_problem(300, 300, corruption=0.5, outliers="uniform")
    size = np.abs(problem.S[problem.corrupted]) / np.abs(problem.L).max()
    assert size.min() < 1e-3
    assert 2.999 < size.max() <= 3
    assert size.mean() == pytest.approx(1.5, rel=0.02)


def test_signs():
    for outliers in ("paper", "uniform"):
        both = make_problem(300, 300, corruption=0.5, outliers=outliers).S
        assert (both > 0).sum() / (both != 0).sum() == pytest.approx(0.5, abs=0.02)
        positive = make_problem(300, 300, corruption=0.5, outliers=outliers, sign="positive").S
        assert positive.min() == 0
        np.testing.assert_array_equal(positive > 0, both != 0)


@pytest.mark.parametrize(
    ("pattern", "symmetric", "shape"),
    [("block", False, (100, 50)), ("block", True, (50, 50)), ("rows", False, (50, 100))],
)
def test_a_pattern_is_full_scattered_and_of_the_share_asked_for(pattern, symmetric, shape):
    n1 = 100 if symmetric else 200
    corrupted = make_problem(n1, 100, corruption=0.25, pattern=pattern, symmetric=symmetric).corrupted
    rows, cols = np.flatnonzero(corrupted.any(axis=1)), np.flatnonzero(corrupted.any(axis=0))
    assert (rows.size, cols.size) == shape and corrupted[np.ix_(rows, cols)].all()
    assert np.ptp(rows) > rows.size  # not one run of rows
    assert not symmetric or (rows == cols).all()


def test_a_small_share_still_corrupts_something_and_none_nothing():
    for pattern in ("block", "rows"):
        assert make_problem(**SMALL | dict(corruption=1e-6), pattern=pattern).corrupted.any()
        assert not make_problem(**SMALL | dict(corruption=0.0), pattern=pattern).corrupted.any()


# Noise, symmetry, randomness


def test_noise_is_gaussian_with_the_deviation_asked_for():
    N = make_problem(400, 300, noise=0.3).N
    assert N.std() == pytest.approx(0.3, rel=0.02)
    assert N.mean() == pytest.approx(0, abs=5 * 0.3 / np.sqrt(N.size))
    assert (np.abs(N) > 0.6).mean() == pytest.approx(0.0455, abs=0.005)


@pytest.mark.parametrize(("pattern", "dtype"), [("random", np.float64), ("block", np.float32)])
def test_symmetric_problems_are_symmetric_to_the_bit(pattern, dtype):
    problem = make_problem(**SQUARE, noise=0.1, symmetric=True, pattern=pattern, dtype=dtype)
    np.testing.assert_array_equal(problem.F1, problem.F2)
    for name in ("M", "W", "L", "S", "N"):
        part = getattr(problem, name)
        np.testing.assert_array_equal(part, part.T, err_msg=name)
    assert np.linalg.matrix_rank(problem.W) == 3
    assert problem.corrupted.mean() == pytest.approx(0.2, abs=0.06)


def test_same_seed_same_problem():
    one, two, other = (make_problem(**SMALL, noise=0.1, random_state=seed) for seed in (3, 3, 4))
    for name, part in vars(one).items():
        np.testing.assert_array_equal(part, getattr(two, name))
        assert not np.array_equal(part, getattr(other, name))
    rng = np.random.default_rng(3)  # which moves on
    first, second = make_problem(**SMALL, noise=0.1, random_state=rng), make_problem(**SMALL, random_state=rng)
    np.testing.assert_array_equal(first.M, one.M)
    assert not np.array_equal(first.L, second.L)


def test_corruption_and_noise_leave_the_rest_of_a_seed_alone():
    plain, noisy = make_problem(**SMALL), make_problem(**SMALL | dict(corruption=0.5), noise=0.1, sign="positive")
    np.testing.assert_array_equal(plain.L, noisy.L)


# Problem


def test_relative_error():
    problem = make_problem(**SMALL)

    class Factors:
        def dense(self):
            return 1.5 * problem.L

    assert problem.relative_error(problem.L) == 0
    assert problem.relative_error(np.zeros_like(problem.L)) == 1
    assert problem.relative_error(Factors()) == pytest.approx(0.5, rel=1e-12)
    with pytest.raises(ValueError, match=r"shape \(50,\).*\(60, 50\)"):
        problem.relative_error(problem.L[0])


def test_repr_is_one_line_of_facts():
    problem = make_problem(**SMALL | dict(corruption=0.0), dtype="float32")
    assert repr(problem) == "Problem(60 × 50, features 6 and 4, rank 3, 0.0% corrupted, noise 0, float32)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(n1=0), "n1 must be a whole number, at least 1; got 0"),
        (dict(rank=5), r"rank=5 exceeds min\(d1, d2\)=4: lower rank or add features"),
        (dict(d1=61), "d1=61 exceeds n1=60: lower d1 or raise n1"),
        (dict(corruption=1.1), r"corruption must be a number, at least 0 and at most 1; got 1\.1"),
        (dict(d2=1, rank=1, condition=2.0), r"condition=2\.0 needs at least two features: raise d2"),
        (dict(features="gaussian"), "features must be one of literal, conditioned; got 'gaussian'"),
        (dict(dtype=int), "dtype must be one of float64, float32; got 'int64'"),
        (dict(symmetric=True), "symmetric=True needs n1 == n2 and d1 == d2, got 60, 50 and 6, 4"),
        (dict(n2=60, d2=6, symmetric=True, pattern="rows"), 'pattern="rows" cannot be symmetric'),
    ],
)
def test_errors_name_the_argument_and_the_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_problem(**SMALL | arguments)
