"""The model of L: priors that features inform, few entries, new lines, the principal directions."""

import numpy as np
import pytest

from irpca import constants
from irpca.engines import MemoryEngine
from irpca.engines.base import Lines
from irpca.features import Features
from irpca.lowrank import LowRank
from irpca.model.factors import (
    Fit,
    Side,
    above_noise,
    basis_of,
    begin,
    moved,
    restricted,
)
from irpca.model.noise import NoiseModel


def table(n1=120, n2=60, rank=3, noise=0.1, seed=5, F1=None):
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((n1, rank)) if F1 is None else F1 @ rng.standard_normal((F1.shape[1], rank))
    L = U @ rng.standard_normal((rank, n2))
    return L, L + noise * rng.standard_normal(L.shape)


def begun(M, bases, tied, L0, s0, sample, directions, seed=0):
    n1, n2 = M.shape
    noise = NoiseModel(s0, np.full(n2, 1e-6), np.ones(n1), np.ones(n2), broad=0.0)
    return begin(MemoryEngine(M), bases, tied, L0, noise, sample, directions, np.random.default_rng(seed))


def fitted(M, F1=None, F2=None, tied=(False, False), rank=None, seed=11):
    bases = tuple(basis_of(Features.of(F, n), t) for F, n, t in zip((F1, F2), M.shape, tied, strict=True))
    seen = np.isfinite(M)
    rows, cols = np.nonzero(seen)
    middle = np.nanmedian(M, axis=0)
    L0 = LowRank(np.ones((len(M), 1)), np.eye(1), middle[:, None])
    s0 = 1.4826 * float(np.nanmedian(np.abs(M - middle)))
    sample = rows, cols, M[seen]
    fit = begun(M, bases, tied, L0, s0, sample, rank or constants.FIRST_COMPONENTS, seed)
    fit.directions = rank
    fit.run(refit_noise=False, step=3e-5)
    return fit


def error(fit, L):
    return np.linalg.norm(fit.L.dense() - L) / np.linalg.norm(L)


# Single steps, against their formulas


def a_side(n=6, K=2, seed=0, tied=False):
    """A side whose posteriors are uncertain."""
    rng = np.random.default_rng(seed)
    basis = np.column_stack([np.ones(n), np.tile([-1.0, 1.0], n // 2)])
    side = Side(rng.standard_normal((n, K)), basis, tied, np.full(K, 0.5), np.full(K, 2.0), np.ones(n, bool))
    A = rng.standard_normal((K, K))
    side.covariance, side.spread = 0.1 * A @ A.T, 0.5 + rng.random(n)
    return side


def a_fit(n1=6, n2=8, K=2, s=0.5, M=None, **fields):
    noise = NoiseModel(s, np.full(n2, 1e-6), np.linspace(1, 2, n1), np.linspace(0.5, 1, n2), broad=30.0)
    M = np.zeros((n1, n2)) if M is None else M
    rows, cols = (index.ravel() for index in np.indices(M.shape))
    return Fit(MemoryEngine(M), a_side(n1, K, 1), a_side(n2, K, 2), noise, (rows, cols, M.ravel()), 1e-10, **fields)


def test_a_side_is_what_its_basis_says_and_what_is_its_own():
    side = a_side()
    np.testing.assert_allclose(side.expected, side.basis @ np.linalg.lstsq(side.basis, side.mean, rcond=None)[0])
    total = sum(np.outer(u, u) + c * side.covariance for u, c in zip(side.mean, side.spread, strict=True))
    np.testing.assert_allclose(side.second, total)
    own = (side.mean - side.expected)[1:4]
    side.seen = np.isin(np.arange(6), [1, 2, 3])  # nothing is learned from lines without entries
    np.testing.assert_allclose(side.apart, own.T @ own / 3 + side.covariance)
    some = sum(np.outer(side.mean[i], side.mean[i]) + side.spread[i] * side.covariance for i in (1, 2, 3))
    np.testing.assert_allclose(side.second, some)
    tied = a_side(tied=True)
    np.testing.assert_array_equal(tied.mean, tied.expected)
    np.testing.assert_array_equal(tied.apart, tied.covariance)
    assert not tied.variance.any()


def test_priors_are_learned_from_posteriors():
    """Λ: squared distances from what is expected, the variance of each, and that of the coefficients."""
    rng, side = np.random.default_rng(3), a_side()
    mean, expected, variance = rng.standard_normal((3, 6, 2))
    coefficients, precision = rng.standard_normal((2, 2)), np.array([3.0, 5.0])
    fields = {"mean": mean, "expected": expected, "covariance": np.eye(2), "spread": np.full(6, 4.0), "sums": None}
    lines = Lines(**fields, variance=variance**2, coefficients=coefficients, precision=precision)
    side.take(lines, False, 0.0)
    np.testing.assert_array_equal(side.slope_variance, 2.0)
    np.testing.assert_array_equal(side.spread, 1.0)
    side.take(lines, True, 0.0)
    uncertain = 1 / (precision + 1 / 2.0)
    np.testing.assert_allclose(side.slope_variance, (coefficients**2).mean(axis=0) + uncertain)
    away = ((mean - expected) ** 2 + variance**2).mean(axis=0)
    np.testing.assert_allclose(side.variance, away + 2 * uncertain)
    side.take(lines, True, 1e3)
    np.testing.assert_array_equal(side.variance, 1e3)


def test_other_coordinates_are_the_same_factors():
    side = a_side()
    R = np.array([[2.0, 1.0], [0.0, 3.0]])
    new = side.turned(R)
    np.testing.assert_allclose(new.mean, side.mean @ R)
    np.testing.assert_allclose(new.expected, new.basis @ new.coefficients)
    np.testing.assert_allclose(new.covariance, R.T @ side.covariance @ R)
    np.testing.assert_allclose(new.variance, np.diag(R.T @ np.diag(side.variance) @ R))
    np.testing.assert_allclose(new.slope_variance, np.diag(R.T @ np.diag(side.slope_variance) @ R))


def test_lines_outside_a_part_are_where_they_are_expected():
    side = a_side()
    basis, index = np.column_stack([np.ones(9), np.arange(9.0)]), np.array([0, 2, 3, 5, 7, 8])
    new = side.extended(basis, side.coefficients, index, np.ones(9, bool))
    np.testing.assert_array_equal(new.mean[index], side.mean)
    others = np.setdiff1d(np.arange(9), index)
    np.testing.assert_allclose(new.mean[others], (basis @ side.coefficients)[others])
    np.testing.assert_array_equal(new.spread[index], side.spread)
    np.testing.assert_array_equal(new.spread[others], 1.0)


def test_the_variance_of_every_entry_of_L():
    """Of u · v with independent posteriors: v'Cu v + u'Cv u + tr(Cu Cv)."""
    fit = a_fit()
    row_spread, col_spread = fit.spreads
    for i, j in ((0, 0), (3, 5), (5, 7)):
        u, v = fit.rows.mean[i], fit.cols.mean[j]
        Cu, Cv = fit.rows.spread[i] * fit.rows.covariance, fit.cols.spread[j] * fit.cols.covariance
        expected = v @ Cu @ v + u @ Cv @ u + np.sum(Cu * Cv)
        assert row_spread[i] @ col_spread[j] == pytest.approx(expected)


def test_how_far_L_moved():
    rng = np.random.default_rng(0)
    A, B = (LowRank(rng.standard_normal((6, 2)), np.eye(2), rng.standard_normal((5, 2))) for _ in range(2))
    assert moved(A, B) == pytest.approx(np.linalg.norm(A.dense() - B.dense()) / np.linalg.norm(A.dense()))
    zero = LowRank(np.zeros((6, 1)), np.eye(1), np.zeros((5, 1)))
    assert moved(zero, zero) == 0.0 and moved(zero, A) == 1.0


def test_a_basis_has_columns_of_mean_square_one():
    F = np.random.default_rng(0).standard_normal((50, 3))
    for tied, width in ((True, 3), (False, 4)):
        basis = basis_of(Features.of(F, 50), tied)
        np.testing.assert_allclose(basis.T @ basis / 50, np.eye(width), atol=1e-10)
        both = np.column_stack([basis, F] if tied else [basis, F, np.ones(50)])
        assert np.linalg.matrix_rank(both) == width
    constant = Features.of(np.column_stack([F, np.ones(50)]), 50)
    assert basis_of(constant, False).shape == (50, 4)  # it is among the features
    np.testing.assert_array_equal(basis_of(Features.identity(5), False), np.ones((5, 1)))


def test_residuals_are_in_units_of_their_row_and_column():
    M = np.random.default_rng(0).standard_normal((6, 8))
    fit = a_fit(M=M)
    expected = (M - fit.L.dense()) / np.sqrt(np.outer(fit.noise.rows, fit.noise.cols))
    np.testing.assert_allclose(fit.residuals, expected.ravel())


# Lines that are fitted again


@pytest.mark.parametrize(("entries", "share", "poor"), [(400, 0.7, True), (400, 0.85, False), (16, 0.4, True)])
def test_a_line_with_fewer_inliers_than_usual(entries, share, poor):
    """Where 0.9 are usual: less than half of that, or less by more than chance, 5 · 0.5 / √400 = 0.125."""
    fit = a_fit(20, entries)
    shares = np.full(20, 0.9)
    shares[3] = share
    fit.trust = entries * shares, 20 * np.full(entries, 0.9)
    assert list(fit.poorly_fitted(0)) == ([3] if poor else [])
    assert len(fit.poorly_fitted(1)) == 0


def test_a_line_that_was_fitted_to_its_errors_is_fitted_again():
    _, M = table(80, 40, rank=2)
    fit = fitted(M, rank=2)
    right = fit.L.dense()[5]
    fit.rows.mean[5] = fit.rows.mean[5] + 30.0
    fit.trust = 40 * np.where(np.arange(80) == 5, 0.0, 0.9), np.full(40, 72.0)
    assert fit.refit_lines()
    assert np.abs(fit.L.dense()[5] - right).max() < 0.2
    fit.trust = np.full(80, 36.0), np.full(40, 72.0)
    before = fit.L.dense()
    fit.refit_lines()
    assert np.abs(fit.L.dense() - before).max() < 0.2


# Where a fit begins


def test_a_fit_begins_at_its_start_with_room_for_more():
    rng = np.random.default_rng(0)
    L0 = LowRank.from_product(rng.standard_normal((30, 2)), rng.standard_normal((20, 2)))
    M = L0.dense()
    rows, cols = (index.ravel() for index in np.indices(M.shape))
    values = M.ravel() + np.tile([-2.0, 2.0], 300)
    bases = np.ones((30, 1)), np.ones((20, 1))
    fit = begun(M, bases, (False, False), L0, 0.25, (rows, cols, values), 8)
    assert fit.rank == 8 and fit.directions is None
    np.testing.assert_allclose(fit.L.dense(), M, atol=1e-10)
    np.testing.assert_allclose(
        np.linalg.norm(fit.rows.mean[:, :2], axis=0) ** 2 / 30, np.linalg.norm(fit.cols.mean[:, :2], axis=0) ** 2 / 20
    )
    assert fit.cols.mean[:, 2:].std() == pytest.approx(0.6 * 0.5, rel=0.2)
    np.testing.assert_allclose(fit.rows.variance[2:], 0.25)
    np.testing.assert_allclose(fit.rows.variance[:2], (fit.rows.mean[:, :2] ** 2).mean(axis=0))
    assert fit.noise.broad == pytest.approx(3 * 2.0 + 0.25) and fit.noise.s == 0.25
    assert begun(M, bases, (False, False), L0, 0.25, (rows, cols, values), 99).rank == 20
    tied = begun(M, (np.eye(30, 3), bases[1]), (True, False), L0, 0.25, (rows, cols, values), 8)
    assert tied.rank == 3  # no more than a side that its features determine has coordinates


def test_components_hidden_by_noise_are_dropped():
    """Of an energy of 3 s² √(n1 n2) at most: a weaker one adds more error than it removes."""
    for times, rank in ((1.05, 2), (0.95, 1)):
        fit = a_fit(30, 20, s=0.1)
        fit.noise.rows, fit.noise.cols = np.ones(30), np.ones(20)
        Q1, Q2 = (np.linalg.qr(np.random.default_rng(n).standard_normal((n, 2)))[0] for n in (30, 20))
        energy = np.array([99.0, times * 3 * 0.01 * np.sqrt(600)])
        fit.rows.mean, fit.cols.mean = Q1 * energy**0.25, Q2 * energy**0.25
        fit.rows.covariance, fit.cols.covariance = np.zeros((2, 2)), np.zeros((2, 2))
        assert fit.principal().rank == rank
        fit.directions = 2
        assert fit.principal().rank == 2


# Whole fits


def test_features_help_where_few_entries_are_seen():
    rng = np.random.default_rng(4)
    F1 = rng.standard_normal((80, 4))
    L, M = table(80, 30, F1=F1, noise=0.3)
    M[rng.random(M.shape) < 0.8] = np.nan
    assert error(fitted(M, F1), L) < 0.6 * error(fitted(M), L)


def test_a_tied_side_is_in_the_span_of_its_features():
    rng = np.random.default_rng(4)
    F1 = rng.standard_normal((120, 5))
    L, M = table(F1=F1)
    fit = fitted(M, F1, tied=(True, False))
    Q = np.linalg.qr(F1)[0]
    assert np.linalg.norm(fit.L.left - Q @ (Q.T @ fit.L.left)) <= 1e-9 * np.linalg.norm(fit.L.left)
    assert error(fit, L) < 0.03


def test_principal_directions_leave_L_as_it_is():
    _, M = table()
    fit = fitted(M, rank=3)
    turned = fit.principal()
    assert moved(turned.L, fit.L) < 1e-3
    E1 = turned.rows.second / len(M)
    np.testing.assert_allclose(E1, np.diag(np.diag(E1)), atol=1e-8 * np.abs(E1).max())
    np.testing.assert_allclose(turned.cols.second / M.shape[1], E1, atol=1e-8 * np.abs(E1).max())  # equally scaled


def test_a_basis_of_some_lines_spans_the_same():
    basis = basis_of(Features.of(np.random.default_rng(0).standard_normal((50, 4)), 50), False)
    new, R = restricted(basis, np.arange(0, 50, 2))
    np.testing.assert_allclose(new @ R, basis[::2], atol=1e-10)
    np.testing.assert_allclose(new.T @ new / 25, np.eye(new.shape[1]), atol=1e-10)


# Components that a fit lacks


@pytest.mark.parametrize("components", [0, 1, 3])
def test_components_stand_out_of_noise_whatever_its_variances(components):
    """Rows and columns of unequal noise, a third of the entries missing, and lines without any."""
    rng = np.random.default_rng(components)
    spread = np.multiply.outer(10 ** rng.uniform(-1, 1, 200), 10 ** rng.uniform(-1, 1, 150))
    signal = 0.4 * rng.standard_normal((200, components)) @ rng.standard_normal((components, 150))
    Z = np.where(rng.random(spread.shape) < 0.67, spread * (rng.standard_normal(spread.shape) + signal), 0.0)
    Z[3], Z[:, 5] = 0.0, 0.0
    assert above_noise(Z) == components
    assert above_noise(np.zeros((4, 3))) == 0
