"""Robust regression of rows: against what was planted, and against dense least squares row by row."""

import numpy as np
import pytest

from irpca import regression
from irpca.regression import HARD_STARTS, ROW_STARTS, moment_columns, row_scores, row_steps, span_step


def rows_problem(n, corruption, sign="both", scale=1.0, m=60, r=5, seed=0):
    """``U, V, M`` with ``M = U Vᵀ`` but for a share of outliers, 1 to 3 times ``scale``."""
    rng = np.random.default_rng([n, seed])
    U, V = rng.standard_normal((m, r)), rng.standard_normal((n, r))
    outliers = scale * rng.uniform(1, 3, (m, n)) * (rng.choice([-1, 1], (m, n)) if sign == "both" else 1)
    return U, V, U @ V.T + np.where(rng.random((m, n)) < corruption, outliers, 0)


def errors(found, U):
    return np.linalg.norm(found - U, axis=1) / np.linalg.norm(U, axis=1)


def products_of(v):
    """What a row of V adds to the sums: all products of two of its numbers, each once, and a one."""
    return np.append(np.outer(v, v)[np.triu_indices(len(v))], 1.0)


def sums_over(kept, residual, V):
    """What row_steps and span_step want, by their definition."""
    r = V.shape[1]
    sums = np.array([sum((products_of(v) for v in V[k]), np.zeros(r * (r + 1) // 2 + 1)) for k in kept])
    return sums, np.array([V[k].T @ r[k] for k, r in zip(kept, residual, strict=True)])


# Rows found exactly


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("sign", ["both", "positive"])
@pytest.mark.parametrize("corruption", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("n", [200, 1000])
def test_rows_are_found_exactly_under_corruption(n, corruption, sign, scale):
    U, V, M = rows_problem(n, corruption, sign, scale)
    assert errors(row_scores(M, V), U).max() <= 1e-13


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("sign", ["both", "positive"])
@pytest.mark.parametrize("n", [200, 500, 1000])
def test_rows_are_found_exactly_with_half_of_their_entries_corrupted(n, sign, scale):
    U, V, M = rows_problem(n, 0.5, sign, scale, m=80)
    assert errors(row_scores(M, V, starts=HARD_STARTS), U).max() <= 1e-13
    assert np.mean(errors(row_scores(M, V), U) > 1e-13) <= (0.1 if n == 200 else 0.0)


def test_more_starts_are_never_worse():
    """What is kept is the smallest mean log residual, row by row."""
    U, V, M = rows_problem(200, 0.6, m=100)
    missed = [np.mean(errors(row_scores(M, V, starts=starts), U) > 1e-9) for starts in (ROW_STARTS[:1], HARD_STARTS)]
    assert missed[1] < missed[0]

    def score(starts):
        floor = 64 * np.finfo(float).eps * np.median(np.abs(M), axis=1, keepdims=True)
        return np.log(np.maximum(np.abs(M - row_scores(M, V, starts=starts) @ V.T), floor)).mean(axis=1)

    best = np.min([score((start,)) for start in ROW_STARTS], axis=0)
    np.testing.assert_allclose(score(ROW_STARTS), best, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scores_move_with_the_scale(scale):
    U, V, M = rows_problem(300, 0.3)
    assert errors(row_scores(scale * M, V), scale * U).max() <= 1e-13
    assert errors(row_scores(M, scale * V), U / scale).max() <= 1e-13


def test_noise_is_averaged_over_the_clean_entries():
    U, V, M = rows_problem(500, 0.3, scale=10, m=300)
    M = M + 0.01 * np.random.default_rng(9).standard_normal(M.shape)
    found = row_scores(M, V, zeta=0.05)
    expected = 0.01 * np.sqrt(5 / (0.7 * 500))  # σ √(r / clean entries), for V of unit variance
    assert np.sqrt(np.mean(np.sum((found - U) ** 2, axis=1))) == pytest.approx(expected, rel=0.1)


def test_wholly_corrupted_rows_do_not_disturb_others():
    U, V, M = rows_problem(300, 0.2)
    alone = row_scores(M, V)
    M[::7] = 1e3 * np.random.default_rng(1).standard_normal(M[::7].shape)
    beside = row_scores(M, V)
    good = np.arange(len(M)) % 7 != 0
    np.testing.assert_allclose(beside[good], alone[good], rtol=0, atol=1e-13)
    assert errors(beside, U)[good].max() <= 1e-13
    assert np.isfinite(beside).all()


def test_float32_rows_are_found_to_its_precision():
    U, V, M = rows_problem(500, 0.4)
    found = row_scores(M.astype(np.float32), V)
    assert found.dtype == np.float64
    assert errors(found, U).max() <= 1e-7


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_of_zeros_have_zero_scores(dtype):
    U, V, M = rows_problem(200, 0.2)
    M[3], M[5, ::2] = 0, 0
    found = row_scores(M.astype(dtype), V)
    assert (found[3] == 0).all()
    others = np.delete(np.arange(len(M)), [3, 5])
    assert errors(found, U)[others].max() <= (1e-13 if dtype == np.float64 else 1e-6)


def test_a_row_of_many_zeros_is_no_reason_to_score_zero():
    """Zeros are outliers too: 20 % of them, beside a clean 80 %."""
    U, V, M = rows_problem(200, 0.0)
    M[:, ::5] = 0
    assert errors(row_scores(M, V), U).max() <= 1e-13


def test_one_direction_and_one_row_work():
    V = np.arange(1.0, 101.0)[:, None]
    M = 2 * V.T
    M[0, :30] = 7
    np.testing.assert_allclose(row_scores(M, V), [[2.0]], rtol=1e-14)


# Finishing with a given threshold


def test_finishing_is_least_squares_on_the_kept_entries():
    _, V, M = rows_problem(300, 0.3, scale=10)
    M = M + 0.1 * np.random.default_rng(9).standard_normal(M.shape)
    zeta = 0.35
    found = row_scores(M, V, zeta=zeta)
    kept = np.abs(M - found @ V.T) <= zeta
    assert 0.6 < kept.mean() < 0.71
    for row, keep, score in zip(M, kept, found, strict=True):
        np.testing.assert_allclose(score, np.linalg.lstsq(V[keep], row[keep], rcond=None)[0], rtol=0, atol=1e-10)


def test_finishing_with_no_threshold_at_all_is_ordinary_least_squares():
    _, V, M = rows_problem(200, 0.3)
    np.testing.assert_allclose(
        row_scores(M, V, zeta=np.inf), np.linalg.lstsq(V, M.T, rcond=None)[0].T, rtol=0, atol=1e-12
    )


# Single steps


def test_moment_columns_are_products_and_ones():
    V = np.random.default_rng(0).standard_normal((7, 3))
    columns = moment_columns(V)
    assert columns.shape == (7, 7)
    for v, row in zip(V, columns, strict=True):
        np.testing.assert_allclose(row, products_of(v), rtol=1e-15)


@pytest.mark.parametrize("dtype, atol", [(np.float64, 1e-10), (np.float32, 1e-4)])
def test_row_steps_are_dense_least_squares(dtype, atol):
    rng = np.random.default_rng(0)
    V, residual, kept = rng.standard_normal((80, 4)), rng.standard_normal((30, 80)), rng.random((30, 80)) < 0.6
    sums, products = sums_over(kept, residual, V)
    steps = row_steps(sums.astype(dtype), products.astype(dtype))
    assert steps.dtype == np.float64
    for step, keep, row in zip(steps, kept, residual, strict=True):
        np.testing.assert_allclose(step, np.linalg.lstsq(V[keep], row[keep], rcond=None)[0], rtol=0, atol=atol)
    np.testing.assert_allclose(kept.astype(float) @ moment_columns(V), sums, rtol=1e-12, atol=1e-12)


def test_rows_with_too_few_kept_entries_do_not_move():
    """r entries always fit exactly, whatever they are: at least one more must agree."""
    rng = np.random.default_rng(0)
    V, residual = rng.standard_normal((80, 4)), rng.standard_normal((7, 80))
    kept = np.arange(80) < np.arange(7)[:, None]
    steps = row_steps(*sums_over(kept, residual, V))
    assert (steps[:5] == 0).all()
    assert (steps[5:] != 0).all()


def test_no_row_moves_if_none_has_enough():
    np.testing.assert_array_equal(row_steps(np.zeros((3, 4)), np.zeros((3, 2))), np.zeros((3, 2)))


def test_rows_whose_kept_entries_miss_a_direction_stay_finite():
    V = np.column_stack([np.ones(20), np.arange(20) >= 10])
    kept = np.tile(np.arange(20) < 10, (2, 1))
    residual = np.arange(40.0).reshape(2, 20)
    steps = row_steps(*sums_over(kept, residual, V))
    np.testing.assert_allclose(steps, [[residual[0, :10].mean(), 0], [residual[1, :10].mean(), 0]], rtol=1e-11)


@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-10), (np.float32, 1e-4)])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_span_step_is_dense_least_squares(share, dtype, rtol):
    """min over D of ‖R − Q D Vᵀ‖ on the kept entries, all rows together."""
    rng = np.random.default_rng(0)
    Q, V = np.linalg.qr(rng.standard_normal((60, 5)))[0], rng.standard_normal((40, 3))
    residual, kept = rng.standard_normal((60, 40)), rng.random((60, 40)) < share
    sums, products = sums_over(kept, residual, V)
    D = span_step(Q, sums.astype(dtype), products.astype(dtype))
    expected = np.linalg.lstsq(np.kron(Q, V)[kept.ravel()], residual.ravel()[kept.ravel()], rcond=None)[0].reshape(5, 3)
    assert np.linalg.norm(D - expected) <= rtol * np.linalg.norm(expected)


def test_span_step_copes_with_directions_of_very_different_size():
    rng = np.random.default_rng(0)
    Q, V = np.linalg.qr(rng.standard_normal((60, 5)))[0], rng.standard_normal((40, 3)) * [1, 10, 100]
    residual, kept = rng.standard_normal((60, 40)), rng.random((60, 40)) < 0.6
    D = span_step(Q, *sums_over(kept, residual, V))
    expected = np.linalg.lstsq(np.kron(Q, V)[kept.ravel()], residual[kept], rcond=None)[0].reshape(5, 3)
    assert np.linalg.norm(D - expected) <= 1e-7 * np.linalg.norm(expected)


def test_span_step_of_no_residual_is_none():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    np.testing.assert_array_equal(span_step(Q, np.ones((6, 4)), np.zeros((6, 2))), np.zeros((2, 2)))


def test_span_step_leaves_directions_alone_that_nothing_was_kept_of():
    rng = np.random.default_rng(0)
    Q, V = np.eye(6)[:, :3], rng.standard_normal((40, 2))
    kept = np.repeat(np.arange(6) < 2, 40).reshape(6, 40)  # nothing of row 2, which alone knows direction 2
    residual = rng.standard_normal((6, 40))
    D = span_step(Q, *sums_over(kept, residual, V))
    np.testing.assert_allclose(D[:2], np.linalg.lstsq(V, residual[:2].T, rcond=None)[0].T, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(D[2], 0)


# Chunks


@pytest.mark.parametrize("zeta", [None, 0.35])
@pytest.mark.parametrize("entries", [1, 3 * 200 + 1, 59 * 200])
def test_chunks_change_nothing(monkeypatch, entries, zeta):
    _, V, M = rows_problem(200, 0.4)
    M = M + 0.1 * np.random.default_rng(9).standard_normal(M.shape)
    at_once = row_scores(M, V, zeta)
    monkeypatch.setattr(regression, "CHUNK_ENTRIES", entries)
    np.testing.assert_allclose(row_scores(M, V, zeta), at_once, rtol=0, atol=1e-11)


def test_chunks_are_no_larger_than_asked(monkeypatch):
    _, V, M = rows_problem(200, 0.1)
    seen = []
    chunk = regression._chunk
    monkeypatch.setattr(regression, "CHUNK_ENTRIES", 1000)
    monkeypatch.setattr(regression, "_chunk", lambda M, *rest: seen.append(M.shape) or chunk(M, *rest))
    row_scores(M, V)
    assert seen == [(5, 200)] * 12


def test_row_scores_does_not_touch_what_it_is_given():
    _, V, M = rows_problem(200, 0.3)
    M.flags.writeable = V.flags.writeable = False
    row_scores(M, V, zeta=0.1)


# Rows with holes


def test_what_is_not_observed_does_not_count():
    U, V, M = rows_problem(300, 0.2)
    holes = np.random.default_rng(5).random(M.shape) < 0.4
    assert errors(row_scores(np.where(holes, np.nan, M), V), U).max() <= 1e-12


def test_a_hole_in_one_row_changes_no_other():
    _, V, M = rows_problem(200, 0.2)
    spoilt = M.copy()
    spoilt[3, :50] = np.nan
    others = np.arange(len(M)) != 3
    np.testing.assert_allclose(row_scores(spoilt, V)[others], row_scores(M, V)[others], rtol=0, atol=1e-12)


def test_a_row_of_holes_scores_nothing():
    _, V, M = rows_problem(200, 0.0)
    M[1] = np.nan
    assert not row_scores(M, V)[1].any()
