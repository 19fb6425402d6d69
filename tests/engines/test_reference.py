import numpy as np
import pytest
from engines.conformance import Case, Owner, few_settings, given_by, standard_noise

from irpca.engines import Ascent, ReferenceEngine
from irpca.engines.base import Standardised
from irpca.lowrank import LowRank


class TestReference(Owner):
    """Its answers are held to formulas below: here they would only be compared with themselves."""

    setting = given_by(few_settings([(1, 5), (7, 3), (60, 41)]))
    stored_setting = given_by(few_settings())

    def able(self):
        return {"cut", "dual", "whole"}

    def make(self, M):
        return ReferenceEngine(M)


def test_every_question_against_its_formula():
    """All other engines are compared with this one, so it is held to formulas written down once more."""
    case = Case((9, 6))
    R = case.M - case.L.left @ case.L.core @ case.L.right.T
    T = np.where(np.abs(R) <= 1, R, 0)
    engine = ReferenceEngine(case.M)

    G, trim = engine.core(case.L, 1.0, case.Q1, case.Q2)
    np.testing.assert_allclose(G, case.Q1.T @ T @ case.Q2, rtol=0, atol=1e-13)
    assert (trim.kept, trim.trimmed) == ((np.abs(R) <= 1).sum(), (np.abs(R) > 1).sum())
    assert trim.energy == pytest.approx(np.linalg.norm(T) ** 2, rel=1e-13)
    assert trim.largest == np.abs(T).max()
    assert trim.kept_share == (np.abs(R) <= 1).mean()

    normal, P = engine.normal(case.L, 1.0, case.Q1, case.Q2), np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(normal.gradient, G, rtol=0, atol=1e-13)
    fitted = np.where(np.abs(R) <= 1, case.Q1 @ P @ case.Q2.T, 0)
    np.testing.assert_allclose(normal.times(P), case.Q1.T @ fitted @ case.Q2, rtol=0, atol=1e-12)
    KX, KY = normal.products(LowRank(case.Q1, P, case.Q2), case.X, case.Y)
    np.testing.assert_allclose(KX, fitted @ case.X, rtol=0, atol=1e-12)
    np.testing.assert_allclose(KY, fitted.T @ case.Y, rtol=0, atol=1e-12)

    TX, TY, _ = engine.products(case.L, 1.0, case.X, case.Y)
    np.testing.assert_allclose(TX, T @ case.X, rtol=0, atol=1e-13)
    np.testing.assert_allclose(TY, T.T @ case.Y, rtol=0, atol=1e-13)
    KX, KY, _ = engine.products(case.L, 1.0, case.col_weights, case.row_weights, kept=True)
    np.testing.assert_allclose(KX, (np.abs(R) <= 1) @ case.col_weights, rtol=0, atol=1e-13)
    np.testing.assert_allclose(KY, (np.abs(R) <= 1).T @ case.row_weights, rtol=0, atol=1e-13)
    assert engine.products(case.L, 1.0)[:2] == (None, None)

    S, _ = engine.corruption(case.L, 1.0)
    np.testing.assert_allclose(S.toarray(), R - T, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(engine.whole(), case.M)

    limit = Standardised(standard_noise(case.M.shape), 1.25)
    s2 = np.outer(limit.noise.rows, limit.noise.cols)
    own = 1.25 * np.sqrt(s2 + np.minimum(limit.noise.row_spread @ limit.noise.col_spread.T, 9 * s2))
    S, trim = engine.corruption(case.L, limit)
    np.testing.assert_allclose(S.toarray(), np.where(np.abs(R) > own, R, 0), rtol=0, atol=1e-13)
    assert trim.trimmed == (np.abs(R) > own).sum() > 0


def test_thresholds_and_duals_against_their_formulas():
    case = Case((9, 6))
    R = case.M - case.L.left @ case.L.core @ case.L.right.T
    engine = ReferenceEngine(case.M)

    cut = engine.cut(case.L, 2, 3)
    above = np.abs(R) > np.maximum(cut.rows[:, None], cut.cols)
    assert (np.abs(R) > cut.rows[:, None]).sum(axis=1).tolist() == [2] * 9
    assert (np.abs(R) > cut.cols).sum(axis=0).tolist() == [3] * 6
    TX, TY, trim = engine.products(case.L, cut, case.X, case.Y)
    np.testing.assert_allclose(TX, np.where(above, 0, R) @ case.X, rtol=0, atol=1e-12)
    np.testing.assert_allclose(TY, np.where(above, 0, R).T @ case.Y, rtol=0, atol=1e-12)
    assert trim.trimmed == above.sum() > 0

    dual = engine.dual()
    Y = np.clip(0.1 * R, -0.25, 0.25)
    np.testing.assert_allclose(dual.products(np.eye(6), step=Ascent(case.L, 0.1, 0.25))[0], Y, rtol=0, atol=1e-14)
    Y2 = np.clip(Y + 0.5 * R, -0.25, 0.25)
    _, got, trim = dual.products(Y=np.eye(9), step=Ascent(case.L, 0.5, 0.25))
    np.testing.assert_allclose(got.T, Y2, rtol=0, atol=1e-14)
    assert trim.energy == pytest.approx((((Y2 - Y) / 0.5) ** 2).sum(), rel=1e-10)
    assert trim.kept == (np.abs(Y + 0.5 * R) <= 0.25).sum()

    boxed = engine.dual()
    S = np.clip(np.sign(R) * np.maximum(np.abs(R) - 2.5, 0), case.M - 3, case.M + 3)
    got, _, trim = boxed.products(np.eye(6), step=Ascent(case.L, 0.1, 0.25, box=3.0))
    np.testing.assert_allclose(got, 0.1 * (R - S), rtol=0, atol=1e-13)
    assert np.abs(case.M - S).max() <= 3
    assert trim.trimmed == (S != 0).sum()
