"""What the dense methods share, in many blocks and on several threads, against the formulas on whole matrices."""

import numpy as np
import pytest
import transcriptions

from irpca.engines import MemoryEngine
from irpca.lowrank import LowRank
from irpca.solvers import dense
from irpca.solvers.convex import Multipliers
from irpca.solvers.dense import DenseMatrix
from irpca.solvers.gradient import _trim

TOLERANCE = {np.float64: 1e-12, np.float32: 1e-4}


def tensors(M):
    gpu, torch = pytest.importorskip("irpca.engines.gpu"), pytest.importorskip("torch")
    return gpu.GPUEngine(torch.from_numpy(M), device="cpu")


STORAGES = {
    "C": MemoryEngine,
    "Fortran": lambda M: MemoryEngine(np.asfortranarray(M)),
    "torch": tensors,
}
SETTINGS = [("C", np.float64, True, 3.0), ("Fortran", np.float32, False, 3.0), ("torch", np.float64, True, np.inf)]


@pytest.fixture(params=SETTINGS, ids=lambda p: f"{p[0]}, {p[1].__name__}, holes {p[2]}, box {p[3]}")
def setting(request, monkeypatch):
    """The matrix, how it is stored, where it is observed, an L, a box, and a tolerance."""
    monkeypatch.setattr(dense, "SMALL", 0)
    monkeypatch.setattr(dense, "BLOCK", 100)
    monkeypatch.setattr(dense, "BLOCK_OF_TENSOR", 100)
    monkeypatch.setattr(dense, "available_cores", lambda: 3)
    storage, dtype, holes, box = request.param
    rng = np.random.default_rng(0)
    M = (5 * rng.standard_normal((31, 23))).astype(dtype)
    there = rng.random(M.shape) > 0.2 if holes else np.full(M.shape, True)
    L = LowRank.from_product(rng.standard_normal((31, 2)), rng.standard_normal((23, 2)))
    owner = DenseMatrix(STORAGES[storage](np.where(there, M, dtype(np.nan))))
    return owner, M.astype(float), there, L, box, TOLERANCE[dtype]


def turned(owner, A):
    """An array beside M, in the orientation of M, on the host."""
    A = owner.host(A)
    return A.T if owner.turned else A


def test_steps_of_the_multiplier(setting):
    owner, M, there, L, box, tolerance = setting
    rule = Multipliers(0.25, 0.5, 0.1, 1.5, box, 1.0, 1.0, 1e-15)
    Y, expected = owner.zeros(), np.zeros(M.shape)
    R = np.where(there, M - L.dense(), 0)
    for penalty in (0.1, 0.5):
        trim = rule.ascend(owner, Y, L)
        rule.previous = 1.0  # the first step is over
        A = R + expected / penalty
        S = np.clip(transcriptions.soft(A, 0.25 / penalty), M - box, M + box) * there
        expected = penalty * (A - S)
        np.testing.assert_allclose(turned(owner, Y), expected, rtol=0, atol=tolerance)
        assert (trim.kept, trim.trimmed) == (np.count_nonzero(there & (S == 0)), np.count_nonzero(S))
        assert trim.energy == pytest.approx(((R - S) ** 2).sum(), rel=10 * tolerance)
        assert trim.largest == pytest.approx(np.abs(R - S).max(), rel=10 * tolerance)


def test_the_sparsifier(setting):
    owner, M, there, L, _, tolerance = setting
    T, R = owner.zeros(), np.where(there, M - L.dense(), 0)
    for share in (0.0, 0.29, 1.0):
        trim = _trim(owner, T, L, share)
        S = transcriptions.sparsify(R, share)
        np.testing.assert_allclose(turned(owner, T), R - S, rtol=0, atol=tolerance)
        assert (trim.kept, trim.trimmed) == (there.sum() - np.count_nonzero(S), np.count_nonzero(S))
        assert trim.energy == pytest.approx(((R - S) ** 2).sum(), rel=10 * tolerance)


def test_products(setting):
    owner, M, there, _, _, tolerance = setting
    rng = np.random.default_rng(1)
    T, X, Y = owner.zeros(), rng.standard_normal((23, 2)), rng.standard_normal((31, 3))
    _trim(owner, T, LowRank.zero(M.shape), 0.0)  # M, where it is observed
    reads, full = owner.engine.reads, np.where(there, M, 0)
    for answer, right in zip(owner.products(T, X, Y), (full @ X, full.T @ Y), strict=True):
        assert answer.dtype == np.float64
        np.testing.assert_allclose(answer, right, rtol=0, atol=100 * tolerance)
    assert owner.products(T, X)[1] is None and owner.products(T, Y=Y)[0] is None
    assert owner.engine.reads == reads + 3
