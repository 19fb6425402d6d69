"""The GPU engine: in torch and, by Triton's interpreter, as kernels on this machine; on a GPU where there is one."""

import importlib
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest
from engines.conformance import (
    TOLERANCE,
    ZETA,
    Case,
    EngineSuite,
    HolesSuite,
    LeanSuite,
    LinesCase,
    asked_of_holes,
    given_by,
    laid_out,
    listed,
    of_every_kind,
    same_of_latent_values,
    same_sparse,
    standardised,
    with_nan,
)
from scipy.sparse import csr_array

import irpca
from irpca import constants
from irpca.engines import MemoryEngine, ReferenceEngine, body, choose
from irpca.engines.base import Look
from irpca.engines.questions import Listing, Masked, Regression, Trimmed
from irpca.engines.sparse_part import places
from irpca.lowrank import LowRank
from irpca.solvers import SOLVERS

torch = pytest.importorskip("torch")
gpu = importlib.import_module("irpca.engines.gpu")
engine_module = importlib.import_module("irpca.engines.gpu.gpu_engine")
slabs = importlib.import_module("irpca.engines.gpu.slabs")
sparse_module = importlib.import_module("irpca.engines.gpu.sparse")
storage_module = importlib.import_module("irpca.engines.gpu.storage")
GPUEngine, DeviceSparse = gpu.GPUEngine, gpu.DeviceSparse

torch.set_num_threads(1)  # these matrices are small, and other tests want the cores
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
KERNELS = ["torch", "triton"]


def made(M, kernels="torch", **given):
    if kernels == "triton":
        pytest.importorskip("triton")
    return GPUEngine(M, device=DEVICE, kernels=kernels, **given)


def tensor(M):
    """On the device, with the strides of M as far as torch has such."""
    if (np.array(M.strides) < 0).any() or not M.size:
        return torch.from_numpy(np.array(M, order="C")).to(DEVICE)
    strides = [stride // M.itemsize for stride in M.strides]
    size = 1 + sum((n - 1) * stride for n, stride in zip(M.shape, strides, strict=True))
    room = torch.full((size,), torch.nan, dtype=torch.from_numpy(M[:0].copy()).dtype, device=DEVICE)
    there = room.as_strided(M.shape, strides)
    there.copy_(torch.from_numpy(np.array(M)))
    return there


@pytest.fixture
def small_slabs(monkeypatch):
    monkeypatch.setattr(engine_module, "AT_ONCE", 2000)
    monkeypatch.setattr(body, "WRITTEN_AT_ONCE", 300)
    monkeypatch.setattr(storage_module, "SCANNED", 300)
    monkeypatch.setattr(storage_module, "STREAMED_BYTES", 1 << 11)


@pytest.mark.usefixtures("small_slabs")
class TestTorch(EngineSuite):
    def make(self, M):
        return made(tensor(M))


@pytest.mark.usefixtures("small_slabs")
class TestStreamed(LeanSuite):
    """From host memory, a few rows at a time; of a matrix in Fortran order a few columns."""

    capabilities = frozenset()

    def make(self, M):
        return made(M, memory=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NumPy, which minds infinities
class TestTriton(LeanSuite):
    """As an engine; kernels themselves are compared with torch below."""

    setting = given_by([((17, 66), np.float32, "Fortran whole", True)])
    stored_setting = given_by([(np.float32, "C whole", True, False)])
    test_an_entry_at_the_threshold_is_kept = EngineSuite.test_an_entry_at_the_threshold_is_kept
    test_extremes_of_single_precision = EngineSuite.test_extremes_of_single_precision
    border = (40, 35)  # an interpreter is slow

    def make(self, M):
        return made(tensor(M), "triton")


# Kernels in Triton against the same functions in torch

# Shape, types of M and of the computation, layout, whether there are holes, and how many components L has.
SLABS = [
    ((1, 5), "float32", "C whole", True, 2),
    ((17, 33), "float64", "C padded", False, 70),
    ((32, 64), "float32", "C whole", False, 2),  # whole tiles, in the interpreter
    ((18, 40), "float32", "Fortran strided", True, 33),
    ((33, 17), "float64", "Fortran whole", True, 2),
    ((20, 7), "float32", "C reversed", False, 0),
    ((20, 33), "float16", "C whole", False, 1),
    ((20, 33), "bfloat16", "Fortran whole", True, 1),
]


@pytest.fixture(params=SLABS, ids=str)
def slab(request):
    """A slab, a low-rank matrix near it and another one, as tensors of the precision that is computed in."""
    shape, dtype, layout, holes, rank = request.param
    stored = getattr(torch, dtype)
    wide = torch.float64 if dtype == "float64" else torch.float32
    case = Case(shape, np.float64 if dtype == "float64" else np.float32, layout, rank)
    M = np.where(np.arange(case.M.size).reshape(shape) % 7 == 3, np.nan, case.M) if holes else case.M
    there = tensor(laid_out(M.astype(case.dtype), layout)).to(stored)
    factors = [[torch.as_tensor(B, dtype=wide, device=DEVICE) for B in L.thin()] for L in (case.L, case.other)]
    return slabs.DenseSlab(there, slice(0, shape[0]), slabs.Known(lambda: case.M[0])), *factors


def close(answer, right, tolerance):
    if right is None:
        assert answer is None
        return
    assert answer.dtype == right.dtype and answer.shape == right.shape
    size = float(right.abs().max()) if right.numel() else 0.0
    torch.testing.assert_close(answer, right, rtol=0, atol=tolerance * (1 + size), check_device=False)


@pytest.fixture
def triton_kernels():
    pytest.importorskip("triton")
    return importlib.import_module("irpca.engines.gpu.triton_kernels")


def limit_for(slab):
    """Away from what was rounded."""
    return 12.0 if slab.M.dtype in (torch.float16, torch.bfloat16) else ZETA


def rode_the_same(along, right):
    assert along[:3].tolist() == right[:3].tolist()  # kept, missing, beyond
    assert along[3:].tolist() == pytest.approx(right[3:].tolist(), rel=2e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_trim_equals_torch(slab, triton_kernels):
    slab, L, other = slab
    (n1, n2), like = slab.M.shape, L[0]
    wide = 130 if n2 == 64 else 3  # more than a kernel multiplies with at a time
    X, Y = (torch.randn((n, width), dtype=like.dtype).to(DEVICE) for n, width in ((n2, wide), (n1, 2)))
    decides = Trimmed(*L, limit_for(slab))
    kept, masked = replace(decides, ones=True), Masked(*other, decides)
    questions = (decides, X, Y), (kept, X, None), (masked, None, Y), (masked, X, None), (decides, None, None)
    for asked, *blocks in questions:
        *products, along = triton_kernels.trim(slab, asked, *blocks)
        *right, right_along = slabs.trim(slab, asked, *blocks)
        for product, expected in zip(products, right, strict=True):
            close(product, expected, 1e-12 if like.dtype == torch.float64 else 2.0**-13)
        rode_the_same(along, right_along)
    assert slab.known.holes == bool(slab.M.isnan().any())  # met on the way


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_find_equals_torch(slab, triton_kernels):
    slab, L, _ = slab
    by_scale = standardised(slab.M.shape).converted(lambda a: torch.as_tensor(a, dtype=L[0].dtype, device=DEVICE))
    zeta = limit_for(slab)
    for limit in (zeta, by_scale if zeta == ZETA else replace(by_scale, limit=zeta)):
        S, along = triton_kernels.find(slab, Listing(*L, limit))
        right, right_along = slabs.find(slab, Listing(*L, limit))
        same_sparse(S.to_scipy(), right.to_scipy(), S.dtype.type)
        rode_the_same(along, right_along)
        for axis in (0, 1):
            np.testing.assert_array_equal(S.counts[axis], right.flagged(axis))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype", "layout"), [((30, 17), "float64", "C padded"), ((9, 70), "float32", "Fortran whole")]
)
def test_weigh_equals_torch(units, shape, dtype, layout, triton_kernels):
    case = LinesCase(shape, units=units)
    case.M[3, 4] = np.nan
    M = tensor(laid_out(case.M.astype(dtype), layout))
    asked = Regression(0, case.U, case.V, replace(case.noise, units=None), col_units=case.noise.units)
    asked = asked.converted(lambda a: torch.as_tensor(a, device=DEVICE))
    slab = slabs.DenseSlab(M, slice(0, shape[0]), slabs.Known(lambda: case.M[0]))
    (*answer, sums), (*right, right_sums) = (by.weigh(slab, asked) for by in (triton_kernels, slabs))
    for one, other in zip((*answer, *sums), (*right, *right_sums), strict=True):
        close(one, other, 1e-11)


# Holes: as NaN, and as entries that are not stored


def csr_tensor(M):
    S = M if isinstance(M, csr_array) else listed(M, ~np.isnan(M))
    parts = (torch.from_numpy(part.copy()) for part in (S.indptr, S.indices, S.data))
    return sparse_module.csr_tensor(*parts, S.shape).to(DEVICE)


KINDS = {
    "torch": lambda M: made(tensor(with_nan(M))),
    "streamed": lambda M: made(with_nan(M), memory=0),
    "streamed to kernels": lambda M: made(np.asfortranarray(with_nan(M)), "triton", memory=0),
    "sparse tensor": lambda M: made(csr_tensor(M)),
    "sparse array": lambda M: made(M),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("small_slabs")
class TestHoles(HolesSuite):
    shape = (30, 37)
    hole = asked_of_holes(KINDS, ["2 %", "50 %", "95 %", "empty rows", "empty columns", "50 %"])

    def make(self, way, entries):
        return KINDS[way](entries)

    def test_nothing_observed(self):
        for make in KINDS.values():
            with pytest.raises(ValueError, match="every cell of M is missing"):
                make(csr_array((4, 3))).core(LowRank.zero((4, 3)), 1.0, np.ones((4, 1)), np.ones((3, 1)))
        with pytest.raises(ValueError, match="every cell of M is missing"):
            _ = made(tensor(np.full((4, 3), np.nan)), holes=True).counts


# The same answer twice, with all digits


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kernels", KERNELS)
def test_the_same_question_has_the_same_answer(kernels):
    case = Case((32, 64), np.float32)
    engine = made(tensor(case.M), kernels)
    first, again = (engine.core(case.L, ZETA, case.Q1, case.Q2)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_what_the_user_set_for_products_stays(monkeypatch):
    """Residuals need all digits, whatever the user lets others lose."""
    case, asked, during = Case((40, 33), np.float32), slabs.trim, []

    def spied(*args):
        during.append(torch.get_float32_matmul_precision())
        return asked(*args)

    monkeypatch.setattr(slabs, "trim", spied)
    torch.set_float32_matmul_precision("medium")
    try:
        made(tensor(case.M)).core(case.L, ZETA, case.Q1, case.Q2)
        assert during == ["highest"] and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


# S on the device


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_large_S_stays_on_the_device(kernels, monkeypatch):
    monkeypatch.setattr(engine_module, "SMALL", 100)
    case = Case((40, 33), np.float32)
    S, trim = made(tensor(case.M), kernels).corruption(case.L, ZETA)
    right = ReferenceEngine(case.M).corruption(case.L, ZETA)[0]
    assert isinstance(S, DeviceSparse) and S.nnz == trim.trimmed and S.dtype == np.float32
    assert kernels == "torch" or S.counts is not None  # whoever wants them need not wait for S
    same_sparse(S.to_scipy(), right, np.float32)
    for axis in (0, 1):
        np.testing.assert_array_equal(S.flagged(axis), np.bincount(right.nonzero()[axis], minlength=case.M.shape[axis]))
    rows, cols = places(S)
    kept = S.only((rows % 3 > 0) & (cols % 2 > 0)).to_scipy().toarray()
    chosen = np.outer(*(np.arange(n) % k > 0 for n, k in zip(case.M.shape, (3, 2), strict=True)))
    np.testing.assert_array_equal(kept != 0, (right.toarray() != 0) & chosen)
    dense = S.tensor().to_dense().cpu().numpy()
    np.testing.assert_allclose(dense, right.toarray(), rtol=0, atol=31 * TOLERANCE[np.float32])
    assert isinstance(made(case.M).corruption(case.L, ZETA)[0], csr_array)  # moved from NumPy: back to it
    same_sparse(S.T.to_scipy(), right.T.tocsr(), np.float32)
    monkeypatch.setattr(sparse_module, "LONGEST", S.nnz - 1)  # as if short numbers could not count them
    assert S.tensor().crow_indices().dtype == torch.int64
    assert torch.equal(S.tensor().to_dense().cpu(), torch.from_numpy(dense))


def test_what_solvers_look_at_in_host_memory_comes_back_there():
    assert constants.BUDGET.memory <= engine_module.SMALL


# Whole fits


@pytest.mark.parametrize("given", ["tensor", "array"])
def test_an_exact_fit_equals_that_in_memory(given):
    p = irpca.datasets.make_problem(300, 200, d1=8, d2=6, rank=2, corruption=0.2)
    engine = made(torch.from_numpy(p.M).to(DEVICE) if given == "tensor" else p.M)
    result, right = (irpca.solve(p.M, p.F1, p.F2, engine=owner) for owner in (engine, MemoryEngine(p.M)))
    assert result.status.ok and result.rank == 2 and p.relative_error(result.L) < 1e-10
    np.testing.assert_array_equal(result.S.indices, right.S.indices)
    assert result.engine == f"gpu ({engine.ran})"


@pytest.mark.parametrize("features", [True, False])
def test_a_noisy_fit_with_holes_equals_that_in_memory(features):
    p = irpca.datasets.make_problem(120, 90, d1=6, d2=5, rank=2, corruption=0.05, noise=0.1, random_state=3)
    M = p.M.copy()
    M[np.random.default_rng(0).random(M.shape) < 0.1] = np.nan
    F, rank = ((p.F1, p.F2), "auto") if features else ((None, None), 2)  # without features, to choose one takes long
    engines = made(M, holes=True), MemoryEngine(M, holes=True)
    result, right = (irpca.solve(M, *F, rank=rank, engine=owner) for owner in engines)
    assert (result.status, result.rank, result.usable) == (right.status, right.rank, right.usable)
    np.testing.assert_allclose(result.L.dense(), right.L.dense(), rtol=0, atol=1e-6 * np.abs(right.L.dense()).max())


def solved(M, p, solver, engine, **options):
    """By a solver that is told what it asks for."""
    options |= {} if SOLVERS[solver].rank == "found" else {"rank": 2}
    options |= {"corruption": 0.2} if "corruption" in SOLVERS[solver].options else {}
    features = (p.F1, p.F2) if SOLVERS[solver].features else ()
    return irpca.solve(M, *features, solver=solver, engine=engine, **options)


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "irpca"])
def test_every_solver(solver):
    p = irpca.datasets.make_problem(60, 50, d1=4, d2=4, rank=2, corruption=0.05)
    result, right = (solved(p.M, p, solver, engine) for engine in (made(p.M), "memory"))
    assert result.status is right.status
    np.testing.assert_allclose(result.L.dense(), right.L.dense(), rtol=0, atol=1e-6 * np.abs(p.M).max())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_it_says_what_ran():
    """M as a whole is looked through by torch, also where there are kernels."""
    case = Case((7, 3), np.float32)
    engine = made(tensor(case.M), "triton")
    assert engine.ran.startswith("triton on")
    engine.whole()
    assert engine.ran.startswith("torch on")
    engine.core(case.L, ZETA, case.Q1, case.Q2)
    assert engine.ran.startswith("torch and triton on")
    assert made(case.M, memory=0).ran.endswith(", streamed")


def test_a_survey_is_of_M_as_it_is_then():
    M = torch.zeros((4, 3), device=DEVICE)
    engine, at = made(M), (np.array([1]), np.array([2]))
    engine.survey([Look(cells=at)])
    M[1, 2] = 5
    assert engine.entries(*at) == 0  # as it was seen
    engine.survey([Look(cells=at)])
    assert engine.entries(*at) == 5


@pytest.mark.usefixtures("small_slabs")
def test_latent_values_that_find_no_room_are_made_in_every_read(monkeypatch):
    """Of half precision in single: in that, few ordered values would not be told from others."""
    monkeypatch.setattr(storage_module, "ROOM", 0.0)
    M, maps = of_every_kind(Case((30, 17), np.float32).M)
    engine = made(tensor(M.astype(np.float16)))
    assert engine.mapped(maps).capabilities == frozenset()
    same_of_latent_values(engine, M.astype(np.float16).astype(np.float32), maps)


def test_a_streamed_matrix_is_never_whole():
    p = irpca.datasets.make_problem(30, 20, d1=3, d2=3, rank=1, corruption=0.1)
    with pytest.raises(NotImplementedError, match=r"solver='rpca_gd' works on all of M .*the gpu engine does not have"):
        irpca.solve(p.M, solver="rpca_gd", rank=1, corruption=0.2, engine=made(p.M, memory=0))


def test_a_dense_matrix_that_does_not_fit_beside_M_is_refused(monkeypatch):
    monkeypatch.setattr(engine_module, "free_memory", lambda _: 500.0)
    M = np.ones((10, 10), np.float32)
    made(M).whole()
    for other in (csr_tensor(M), torch.ones((10, 10), dtype=torch.float16), np.ones((20, 10))):
        with pytest.raises(MemoryError, match=r"keeps another of that size: .* GB more"):
            made(other).whole()


@pytest.mark.parametrize("solver", [name for name, solver in SOLVERS.items() if solver.needs])
@pytest.mark.parametrize("kind", ["float16", "sparse", "NaN"])
def test_dense_solvers_on_other_tensors(solver, kind):
    """Half precision, a list of observed entries, and NaN: the answer is that of the same numbers in memory."""
    p = irpca.datasets.make_problem(60, 50, d1=4, d2=4, rank=2, corruption=0.05)
    M = p.M.astype(np.float16 if kind == "float16" else float)
    if kind != "float16":
        M[np.random.default_rng(0).random(M.shape) < 0.1] = np.nan
    given = csr_tensor(M) if kind == "sparse" else torch.from_numpy(M).to(DEVICE)
    result = solved(M, p, solver, made(given), max_iter=10)
    right = solved(M.astype(np.float32) if kind == "float16" else M, p, solver, "memory", max_iter=10)
    tolerance = np.abs(right.L.dense()).max() * (1e-4 if kind == "float16" else 1e-9)
    np.testing.assert_allclose(result.L.dense(), right.L.dense(), rtol=0, atol=tolerance)
    assert result.n_observed == right.n_observed


# Which engine, and what is refused


def test_without_a_gpu_it_is_refused():
    if CUDA:
        assert choose(np.ones((3, 2)), "gpu").name == "gpu"
        return
    for M in (np.ones((3, 2)), torch.ones((3, 2))):
        with pytest.raises(ValueError, match="engine='gpu' needs a GPU, and torch finds none"):
            choose(M, "gpu")


def test_a_tensor_on_the_cpu_stays_in_memory():
    assert choose(np.ones((3, 2)), "auto").name == "memory"
    assert made(torch.ones((3, 2), device=DEVICE)).in_kind and not made(np.ones((3, 2))).in_kind


def test_what_is_listed_must_be_finite():
    with pytest.raises(ValueError, match="1 of the observed entries of M are NaN or infinite"):
        made(csr_tensor(np.array([[1.0, np.inf]])))


def test_unknown_kernels_are_refused():
    with pytest.raises(ValueError, match="kernels='cuda' is unknown; choose"):
        made(np.ones((3, 2)), "cuda")


def test_memory_that_ends_is_told_and_nothing_is_left(monkeypatch):
    case = Case((40, 33))
    engine = made(tensor(case.M))

    made_before = []

    def full(*args):
        half_done = torch.ones(100)
        made_before.append(weakref.ref(half_done))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(slabs, "trim", full)
    with pytest.raises(MemoryError, match="streamed from host memory") as told:
        engine.core(case.L, ZETA, case.Q1, case.Q2)
    assert made_before[0]() is None and told.value is not None  # who keeps the error keeps nothing else
    monkeypatch.undo()
    engine.core(case.L, ZETA, case.Q1, case.Q2)


def test_an_exact_fit_is_checked_without_waiting_for_S(monkeypatch):
    """What the checks look at was looked at before the device was told to write S."""
    p = irpca.datasets.make_problem(500, 400, d1=8, d2=6, rank=2, corruption=0.1)
    engine = made(p.M)
    looked, corruption = [], engine.corruption

    def told(*asked):
        found = corruption(*asked)
        ask = engine.storage.at
        monkeypatch.setattr(engine.storage, "at", lambda *at: looked.append(at) or ask(*at))
        return found

    monkeypatch.setattr(engine, "corruption", told)
    right = irpca.solve(p.M, p.F1, p.F2, engine=MemoryEngine(p.M))
    result = irpca.solve(p.M, p.F1, p.F2, engine=engine)
    assert result.status.ok and not looked
    assert [doubt.kind for doubt in result.doubts] == [doubt.kind for doubt in right.doubts]


# What is said where something is lacking


def test_triton_that_is_not_installed(monkeypatch):
    monkeypatch.delattr(gpu, "triton_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "irpca.engines.gpu.triton_kernels", None)
    with pytest.raises(ValueError, match="kernels='triton' needs Triton, which is not installed; take kernels='torch'"):
        GPUEngine(np.ones((3, 2)), device=DEVICE, kernels="triton")
    assert GPUEngine(np.ones((3, 2)), device=DEVICE).ran.startswith("torch")


def test_torch_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "irpca.engines.gpu", None)
    with pytest.raises(
        ImportError, match=r"engine='gpu' needs PyTorch: pip install \"irpca\[gpu\]\"; or leave engine out"
    ):
        choose(np.ones((3, 2)), "gpu")


def test_a_tensor_on_a_gpu_is_not_read_from_host_memory(monkeypatch):
    M = torch.ones((3, 2), device=DEVICE)
    monkeypatch.setattr("irpca.engines.on_gpu", lambda given: given is M)
    with pytest.raises(
        ValueError, match=rf"engine='memory' needs M in host memory, and it is on {DEVICE}.*pass M\.cpu\(\)"
    ):
        choose(M, "memory")


def test_regressions_out_of_the_range_of_numbers():
    case = LinesCase((6, 5), prior="mean")
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(np.linalg.LinAlgError, match="not positive definite"),
    ):
        made(tensor(case.M)).solve_lines(0, np.zeros_like(case.U), 1e200 * case.V, case.noise, case.priors[0])
