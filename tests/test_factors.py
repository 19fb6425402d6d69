"""The model of L: priors that features inform, few entries, new lines, the principal directions."""

import numpy as np
import pytest

from irpca import constants
from irpca.engines import MemoryEngine
from irpca.factors import basis_of, begin, moved, placed, restricted
from irpca.features import Features
from irpca.lowrank import LowRank


def table(n1=120, n2=60, rank=3, noise=0.1, seed=5, F1=None):
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((n1, rank)) if F1 is None else F1 @ rng.standard_normal((F1.shape[1], rank))
    L = U @ rng.standard_normal((rank, n2))
    return L, L + noise * rng.standard_normal(L.shape)


def fitted(M, F1=None, F2=None, tied=(False, False), rank=None, seed=11):
    bases = tuple(basis_of(Features.of(F, n), t) for F, n, t in zip((F1, F2), M.shape, tied, strict=True))
    seen = np.isfinite(M)
    rows, cols = np.nonzero(seen)
    middle = np.nanmedian(M, axis=0)
    L0 = LowRank(np.ones((len(M), 1)), np.eye(1), middle[:, None])
    s0 = 1.4826 * float(np.nanmedian(np.abs(M - middle)))
    least = np.full(M.shape[1], 1e-6)
    sample = rows, cols, M[seen]
    rng = np.random.default_rng(seed)
    return begin(MemoryEngine(M), bases, tied, L0, s0, least, rank, constants.MAX_AUTO_RANK, sample, rng).run()


def error(fit, L):
    return np.linalg.norm(fit.L.dense() - L) / np.linalg.norm(L)


def test_low_rank_and_noise_are_found_together():
    L, M = table()
    fit = fitted(M)
    oracle = np.linalg.svd(M)
    best = (oracle[0][:, :3] * oracle[1][:3]) @ oracle[2][:3]
    assert error(fit, L) <= 1.2 * np.linalg.norm(best - L) / np.linalg.norm(L)
    assert fit.noise.deviation == pytest.approx(0.1, rel=0.1)
    assert fit.principal().rank == 3


def test_pure_noise_has_no_direction():
    rng = np.random.default_rng(2)
    assert fitted(rng.standard_normal((100, 60))).principal().rank == 0


def test_gross_errors_hardly_move_it():
    L, M = table()
    rng = np.random.default_rng(9)
    wrong = rng.random(M.shape) < 0.2
    gross = rng.choice([-1, 1], M.shape) * rng.uniform(5, 9, M.shape)
    clean, spoilt = fitted(np.where(wrong, np.nan, M)), fitted(np.where(wrong, M + gross, M))
    assert error(spoilt, L) <= 1.2 * error(clean, L)
    assert spoilt.noise.gross == pytest.approx(0.2, abs=0.02)


def test_features_help_where_few_entries_are_seen():
    rng = np.random.default_rng(4)
    F1 = rng.standard_normal((150, 4))
    L, M = table(150, 40, F1=F1, noise=0.3)
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


def test_new_lines_are_placed_as_in_the_fit():
    L, M = table(200, 60)
    fit = fitted(M[:150])
    rows = fit.rows
    typical = float(np.sum(rows.covariance * fit.cols.second))
    X = M[150:].copy()
    X[:, :6] += 20  # a tenth of every new row is wrong
    found = placed(X, np.tile(rows.expected[0], (50, 1)), rows.variance, rows.covariance, fit.cols, fit.noise, typical)
    off = np.linalg.norm(found.mean @ fit.cols.mean.T - L[150:]) / np.linalg.norm(L[150:])
    assert off < 0.05


def test_a_new_line_does_not_depend_on_its_neighbours():
    _, M = table(200, 60)
    fit = fitted(M[:150])
    rows, X = fit.rows, M[150:].copy()
    X[1:] *= 100
    ask = rows.variance, rows.covariance, fit.cols, fit.noise, 1.0
    expected = np.tile(rows.expected[0], (50, 1))
    alone, together = placed(X[:1], expected[:1], *ask), placed(X, expected, *ask)
    np.testing.assert_allclose(together.mean[0], alone.mean[0], rtol=1e-3, atol=1e-3)


def test_principal_directions_leave_L_as_it_is():
    _, M = table()
    fit = fitted(M, rank=3)
    turned = fit.principal()
    assert moved(turned.L, fit.L) < 1e-3
    E1 = turned.rows.second / len(M)
    np.testing.assert_allclose(E1, np.diag(np.diag(E1)), atol=1e-8 * np.abs(E1).max())


def test_a_basis_of_some_lines_spans_the_same():
    basis = basis_of(Features.of(np.random.default_rng(0).standard_normal((50, 4)), 50), False)
    new, R = restricted(basis, np.arange(0, 50, 2))
    np.testing.assert_allclose(new @ R, basis[::2], atol=1e-10)
    np.testing.assert_allclose(new.T @ new / 25, np.eye(new.shape[1]), atol=1e-10)


def test_least_squares_that_diverge_are_no_exact_fit(monkeypatch):
    _, M = table(30, 20, rank=1)
    fit = fitted(M, rank=1)
    monkeypatch.setattr("irpca.factors.relative_distance", lambda *_: np.nan)
    with pytest.raises(FloatingPointError, match="diverged: there is no exact fit near this one"):
        fit.least_squares(1)
