import tracemalloc

import numpy as np
import pytest
import transcriptions
from scipy.sparse import bsr_array, coo_array, csc_matrix, csr_array, dia_array, eye_array

import irpca
from irpca import completion
from irpca.completion import optspace
from irpca.lowrank import LowRank


def stored(M, mask):
    """The entries of M where the mask is set, zeros too."""
    rows, cols = np.nonzero(mask)
    return coo_array((M[rows, cols], (rows, cols)), shape=M.shape)


def problem(n1, n2, rank=3, share=0.15, seed=0, noise=0.0, condition=1.0):
    """A random matrix and some of its entries."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in (n1, n2))
    M = np.sqrt(n1 * n2) * (U * np.geomspace(1, 1 / condition, rank)) @ V.T
    mask = rng.random(M.shape) < share
    return M, stored(M + noise * rng.standard_normal(M.shape), mask)


def error(found, M):
    return np.linalg.norm(found.L.dense() - M) / np.linalg.norm(M)


# Exact recovery.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n1", "n2", "share"), [(200, 200, 0.15), (400, 150, 0.12), (150, 400, 0.12), (120, 120, 0.2)])
def test_a_rank_three_matrix_is_found_from_few_entries(n1, n2, share, seed):
    M, observed = problem(n1, n2, share=share, seed=seed)
    found = optspace(observed, 3, tol=1e-8)
    assert found.converged
    assert found.doubts == ()
    assert error(found, M) < 1e-6


def test_ten_percent_are_enough_for_a_larger_one():
    M, observed = problem(500, 400, share=0.1)
    assert error(optspace(observed, 3, tol=1e-8), M) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_condition_does_not_matter(seed):
    M, observed = problem(200, 200, seed=seed, condition=100)
    assert error(optspace(observed, 3, tol=1e-8), M) < 1e-6


def test_the_default_tolerance_is_on_the_fit():
    _, observed = problem(200, 200)
    found = optspace(observed, 3)
    assert found.rmse <= 1e-6 * np.sqrt(np.mean(observed.data**2))
    assert found.history[-2] > 1e-6 * np.sqrt(np.mean(observed.data**2))  # and not sooner, nor later


def test_what_is_returned_fits_together():
    _, observed = problem(120, 90, share=0.3, noise=0.1, condition=3)
    found = optspace(observed, 3)
    L = found.L
    np.testing.assert_allclose(L.left.T @ L.left, np.eye(3), rtol=0, atol=1e-13)
    np.testing.assert_allclose(L.right.T @ L.right, np.eye(3), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(L.core, np.diag(L.core.diagonal()))
    np.testing.assert_allclose(L.core.diagonal(), np.linalg.svd(L.dense(), compute_uv=False)[:3], rtol=1e-12)
    rmse = np.sqrt(np.mean((observed.data - L.entries(observed.row, observed.col)) ** 2))
    assert found.rmse == pytest.approx(rmse, rel=1e-12)
    assert found.rmse == found.history[-1]
    assert len(found.history) == found.n_iter + 1
    assert (np.diff(found.history) < 0).all()
    assert repr(found) == f"Completion(shape=(120, 90), rank=3, rmse={rmse:.3g}, converged=True, n_iter={found.n_iter})"


def test_it_is_part_of_the_package():
    assert irpca.completion.optspace is optspace


# The same question asked in other ways.


@pytest.mark.parametrize("factor", [1e-6, 1e6, -1.0, 1e-200])
def test_scaled_values_give_the_scaled_answer(factor):
    _, observed = problem(120, 90, share=0.3, noise=0.1)
    found, scaled = optspace(observed, 3, tol=1e-10), optspace(factor * observed, 3, tol=1e-10)
    np.testing.assert_allclose(scaled.L.dense() / factor, found.L.dense(), rtol=0, atol=1e-7)
    assert scaled.rmse == pytest.approx(abs(factor) * found.rmse, rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_transposed_question_gives_the_transposed_answer(noise):
    _, observed = problem(120, 90, share=0.3, noise=noise)
    found, turned = optspace(observed, 3, tol=1e-10), optspace(observed.T, 3, tol=1e-10)
    np.testing.assert_allclose(turned.L.dense().T, found.L.dense(), rtol=0, atol=1e-5)


def test_rows_and_columns_in_another_order():
    _, observed = problem(120, 90, share=0.3, noise=0.1)
    rng = np.random.default_rng(1)
    rows, cols = rng.permutation(120), rng.permutation(90)
    moved = coo_array((observed.data, (rows[observed.row], cols[observed.col])), shape=observed.shape)
    found, other = optspace(observed, 3, tol=1e-10), optspace(moved, 3, tol=1e-10)
    np.testing.assert_allclose(other.L.dense()[np.ix_(rows, cols)], found.L.dense(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "convert", [csr_array, csc_matrix, lambda A: A.tolil(), lambda A: A.todok(), lambda A: A.astype(np.int8)]
)
def test_every_format_is_the_same(convert):
    M, mask = np.outer(np.arange(1, 13), np.arange(1, 10)), np.random.default_rng(0).random((12, 9)) < 0.7
    expected, found = optspace(stored(M.astype(float), mask), 1), optspace(convert(stored(M, mask)), 1)
    np.testing.assert_array_equal(found.L.dense(), expected.L.dense())
    np.testing.assert_allclose(found.L.dense(), M, rtol=0, atol=1e-3)


def test_the_order_of_stored_entries_does_not_matter_and_they_are_not_touched():
    _, observed = problem(60, 50, share=0.4)
    order = np.random.default_rng(1).permutation(observed.nnz)
    shuffled = coo_array((observed.data[order], (observed.row[order], observed.col[order])), shape=observed.shape)
    before = shuffled.data.copy(), shuffled.row.copy(), shuffled.col.copy()
    np.testing.assert_array_equal(optspace(shuffled, 3).L.dense(), optspace(observed, 3).L.dense())
    for was, now in zip(before, (shuffled.data, shuffled.row, shuffled.col), strict=True):
        np.testing.assert_array_equal(now, was)


def test_the_random_state_decides():
    _, observed = problem(80, 60, share=0.3, noise=0.1)
    first, same, other = (optspace(observed, 3, max_iter=1, random_state=seed).L.dense() for seed in (5, 5, 6))
    generator = optspace(observed, 3, max_iter=1, random_state=np.random.default_rng(5)).L.dense()
    np.testing.assert_array_equal(first, same)
    np.testing.assert_array_equal(first, generator)
    assert not np.array_equal(first, other)


# Observed zeros, and what was never observed.


def test_a_stored_zero_is_an_observed_zero():
    M = np.ones((20, 15))
    M[3, 4] = 0
    zeros = stored(M, np.ones(M.shape, dtype=bool))
    assert zeros.nnz == M.size
    best = irpca.LowRank.from_core(None, M, None, 1).dense()  # all entries are observed
    found = optspace(zeros, 1, tol=1e-10)
    np.testing.assert_allclose(found.L.dense(), best, rtol=0, atol=1e-6)
    assert found.L.dense()[3, 4] < 0.95
    dropped = csr_array(zeros)
    dropped.eliminate_zeros()
    np.testing.assert_allclose(optspace(dropped, 1).L.dense(), 1, rtol=0, atol=1e-5)


def test_a_matrix_with_many_zeros_is_found():
    rng = np.random.default_rng(0)
    M = (rng.integers(-1, 2, (150, 3)) @ rng.integers(-1, 2, (3, 120))).astype(float)
    observed = stored(M, rng.random(M.shape) < 0.2)
    assert (observed.data == 0).mean() > 0.3
    assert error(optspace(observed, 3, tol=1e-8), M) < 1e-6


def test_nothing_is_known_of_empty_rows_and_columns():
    M, _ = problem(80, 60)
    mask = np.random.default_rng(1).random(M.shape) < 0.4
    mask[[0, 7]] = False
    mask[:, 59] = False
    found = optspace(stored(M, mask), 3, tol=1e-8)
    L = found.L.dense()
    assert not L[[0, 7]].any()
    assert not L[:, 59].any()
    known = np.ix_(mask.any(axis=1), mask.any(axis=0))
    np.testing.assert_allclose(L[known], M[known], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.L.left.T @ found.L.left, np.eye(3), rtol=0, atol=1e-13)
    (doubt,) = found.doubts
    assert doubt.startswith("2 rows and 1 columns have no observed entry: L is zero there")


# Noise.


def oracle(observed, U, V):
    """Least squares on the observed entries over the tangent space at the truth, which nobody else knows."""
    n1, n2, r = len(U), len(V), U.shape[1]
    design = np.zeros((observed.nnz, (n1 + n2) * r))
    for k, (i, j) in enumerate(zip(observed.row, observed.col, strict=True)):
        design[k, i * r : (i + 1) * r] = V[j]
        design[k, (n1 + j) * r : (n1 + j + 1) * r] = U[i]
    solution = np.linalg.lstsq(design, observed.data, rcond=None)[0]
    A, B = solution[: n1 * r].reshape(n1, r), solution[n1 * r :].reshape(n2, r)
    return A @ V.T + U @ B.T


@pytest.mark.parametrize("seed", range(3))
def test_noise_costs_no_more_than_it_must(seed):
    M, observed = problem(80, 60, rank=2, share=0.3, noise=0.05, seed=seed)
    u, _, vt = np.linalg.svd(M)
    best = np.linalg.norm(oracle(observed, u[:, :2], vt[:2].T) - M) / np.linalg.norm(M)
    assert 0.01 < best < 0.05
    assert error(optspace(observed, 2), M) < 1.02 * best


def test_the_minimum_is_that_of_alternating_least_squares():
    M, observed = problem(40, 30, rank=2, share=0.5, noise=0.3)
    mask = np.zeros(M.shape, dtype=bool)
    mask[observed.row, observed.col] = True
    values = observed.toarray()
    V = np.linalg.svd(values)[2][:2].T
    for _ in range(300):
        U = np.array(
            [np.linalg.lstsq(V[seen], row[seen], rcond=None)[0] for row, seen in zip(values, mask, strict=True)]
        )
        V = np.array(
            [np.linalg.lstsq(U[seen], col[seen], rcond=None)[0] for col, seen in zip(values.T, mask.T, strict=True)]
        )
    found = optspace(observed, 2, tol=1e-12)
    np.testing.assert_allclose(found.L.dense(), U @ V.T, rtol=0, atol=1e-5)
    assert found.rmse == pytest.approx(np.sqrt(np.mean((values - U @ V.T)[mask] ** 2)), rel=1e-9)


def test_a_tolerance_below_rounding_ends_as_well():
    _, observed = problem(40, 30, rank=2, share=0.6, noise=0.1)
    found = optspace(observed, 2, tol=0.0, max_iter=2000)
    assert found.converged
    assert found.n_iter < 2000


# The pieces.


@pytest.fixture
def piece():
    _, observed = problem(30, 25, rank=2, share=0.5, noise=0.3)
    entries, _, _ = completion._entries(observed)
    rng = np.random.default_rng(3)
    return entries, LowRank.from_product(rng.standard_normal((30, 2)), rng.standard_normal((25, 2)))


def test_the_core_is_the_best_one(piece):
    entries, L = piece
    kron = (L.left[entries.rows][:, :, None] * L.right[entries.cols][:, None, :]).reshape(-1, 4)
    best = np.linalg.lstsq(kron, entries.values, rcond=None)[0].reshape(2, 2)
    refitted, residual = completion._refit(entries, L)
    np.testing.assert_allclose(refitted.dense(), L.left @ best @ L.right.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(residual, entries.values - kron @ best.ravel(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_finite_differences(piece, seed):
    entries, L = piece
    L, residual = completion._refit(entries, L)
    gradient = completion._tangent(L, entries.sparse(residual))
    rng = np.random.default_rng(seed)
    direction = completion._across(L, rng.standard_normal((30, 2)), rng.standard_normal((25, 2)))

    def objective(step):
        _, rest = completion._refit(entries, completion._retract(L, step, direction))
        return rest @ rest / 2

    slope = (objective(1e-5) - objective(-1e-5)) / 2e-5
    assert abs(slope) > 0.1
    assert slope == pytest.approx(-completion._inner(gradient, direction), rel=1e-6)


def test_a_tangent_holds_nothing_that_the_core_could_take(piece):
    _, L = piece
    Z = np.random.default_rng(0).standard_normal(L.shape)
    A, B = completion._tangent(L, Z)
    P1, P2 = L.left @ L.left.T, L.right @ L.right.T
    np.testing.assert_allclose(A @ L.right.T, (Z - P1 @ Z) @ P2, rtol=0, atol=1e-12)
    np.testing.assert_allclose(L.left @ B.T, P1 @ (Z - Z @ P2), rtol=0, atol=1e-12)


def test_old_directions_are_projected_to_where_they_are_used(piece):
    _, old = piece
    rng = np.random.default_rng(0)
    old_gradient, old_direction, change, Z = (
        completion._tangent(old, rng.standard_normal(old.shape)) for _ in range(4)
    )
    L = completion._retract(old, 0.3, change)
    gradient = completion._tangent(L, Z[0] @ old.right.T + old.left @ Z[1].T)
    carried = [completion._tangent(L, A @ old.right.T + old.left @ B.T) for A, B in (old_gradient, old_direction)]
    inner = completion._inner
    beta = (inner(gradient, gradient) - inner(gradient, carried[0])) / inner(old_gradient, old_gradient)
    assert beta > 0.1
    found = completion._conjugate(L, gradient, old, old_gradient, old_direction)
    for part, slope, old_part in zip(found, gradient, carried[1], strict=True):
        np.testing.assert_allclose(part, slope + beta * old_part, rtol=0, atol=1e-12)


def test_a_direction_that_leads_nowhere_is_replaced_by_the_gradient(monkeypatch):
    M, observed = problem(120, 90, share=0.4)
    monkeypatch.setattr(completion, "_conjugate", lambda L, gradient, *_: tuple(0 * part for part in gradient))
    assert error(optspace(observed, 3, tol=1e-8), M) < 1e-6


def test_a_step_that_is_too_long_is_shortened(monkeypatch):
    tried = []
    retract = completion._retract
    monkeypatch.setattr(completion, "_retract", lambda L, step, d: tried.append(step) or retract(L, step, d))
    _, observed = problem(30, 25, rank=2, share=0.3, noise=0.3, seed=214)
    entries, _, _ = completion._entries(observed)
    rng = np.random.default_rng(214)
    start = LowRank.from_product(rng.standard_normal((30, 1)), rng.standard_normal((25, 1)))
    L, residual = completion._refit(entries, start)
    gradient = completion._tangent(L, entries.sparse(residual))
    astray = completion._across(L, rng.standard_normal((30, 1)), rng.standard_normal((25, 1)))
    direction = tuple(a + 3 * np.linalg.norm(a) / np.linalg.norm(b) * b for a, b in zip(gradient, astray, strict=True))
    _, rest = completion._search(entries, L, residual, gradient, direction)
    assert rest @ rest < residual @ residual
    assert len(tried) == 3
    _, rest = completion._refit(entries, retract(L, tried[0], direction))
    assert rest @ rest > residual @ residual


def test_one_lazy_step_is_not_rest():
    assert not completion._settled([5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0], goal=1e-6, tol=1e-3)
    assert not completion._settled([1.0, 1.0], goal=1e-6, tol=1e-3)
    assert completion._settled([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], goal=1e-6, tol=1e-3)
    assert completion._settled([1e-7], goal=1e-6, tol=1e-3)


def test_trimming_thins_only_what_is_overfull():
    lines = np.repeat([0, 1, 2, 3], [30, 4, 4, 2])  # 10 on average
    first, second = (completion._trimmed(lines, np.random.default_rng(seed)) for seed in (0, 1))
    for kept in first, second:
        np.testing.assert_array_equal(np.bincount(lines[kept]), [20, 4, 4, 2])
    assert not np.array_equal(first, second)


def test_overfull_rows_and_columns_do_no_harm():
    M, _ = problem(200, 150)
    mask = np.random.default_rng(0).random(M.shape) < 0.12
    mask[:3], mask[:, :3] = True, True
    assert error(optspace(stored(M, mask), 3, tol=1e-8), M) < 1e-6


def test_the_start_does_without_trimming_where_only_zeros_would_be_left(monkeypatch):
    M = np.zeros((12, 9))
    M[2, 3] = 4.0
    monkeypatch.setattr(completion, "_trimmed", lambda lines, rng: np.zeros(len(lines), dtype=bool))
    np.testing.assert_allclose(optspace(stored(M, np.ones(M.shape)), 1).L.dense(), M, rtol=0, atol=1e-12)


def test_nothing_of_the_size_of_the_matrix_is_made():
    n, rng = 4000, np.random.default_rng(0)
    U, V = rng.standard_normal((n, 2)), rng.standard_normal((n, 2))
    rows, cols = np.divmod(np.unique(rng.integers(0, n * n, 80_000)), n)
    observed = coo_array(((U[rows] * V[cols]).sum(axis=1), (rows, cols)), shape=(n, n))
    tracemalloc.start()
    try:
        optspace(observed, 2, max_iter=3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n  # bytes: even a mask would need as many


# What it refuses.


REFUSED = {
    "dense": (np.ones((5, 4)), 1, TypeError, "observed must be a scipy sparse array .* got ndarray: make it one with"),
    "vector": (coo_array(np.ones(5)), 1, TypeError, "observed must be a scipy sparse array"),
    "blocks": (bsr_array(np.ones((6, 4))), 1, TypeError, "observed is in BSR format, which cannot tell"),
    "diagonals": (dia_array(np.ones((6, 4))), 1, TypeError, "observed is in DIA format, which cannot tell"),
    "complex": (csr_array(np.ones((5, 4), dtype=complex)), 1, TypeError, "real numbers, got dtype complex128"),
    "empty": (csr_array((5, 4)), 1, ValueError, "no entry other than zero"),
    "zeros": (coo_array((np.zeros(2), ([0, 1], [0, 1])), shape=(5, 4)), 1, ValueError, "no entry other than zero"),
    "twice": (
        coo_array((np.ones(3), ([2, 1, 2], [1, 0, 1])), shape=(5, 4)),
        1,
        ValueError,
        "more than once, as at row 2, column 1: keep one value of each",
    ),
    "nan": (csr_array([[1.0, 2.0], [3.0, np.nan]]), 1, ValueError, "observed holds nan at row 1, column 1: every"),
    "inf": (csr_array([[1.0, -np.inf], [3.0, 4.0]]), 1, ValueError, "observed holds -inf at row 0, column 1: every"),
    "rank zero": (csr_array(np.ones((5, 4))), 0, ValueError, "rank=0 is out of range: .* choose 1 <= rank < 4"),
    "rank too high": (csr_array(np.ones((5, 4))), 4, ValueError, "rank=4 is out of range: 5 rows and 4 columns"),
    "rank of a word": (csr_array(np.ones((5, 4))), "auto", ValueError, "rank must be a positive integer, got 'auto'"),
    "rank of truth": (csr_array(np.ones((5, 4))), True, ValueError, "rank must be a positive integer, got True"),
    "too few": (eye_array(6, format="csr"), 2, ValueError, "rank=2 is too high for 6 observed entries: .* have 20 deg"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_completed_is_refused(name):
    observed, rank, kind, sentence = REFUSED[name]
    with pytest.raises(kind, match=sentence):
        optspace(observed, rank)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"tol": -1.0}, "tol must not be negative, got -1.0"),
        ({"tol": np.nan}, "tol must not be negative, got nan"),
    ],
)
def test_options_out_of_range(option, sentence):
    with pytest.raises(ValueError, match=sentence):
        optspace(csr_array(np.ones((5, 4))), 1, **option)


def test_only_rows_and_columns_with_entries_count():
    observed = coo_array((np.ones(6), ([0, 0, 0, 9, 9, 9], [0, 1, 2, 0, 1, 2])), shape=(10, 10))
    assert optspace(observed, 1).L.shape == (10, 10)
    with pytest.raises(ValueError, match="rank=2 is out of range: 2 rows and 3 columns have observed entries"):
        optspace(observed, 2)


# What it doubts.


def doubts(observed, rank, **options):
    return " | ".join(optspace(observed, rank, **options).doubts)


def test_it_says_when_iterations_ran_out():
    _, observed = problem(120, 90, share=0.3)
    found = optspace(observed, 3, max_iter=4)
    assert (found.converged, found.n_iter) == (False, 4)
    assert found.doubts == ("the iterations ran out while the fit still improved: raise max_iter, or loosen tol",)


def test_it_says_which_rows_and_columns_have_too_few_entries():
    M, _ = problem(80, 60)
    mask = np.random.default_rng(1).random(M.shape) < 0.4
    mask[[0, 1]], mask[:, 5] = False, False
    mask[0, [1, 2]] = mask[[2, 3], 5] = True
    mask[1, [1, 2, 3]] = True  # just enough
    told = doubts(stored(M, mask), 3)
    assert "1 rows and 1 columns have fewer than 3 observed entries, too few for rank 3" in told


def test_it_says_when_the_entries_fall_apart():
    M, _ = problem(80, 60, rank=1)
    mask = np.zeros(M.shape, dtype=bool)
    mask[:40, :30] = mask[40:, 30:] = True
    assert "fall into 2 blocks that share no row or column" in doubts(stored(M, mask), 1)


def test_it_says_when_entries_are_scarce():
    _, observed = problem(150, 150, share=0.07)
    assert "only 1.8 entries are observed per degree of freedom" in doubts(observed, 3)


def test_it_says_when_the_rank_is_too_high():
    _, observed = problem(200, 200, rank=2, share=0.2)
    assert "of a singular vector lies in a single row or column" in doubts(observed, 3)
    assert doubts(observed, 2) == ""


def test_it_says_when_it_reaches_far():
    # Ratings of 1 to 5; a few columns have no more entries than the rank, and are fitted exactly.
    rng = np.random.default_rng(0)
    M = rng.integers(1, 6, (100, 80)).astype(float)
    mask = rng.random(M.shape) < 0.4
    mask[:, :20] = False
    for col in range(20):
        mask[rng.choice(100, 3, replace=False), col] = True
    found = optspace(stored(M, mask), 3)
    L = np.abs(found.L.dense()).max() / 5
    assert L > 2
    assert any(f"L reaches {L:.2g} times the largest observed value" in doubt for doubt in found.doubts)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_same_minimum_as_the_transcription(noise):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50))
    M += noise * rng.standard_normal(M.shape)
    rows, cols = np.nonzero(rng.random(M.shape) < 0.5)
    observed = coo_array((M[rows, cols], (rows, cols)), shape=M.shape)
    X, S, Y = transcriptions.optspace(rows, cols, M[rows, cols], M.shape, 2, T=2000, tol=1e-10)
    found = optspace(observed, 2, tol=1e-10)
    theirs = X @ S @ Y.T
    assert np.linalg.norm(found.L.dense() - theirs) <= 1e-6 * np.linalg.norm(theirs)
