import numpy as np
import pytest
from all_pairs import all_pairs
from engines.conformance import (
    DTYPES,
    PRIORS,
    Case,
    Owner,
    ask_lines,
    same_lines,
    shared_lines,
    standardised,
    to_the_end,
)

from irpca.engines import ReferenceEngine
from irpca.lowrank import LowRank


class TestReference(Owner):
    """Its answers are held to formulas below: here they would only be compared with themselves."""

    def make(self, M):
        return ReferenceEngine(M)


@pytest.mark.parametrize(
    ("prior", "units", "K", "shape", "dtype"),
    all_pairs(PRIORS, [True, False], [0, 8, 3], [(7, 3)], DTYPES),
)
def test_lines_against_their_formulas(monkeypatch, prior, units, K, shape, dtype):
    """And so is the arithmetic of weights and posteriors, which compiled kernels are compared with."""
    to_the_end(monkeypatch)
    case, M, right = shared_lines(shape, K, units, prior, dtype)
    engine = ReferenceEngine(M)
    for (answer,), expected in zip(ask_lines((engine,), case), right, strict=True):
        same_lines(answer, expected, 1e-8)
    assert engine.reads == 2


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

    limit = standardised(case.M.shape)
    own = 1.25 * np.sqrt(np.outer(limit.rows, limit.cols))
    S, trim = engine.corruption(case.L, limit)
    np.testing.assert_allclose(S.toarray(), np.where(np.abs(R) > own, R, 0), rtol=0, atol=1e-13)
    assert trim.trimmed == (np.abs(R) > own).sum() > 0
