import numpy as np
import pytest
from engines.conformance import Case, EngineSuite

from irpca.engines import ReferenceEngine
from irpca.engines.base import Transposed


class TestReference(EngineSuite):
    def make(self, M):
        return ReferenceEngine(M)


class TestTransposed(EngineSuite):
    def make(self, M):
        return Transposed(ReferenceEngine(M.T))


def test_every_question_against_its_formula():
    """All other engines are compared with this one, so it is held to formulas written down once more."""
    case = Case((9, 6))
    R = case.M - case.L.left @ case.L.core @ case.L.right.T
    judged = case.M - case.about.left @ case.about.core @ case.about.right.T
    T = np.where(np.abs(R) <= 1, R, 0)
    engine = ReferenceEngine(case.M)

    G, trim = engine.core(case.L, 1.0, case.Q1, case.Q2)
    np.testing.assert_allclose(G, case.Q1.T @ T @ case.Q2, rtol=0, atol=1e-13)
    assert (trim.kept, trim.trimmed) == ((np.abs(R) <= 1).sum(), (np.abs(R) > 1).sum())
    assert trim.energy == pytest.approx(np.linalg.norm(T) ** 2, rel=1e-13)
    assert trim.largest == np.abs(T).max()
    assert trim.kept_share == (np.abs(R) <= 1).mean()

    G, trim = engine.core(case.L, 1.0, case.Q1, case.Q2, about=case.about)
    kept = np.abs(judged) <= 1
    assert kept.sum() == trim.kept != (np.abs(R) <= 1).sum()  # else the case would not tell the two apart
    np.testing.assert_allclose(G, case.Q1.T @ np.where(kept, R, 0) @ case.Q2, rtol=0, atol=1e-12)

    TX, sums, _ = engine.times(case.L, 1.0, case.X, case.col_weights)
    np.testing.assert_allclose(TX, T @ case.X, rtol=0, atol=1e-13)
    np.testing.assert_allclose(sums, (np.abs(R) <= 1) @ case.col_weights, rtol=0, atol=1e-13)

    TY, sums, _ = engine.t_times(case.L, 1.0, case.Y, case.row_weights)
    np.testing.assert_allclose(TY, T.T @ case.Y, rtol=0, atol=1e-13)
    np.testing.assert_allclose(sums, (np.abs(R) <= 1).T @ case.row_weights, rtol=0, atol=1e-13)

    S, _ = engine.corruption(case.L, 1.0)
    np.testing.assert_allclose(S.toarray(), R - T, rtol=0, atol=1e-13)
