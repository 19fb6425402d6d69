"""Torch tensors in, torch tensors out: solve() and the estimator, on the CPU and on a device.

The engine of the device is a stand-in, which computes on the CPU. Where there is no CUDA, so is the device: its tensors
are on the CPU, too, and called by another name.
"""

import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from mixed_columns import mixed
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

import irpca
from irpca import InductiveRobustPCA, answers, constants, containers, estimator, loop
from irpca.arrays import as_numpy, in_host_memory, is_sparse, is_tensor
from irpca.containers import taken
from irpca.engines import MemoryEngine, choose, sparse_part
from irpca.engines.sparse_part import to_host
from irpca.plots.fitted import Fitted

torch = pytest.importorskip("torch")
gpu_engine = pytest.importorskip("irpca.engines.gpu.gpu_engine")
DeviceSparse = gpu_engine.DeviceSparse
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # of torch: these are in beta state
PROBLEM = irpca.datasets.make_problem(80, 50, d1=4, d2=3, rank=2, corruption=0.1)
M, F1, F2 = PROBLEM.M, PROBLEM.F1, PROBLEM.F2
torch.set_num_threads(1)  # these tables are small, and other tests want the cores
CUDA = torch.cuda.is_available()
DEVICE = "cuda:0" if CUDA else "cpu:0"
FEW = 1000  # cells that fit into memory, in place of 2²⁴


def moved(S):
    """A CSR array on the device."""
    return DeviceSparse.of(S, DEVICE)


class Engine(MemoryEngine):
    """A stand-in for the GPU engine."""

    name, ran, brought = "gpu", "torch on cpu", 0

    def __init__(self, M):
        super().__init__(in_host_memory(M), holes=not is_sparse(M) and bool(M.isnan().any()))

    def corruption(self, L, limit):
        S, trim = super().corruption(L, limit)
        return (moved(S) if np.prod(S.shape) > constants.BUDGET.memory else S), trim


@pytest.fixture
def device(monkeypatch):
    """Tensors are on the device, or pass for it, and S of more than a few cells stays there."""

    def chosen(M, engine="auto"):
        return Engine(M) if is_tensor(M) else choose(M, engine)

    for module in (loop, answers, estimator):
        monkeypatch.setattr(module, "choose", chosen)
    if not CUDA:
        monkeypatch.setattr(containers, "on_gpu", is_tensor)
        for module in (containers, answers, estimator):
            monkeypatch.setattr(module, "device_of", lambda table: DEVICE if is_tensor(table) else "cpu")
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=FEW))
    bring = DeviceSparse.to_scipy

    def brought(S):
        Engine.brought += 1
        return bring(S)

    monkeypatch.setattr(DeviceSparse, "to_scipy", brought)
    monkeypatch.setattr(Engine, "brought", 0)
    return DEVICE


def tensor(A, dtype=None):
    return torch.tensor(A, dtype=dtype)


def there(A):
    return torch.tensor(A, device=DEVICE)


def compressed_rows(A, device="cpu", index=np.int64):
    """The entries that are not NaN, as a sparse tensor."""
    rows, cols = np.nonzero(~np.isnan(A))
    ends = np.r_[0, np.cumsum(np.bincount(rows, minlength=len(A)))]
    parts = ends.astype(index), cols.astype(index), A[rows, cols]
    return torch.sparse_csr_tensor(*(torch.tensor(part, device=device) for part in parts), A.shape)


def same(made, right, rtol=1e-9, device="cpu"):
    """A tensor has the values of an array, and its type."""
    assert isinstance(made, torch.Tensor) and not made.requires_grad
    assert made.device.type == torch.device(device).type
    assert_array_equal(made.cpu().numpy().dtype, right.dtype)
    assert_allclose(made.cpu().numpy(), right, rtol=rtol, atol=1e-12)


def same_there(made, right, rtol=1e-9):
    same(made, right, rtol, DEVICE)


def same_columns(found, right, rtol=1e-9, device=DEVICE):
    """A list of outliers, or of lines, has the columns of another one, as tensors."""
    assert list(found) == [name for name in right.dtype.names if name != "kind"]  # tensors hold no text
    for name, column in found.items():
        same(column, right[name], rtol, device)


def same_tables(found, right):
    for made, other in zip(found, right, strict=True):
        same_there(made, other)


# solve(): what goes in


class Exchanged:
    """An array of a library that knows DLPack, and nothing of NumPy."""

    def __init__(self, A, on=1, reached=True):
        self.A, self.on, self.reached = A, on, reached

    def __dlpack__(self, **asked):
        if self.on != 1 and not (self.reached and asked.get("dl_device") == (1, 0)):
            raise BufferError("it is on a device")
        return self.A.__dlpack__()

    def __dlpack_device__(self):
        return self.on, 0


class Unasked(Exchanged):
    """As CuPy, which refuses to become a NumPy array unasked."""

    def __array__(self, *args, **kwargs):
        raise TypeError("implicit conversion is not allowed")


FEATURES = {
    "plain": tensor,
    "parameter": lambda A: torch.nn.Parameter(tensor(A)),
    "strided": lambda A: tensor(np.repeat(A, 2, axis=1))[:, ::2],
    "DLPack": Exchanged,
    "DLPack on a device": lambda A: Exchanged(A, on=2),
    "CuPy": lambda A: Unasked(A, on=2),
}


@pytest.fixture(scope="module")
def right():
    return irpca.solve(M, F1, F2)


@pytest.mark.parametrize("made", FEATURES.values(), ids=FEATURES)
def test_features_of_any_library(made, right):
    result = irpca.solve(M, made(F1), made(F2))
    assert_array_equal(result.L.dense(), right.L.dense())


def test_features_of_an_estimator_may_be_tensors():
    plain = InductiveRobustPCA(2).fit(M, row_features=F1, col_features=F2)
    model = InductiveRobustPCA(2).fit(tensor(M), row_features=tensor(F1).requires_grad_(), col_features=Exchanged(F2))
    same(model.expected(), plain.expected())
    for F in (tensor(F1[:5]), Exchanged(F1[:5])):
        made, std = model.predict(F, return_std=True)
        same(made, plain.predict(F1[:5]))
        same(std, plain.predict(F1[:5], return_std=True)[1])
    assert isinstance(plain.predict(tensor(F1[:5])), torch.Tensor)
    assert isinstance(plain.predict(Exchanged(F1[:5])), np.ndarray)


REFUSED_FEATURES = {
    "sparse": (lambda: tensor(F1).to_sparse_csr(), "a tensor with the layout torch.sparse_csr; pass F1.to_dense"),
    "without values": (lambda: tensor(F1).to("meta"), "F1 is on the device 'meta'"),
    "one dimension": (lambda: tensor(F1)[:, 0], "F1 must have two dimensions"),
    "complex": (lambda: tensor(F1) + 0j, "F1 is complex"),
    "out of reach": (lambda: Exchanged(F1, on=2, reached=False), "Exchanged that does not become .*cupy.asnumpy"),
}


@pytest.mark.parametrize(("made", "message"), REFUSED_FEATURES.values(), ids=REFUSED_FEATURES)
def test_features_that_are_refused(made, message):
    with pytest.raises(ValueError, match=message):
        irpca.solve(M, made(), F2)


MATRICES = {
    "float64": lambda: tensor(M),
    "with gradients": lambda: tensor(M).requires_grad_(),
    "transposed": lambda: tensor(M.T.copy()).T,
    "compressed rows": lambda: tensor(M).to_sparse_csr(),
}


@pytest.mark.parametrize("made", MATRICES.values(), ids=MATRICES)
def test_matrices(made, right):
    given = made()
    result = irpca.solve(given, F1, F2)
    assert_allclose(result.L.dense(), right.L.dense(), rtol=1e-6)
    assert isinstance(result.S, csr_array) and result.engine == "memory"
    model = InductiveRobustPCA().fit(given, row_features=F1, col_features=F2)
    assert model.container_ == "torch"
    same(model.expected(), right.L.dense(), rtol=1e-6)
    same(model.repaired()[:3], model.repaired(given)[:3].numpy())
    assert given.requires_grad == (made is MATRICES["with gradients"])


def test_stored_entries_are_the_observed_ones():
    """Zeros too; what is not stored is missing, and filled."""
    A = np.where(np.arange(M.size).reshape(M.shape) % 7 == 0, np.nan, M)
    A[3, 3] = 0.0
    plain, model = InductiveRobustPCA(2).fit(A), InductiveRobustPCA(2).fit(compressed_rows(A))
    assert model.result_.n_observed == np.count_nonzero(~np.isnan(A))
    same(model.repaired(), plain.repaired(), rtol=1e-6)
    assert_array_equal(model.repaired(return_marks=True)[1], plain.repaired(return_marks=True)[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32, torch.bool])
def test_precision_of_matrices(dtype):
    A = tensor(np.round(20 * M)).to(dtype)
    wanted = np.float32 if dtype.is_floating_point else np.float64
    for given in (A, A.to(torch.float32).to_sparse_csr().to(dtype) if dtype.itemsize > 1 else A):
        held = in_host_memory(given)
        assert choose(given).dtype == wanted
        dense = held.toarray() if hasattr(held, "toarray") else held
        assert_array_equal(dense.astype(float), A.double().numpy())


REFUSED = {
    "COO": (lambda: tensor(M).to_sparse_coo(), r"layout torch.sparse_coo; pass M.to_sparse_csr\(\), whose stored"),
    "one dimension": (lambda: tensor(M[0]), r"two dimensions, got shape \(50,\)"),
    "empty": (lambda: tensor(M)[:0], r"M is empty: its shape is \(0, 50\)"),
    "complex": (lambda: tensor(M) + 0j, "M is complex"),
    "without values": (lambda: tensor(M).to("meta"), "M is on the device 'meta'"),
}


@pytest.mark.parametrize(("made", "message"), REFUSED.values(), ids=REFUSED)
def test_matrices_that_are_refused(made, message):
    for ask in (irpca.solve, InductiveRobustPCA().fit):
        with pytest.raises(ValueError, match=message):
            ask(made())


def test_a_tensor_on_the_cpu_is_not_copied():
    given = tensor(M)
    assert np.shares_memory(in_host_memory(given), given.numpy())
    assert np.shares_memory(taken(given).matrix, given.numpy())
    assert as_numpy(M, "M") is M


# solve(): S on the device


def test_outliers_stay_on_the_device(device):
    A = M.copy()
    A[5], A[:, 7] = np.nan, np.nan  # of these nothing is known
    plain, result = irpca.solve(A, None, F2), irpca.solve(there(A), None, there(F2))
    assert isinstance(result.S, DeviceSparse) and Engine.brought == 0
    assert (result.engine, plain.engine) == ("gpu (torch on cpu)", "memory")
    assert (result.S.to_scipy() != plain.S).nnz == 0
    assert not result.known[0][5] and result.S.flagged(0)[5] == 0
    assert (result.corruption, result.residual) == (plain.corruption, plain.residual)
    assert [str(doubt) for doubt in result.doubts] == [str(doubt) for doubt in plain.doubts]
    lines = result.summary().splitlines()
    assert lines[2].startswith("Outliers") and lines[2] in plain.summary()
    assert "engine gpu (torch on cpu)" in result.summary()


@pytest.mark.parametrize("form", [there, lambda A: compressed_rows(A, DEVICE)], ids=["dense", "listed"])
def test_columns_of_every_kind(form, device, monkeypatch, short_fits):
    """By the engine of the device itself: latent values, tables of what belongs to them, and lists of outliers."""
    A = mixed(400).to_numpy()
    plain = InductiveRobustPCA(columns={0: "logarithm"}, tol=0.01).fit(A)

    def chosen(M, engine="auto"):
        return gpu_engine.GPUEngine(M, device=DEVICE if CUDA else "cpu") if is_tensor(M) else choose(M, engine)

    for module in (loop, answers, estimator):
        monkeypatch.setattr(module, "choose", chosen)
    monkeypatch.setattr(gpu_engine, "SMALL", FEW)
    model = InductiveRobustPCA(columns={0: "logarithm"}, tol=0.01).fit(form(A))
    assert isinstance(model.sparse_, DeviceSparse) and model.result_.maps.names == plain.result_.maps.names
    same_tables((*model.expected(True), *model.interval()), (*plain.expected(True), *plain.interval()))
    same_tables(model.repaired(return_std=True), plain.repaired(return_std=True))
    for cut in ({}, {"fdr": 0.2}, {"threshold": 100.0}):
        same_columns(model.outliers(**cut), plain.outliers(**cut))
    right, rows = plain.repaired(A[:60]), there(A[:60])
    same_there(model.repaired(rows), right)


def test_outliers_that_are_too_many_for_the_host_are_not_brought(device, monkeypatch):
    S = csr_array(np.ones((30, 40)))
    there = moved(S)
    assert to_host(S, "a plot") is S
    assert (to_host(there, "a plot") != S).nnz == 0
    monkeypatch.setattr(sparse_part, "machine_memory", lambda: 4.0 * (1200 * 12 + 31 * 4) - 1)
    assert to_host(S, "a plot") is S
    with pytest.raises(MemoryError, match=r"a plot needs the 1,200 outliers in host memory.*S.*outliers_to"):
        to_host(there, "a plot")


# The estimator, on the device


NOISY = irpca.datasets.make_problem(60, 40, d1=3, d2=3, rank=2, corruption=0.1, noise=0.05)


def holed():
    A = NOISY.M.copy()
    A[np.random.default_rng(0).random(A.shape) < 0.1] = np.nan
    A[7], A[:, 3] = np.nan, np.nan
    return A


@cache
def fits(kind):
    """A model of an array, one of the same as a tensor on the device, and these."""
    exact = irpca.datasets.make_problem(60, 40, 3, 3, 2, 0.1).M
    A = {"exact": exact, "altproj": exact, "noisy": NOISY.M}.get(kind, holed())
    solver = "altproj" if kind == "altproj" else "irpca"
    given = compressed_rows(A, DEVICE) if kind == "compressed rows" else there(A)
    plain, model = (InductiveRobustPCA(2, solver=solver).fit(one) for one in (in_host_memory(given), given))
    assert isinstance(model.sparse_, DeviceSparse) and isinstance(plain.sparse_, csr_array) and plain.sparse_.nnz
    return plain, model, A, given


def twin(model):
    """The same model, with attributes of its own: copy() would bring it to the host."""
    made = object.__new__(type(model))
    vars(made).update(vars(model))
    return made


@pytest.fixture(params=["noisy", "holes", "exact", "altproj", "compressed rows"])
def both(request, device):
    """As ``fits``, fitted once for all tests."""
    plain, model, *given = fits(request.param)
    return twin(plain), twin(model), *given


def test_tables_are_made_on_the_device(both, device):
    plain, model, _, given = both
    assert (model.container_, model._device) == ("torch", device)
    assert model._M.data_ptr() == given.data_ptr() if not is_sparse(given) else is_sparse(model._M)
    same_tables(model.expected(return_std=True), plain.expected(return_std=True))
    *tables, marks = model.repaired(return_std=True, return_marks=True)
    *others, plain_marks = plain.repaired(return_std=True, return_marks=True)
    same_tables(tables, others)
    assert_array_equal(marks, plain_marks)
    assert Engine.brought == 0


CUTS = [{}, {"most": 3}, {"fdr": 0.2, "most": 4}, {"fdr": 0.2}, {"probability": 0.9}, {"threshold": 0.1}, {"most": 0}]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("both", ["noisy", "holes", "exact", "altproj"], indirect=True)
def test_lists_of_outliers_are_made_on_the_device(both, cut, monkeypatch):
    plain, model, *_ = both
    monkeypatch.setattr(irpca.tables, "JUDGED_CELLS", 50)  # several pieces
    if plain.solver == "altproj" and {"fdr", "probability"} & set(cut):
        for one in (plain, model):
            with pytest.raises(ValueError, match="fdr and probability need a model of the noise"):
                one.outliers(**cut)
        return
    same_columns(model.outliers(**cut), plain.outliers(**cut))
    if "most" not in cut:
        same_there(model.repaired(**cut), plain.repaired(**cut))
    assert Engine.brought == 0


def test_what_else_is_answered(both):
    plain, model, *_ = both
    head = "Clearest outliers (row, column):"
    assert model.summary().partition(head)[2] == plain.summary().partition(head)[2] != ""
    assert Engine.brought == 0
    for ask in ("outlier_rows", "outlier_columns"):
        same_columns(getattr(model, ask)(), getattr(plain, ask)())
    assert Engine.brought == 2  # this is counted in host memory


def test_new_rows(both, device):
    plain, model, A, _ = both
    A = A[~np.isnan(A).all(axis=1)]
    for some in (A[:40], A[:10]):  # some are on the device, some too few for that
        for rows in (there(some), some):
            same_there(model.repaired(rows), plain.repaired(some))
            assert_array_equal(model.repaired(rows, return_marks=True)[1], plain.repaired(some, return_marks=True)[1])
            same_columns(model.outliers(rows), plain.outliers(some), rtol=1e-8)
        assert_allclose(model.transform(there(some)), plain.transform(some), rtol=1e-9, atol=1e-12)
        assert model.score(there(some)) == pytest.approx(plain.score(some))
        assert plain.score(there(some)) == pytest.approx(plain.score(some))
    same_there(model.inverse_transform(there(model.transform(some))), plain.inverse_transform(plain.transform(some)))
    assert model.decompose(there(A)).engine == "gpu (torch on cpu)"
    assert isinstance(plain.repaired(there(A)), np.ndarray)


def test_a_saved_model_answers_on_the_cpu(both, tmp_path):
    plain, model, *_ = both
    model.save(tmp_path / "m.irpca")
    for again in (irpca.load(tmp_path / "m.irpca"), pickle.loads(pickle.dumps(model))):
        assert isinstance(again.sparse_, csr_array) and again.sparse_ is again.result_.S
        assert again._device == "cpu" and again._M is None and again.container_ == "torch"
        same(again.expected(), plain.expected())
        same_columns(again.outliers(), plain.outliers(), device="cpu")
    assert isinstance(model.sparse_, DeviceSparse)
    irpca.persistence.save(model.result_, tmp_path / "r.irpca")
    assert (plain.sparse_ != irpca.persistence.load_result(tmp_path / "r.irpca").S).nnz == 0


def test_pictures_and_reports_bring_the_list_of_outliers_to_the_host(both, tmp_path):
    plain, model, *_ = both
    assert (Fitted(model).outliers != plain.sparse_).nnz == 0
    assert Engine.brought == 0
    irpca.report.write(model, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_a_small_matrix_on_the_device(device, monkeypatch):
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1 << 24))
    A = holed()
    plain, model = InductiveRobustPCA(2).fit(A), InductiveRobustPCA(2).fit(there(A))
    assert isinstance(model.sparse_, csr_array) and model._device == device
    same_tables(model.expected(True), plain.expected(True))
    same_tables(model.repaired(return_std=True), plain.repaired(return_std=True))
    same_columns(model.outliers(fdr=0.1), plain.outliers(fdr=0.1))
    assert_array_equal(model.__getstate__()["_observed"], plain.__getstate__()["_observed"])
    same_there(model.outliers(there(A))["row"], plain.outliers(A)["row"])  # it is recognised


def test_a_large_table_is_refused_in_host_memory_and_made_on_the_device(device, monkeypatch):
    monkeypatch.setattr(irpca.tables, "MOST_CELLS", 2000)
    model = fits("noisy")[1]
    plain = twin(model)
    plain._device = "cpu"
    for ask in ("expected", "repaired"):
        with pytest.raises(ValueError, match="does not fit into memory"):
            getattr(plain, ask)()
        assert getattr(model, ask)().shape == (60, 40)
    with pytest.raises(ValueError, match="does not fit into memory"):
        model.repaired(return_marks=True)  # these are an array


def test_what_does_not_fit_on_the_device_is_said(device, monkeypatch):
    def full(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    model = fits("noisy")[1]
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match=r"a table of 60 × 40 values does not fit .* on c.*:0.*low_rank_.entries"):
        model.expected()
    with pytest.raises(MemoryError, match=r"a list of .* outliers does not fit .* on (cpu|cuda):0.*most="):
        model.outliers()


def test_a_fit_of_an_array_after_one_of_a_tensor_is_of_an_array(device):
    model = twin(fits("noisy")[1])
    model.fit(NOISY.M)
    assert model._device == "cpu" and isinstance(model.expected(), np.ndarray)


def test_a_model_on_the_cpu_is_asked_about_rows_on_a_device(device):
    """Whose outliers stay there, where answers are not."""
    plain, model = map(twin, fits("noisy")[:2])
    model._device = "cpu"
    some = NOISY.M[:40]
    assert isinstance(model.decompose(there(some)).S, DeviceSparse)
    same(model.repaired(there(some)), plain.repaired(some))
    right = plain.outliers(some)
    same_columns(model.outliers(there(some)), right, device="cpu")
    assert_allclose(plain.repaired(there(some)), plain.repaired(some))
    assert_array_equal(plain.outliers(there(some))["row"], right["row"])


def test_outliers_of_new_rows_with_labels_are_a_frame():
    pd = pytest.importorskip("pandas")
    model = InductiveRobustPCA(2).fit(tensor(NOISY.M))
    found = model.outliers(pd.DataFrame(NOISY.M[:20], index=[f"r{i}" for i in range(20)]))
    assert isinstance(found, pd.DataFrame) and found["row"][0].startswith("r")


def test_a_model_whose_arrays_are_read_only_answers():
    """As those that joblib hands to its workers are."""
    model = InductiveRobustPCA(2).fit(tensor(NOISY.M))
    right = model.expected()
    for array in (model.components_, model.low_rank_.left, model.low_rank_.core, model.low_rank_.right):
        array.setflags(write=False)
    same(model.expected(), right.numpy())
    same(model.repaired(), model.repaired(tensor(NOISY.M)).numpy())


def test_an_array_is_not_moved_to_the_device_again_to_look_at_it(monkeypatch):
    asked = []

    def chosen(M, engine="auto"):
        asked.append(engine)
        return choose(M, "memory" if engine == "gpu" else engine)

    for module in (loop, answers, estimator):
        monkeypatch.setattr(module, "choose", chosen)
    model = InductiveRobustPCA(2, engine="gpu").fit(NOISY.M)
    model.outliers()
    model.repaired()
    assert asked[0] == "gpu" and "gpu" not in asked[1:]
