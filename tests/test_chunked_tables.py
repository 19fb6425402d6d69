"""The estimator on tables in chunks: the same model as of the table in memory, and nothing large is loaded."""

import pickle
import threading
import weakref
from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from matplotlib.figure import Figure
from mixed_columns import WRONG, mixed
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import irpca
from irpca import InductiveRobustPCA, constants
from irpca.answers import fingerprint_of, in_batches, owned
from irpca.containers import Labelled
from irpca.datasets import make_problem
from irpca.engines import choose

pytestmark = pytest.mark.usefixtures("short_fits")

EXACT = make_problem(120, 60, d1=5, d2=4, rank=2, corruption=0.1)
NOISY = make_problem(90, 50, d1=5, d2=4, rank=2, corruption=0.05, noise=1e-3, random_state=1)
ROWS, COLS = [f"r{i:03}" for i in range(120)], [10 * j for j in range(60)]


def long_table(M):
    rows, cols = np.nonzero(~np.isnan(M))
    return pd.DataFrame({"row": [f"r{i:03}" for i in rows], "column": np.array(COLS)[cols], "value": M[rows, cols]})


def zarr_array(M, path):
    store = zarr.create_array(str(path), shape=M.shape, chunks=(50, 30), dtype=M.dtype)
    store[:] = M
    return store


def folder_of_arrays(M, path):
    path = path.with_suffix("")
    path.mkdir()
    for k, part in enumerate(np.array_split(M, 3)):
        np.save(path / f"part-{k}.npy", part)
    return path


def parquet(M, path):
    long_table(M).to_parquet(path.with_suffix(".parquet"))
    return str(path.with_suffix(".parquet"))


ARRAYS = {
    "dask array": lambda M, path: da.from_array(M, chunks=(50, 30)),
    "zarr array": zarr_array,
    "Path of a zarr store": lambda M, path: path if zarr_array(M, path) is not None else None,
    "folder of .npy files": folder_of_arrays,
}
LONG = {"Parquet table": parquet, "dask DataFrame": lambda M, path: dd.from_pandas(long_table(M), npartitions=3)}


def fitted(M, problem=EXACT, **params):
    return InductiveRobustPCA(**params).fit(M, row_features=problem.F1, col_features=problem.F2)


@pytest.fixture(scope="module")
def plain():
    return fitted(EXACT.M)


@pytest.mark.parametrize("make", (ARRAYS | LONG).values(), ids=ARRAYS | LONG)
def test_the_model_is_that_of_the_table_in_memory(make, plain, tmp_path):
    M = make(EXACT.M, tmp_path / "M.zarr")
    model = fitted(M)
    assert (model.result_.engine, model.rank_, model.status_) == ("distributed", 2, plain.status_)
    assert_allclose(np.asarray(model.expected()), plain.expected(), rtol=1e-10, atol=1e-12)
    assert_allclose(np.asarray(model.expected(True)[1]), plain.expected(True)[1], rtol=1e-9, atol=1e-14)
    found, same = model.outliers(), plain.outliers()
    long = hasattr(M, "columns") or str(M).endswith(".parquet")
    rows, cols = (np.array(ROWS, object), np.array(COLS)) if long else (np.arange(120), np.arange(60))
    assert isinstance(found, pd.DataFrame if long else np.ndarray)
    for table, row, column in ((found, rows, cols), (model.outliers(M, row_features=EXACT.F1), rows, cols)):
        assert_array_equal(np.asarray(table["row"]), row[same["row"]])
        assert_array_equal(np.asarray(table["column"]), column[same["column"]])
        assert_array_equal(np.asarray(table["observed"]), same["observed"])
    assert_array_equal(np.asarray(model.outlier_rows()["row"])[:5], rows[plain.outlier_rows()["row"][:5]])
    assert_array_equal(np.asarray(model.outlier_columns()["column"])[:5], cols[plain.outlier_columns()["column"][:5]])
    made, marks = model.repaired(return_marks=True)
    assert_allclose(np.asarray(made), plain.repaired(), rtol=1e-10, atol=1e-12)
    assert_array_equal(np.asarray(marks), plain.repaired(return_marks=True)[1])
    assert model.summary().splitlines()[-1].strip().startswith(f"{rows[same['row'][4]]}, {cols[same['column'][4]]}")
    assert_allclose(model.transform(M), plain.transform(EXACT.M), rtol=1e-9, atol=1e-12)
    assert model.score(M, row_features=EXACT.F1) == plain.score(EXACT.M, row_features=EXACT.F1)
    assert model.decompose(M).S.nnz == plain.sparse_.nnz
    assert_allclose(np.asarray(model.predict(EXACT.F1[:7])), plain.predict(EXACT.F1[:7]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["dask array", "zarr array", "folder of .npy files", "dask DataFrame"])
def test_holes_and_noise(kind, tmp_path):
    M = np.array(NOISY.M)
    M[3, 4] = M[70, 20] = np.nan
    chunked = (ARRAYS | LONG)[kind](M, tmp_path / "M.zarr")
    plain, model = fitted(M, NOISY, rank=2), fitted(chunked, NOISY, rank=2)
    spread = float(np.std(NOISY.L))
    for asked in ({}, {"fdr": 0.2}, {"threshold": 0.001}):
        found, same = (one.repaired(return_std=True, return_marks=True, **asked) for one in (model, plain))
        assert_array_equal(np.asarray(found[2]), same[2])
        assert same[2][3, 4] == "missing"
        assert_allclose(np.asarray(found[0]), same[0], atol=1e-7 * spread)
        assert_allclose(np.asarray(found[1]), same[1], rtol=1e-3, atol=1e-9)
        assert_array_equal(
            np.sort(np.asarray(model.outliers(**asked)["observed"])), np.sort(plain.outliers(**asked)["observed"])
        )


def latent_answers(model):
    """What people ask of a model with mapped columns: tables, and lists of outliers in the order of their cells."""
    tables = (*model.expected(True), *model.interval(), *model.repaired(return_std=True))
    found = [np.asarray(made) for made in tables]
    for asked in ({}, {"fdr": 0.2}, {"threshold": 100.0}):
        cells = model.outliers(**asked)
        order = np.lexsort((cells["column"], cells["row"]))
        found += [np.asarray(cells[name])[order] for name in ("observed", "expected", "std", "score", "probability")]
    return found


@pytest.mark.parametrize("kind", ["dask array", "folder of .npy files", "Parquet table"])
def test_columns_of_every_kind(kind, tmp_path, monkeypatch):
    """Chunks are mapped where they are read, and what is expected is made chunk by chunk."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=1000))  # or all is brought to memory
    M = mixed(400).to_numpy()
    given = M, (ARRAYS | LONG)[kind](M, tmp_path / "M.zarr")
    plain, model = (InductiveRobustPCA(columns={0: "logarithm"}, tol=0.01).fit(one) for one in given)
    assert model.result_.engine == "distributed" and model.result_.maps.names == plain.result_.maps.names
    assert len(plain.outliers()) >= len(WRONG)
    for made, same in zip(latent_answers(model), latent_answers(plain), strict=True):
        assert_allclose(made, same, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["dask array", "zarr array", "dask DataFrame"])
def test_a_saved_model(kind, plain, tmp_path):
    M = (ARRAYS | LONG)[kind](EXACT.M, tmp_path / "M.zarr")
    model = fitted(M)
    model.save(tmp_path / "model")
    for again in (irpca.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert again._M is None
        assert_array_equal(np.asarray(again.outliers()["observed"]), plain.outliers()["observed"])
        assert_allclose(np.asarray(again.expected()), plain.expected(), rtol=1e-10, atol=1e-12)
        assert not hasattr(again.expected(), "compute")
        made = again.repaired(M)
        assert hasattr(made, "compute") == (kind == "dask array")
        assert_allclose(np.asarray(made), plain.repaired(), rtol=1e-10, atol=1e-12)
        assert again._fingerprint == fingerprint_of(choose(EXACT.M))


def test_tables_of_a_dask_array_are_computed_when_they_are_needed(plain):
    M = da.from_array(EXACT.M, chunks=((50, 0, 70), (30, 30)))
    model = fitted(M)
    for made in (*model.expected(True), *model.repaired(return_std=True, return_marks=True), model.predict()):
        assert isinstance(made, da.Array) and made.chunks == ((50, 70), (30, 30))
        assert made.compute().shape == M.shape and made.compute().dtype == made.dtype
    rows, std = model.predict(EXACT.F1[:100], return_std=True)
    assert rows.chunks == std.chunks == ((70, 30), (30, 30))
    assert_allclose(std.compute(), plain.predict(EXACT.F1[:100], return_std=True)[1])
    with dask.config.set(scheduler="processes", num_workers=1):
        assert_allclose(model.repaired()[:20].compute(), plain.repaired()[:20], rtol=1e-10, atol=1e-12)


def test_sparse_chunks():
    from scipy.sparse import csr_array

    M = np.where(np.random.default_rng(0).random(EXACT.M.shape) < 0.7, EXACT.M, np.nan)
    there = ~np.isnan(M)

    def sparse(block):
        seen = ~np.isnan(block)
        return csr_array((block[seen], np.nonzero(seen)), block.shape)

    chunked = da.from_array(M, chunks=(50, 30)).map_blocks(sparse, meta=csr_array((0, 0)))
    model, plain = fitted(chunked), fitted(M)
    made, marks = dask.compute(*model.repaired(return_marks=True))
    assert_allclose(made, plain.repaired(), rtol=1e-9, atol=1e-11)
    assert_array_equal(marks == "missing", ~there)


def test_labels_of_an_array_of_labels(plain):
    M = xr.DataArray(da.from_array(EXACT.M, chunks=(50, 30)), dims=("who", "what"), coords={"who": ROWS})
    model = fitted(M)
    assert model.container_ == "xarray" and list(model.row_labels_) == ROWS and model.col_labels_ is None
    assert list(model.outliers()["row"]) == [ROWS[i] for i in plain.outliers()["row"]]
    for made in (model.expected(), model.repaired()):
        assert made.dims == ("who", "what") and list(made["who"].values) == ROWS and made.chunks is not None
    assert_allclose(model.expected().values, plain.expected(), rtol=1e-10, atol=1e-12)
    model = fitted(Labelled(da.from_array(EXACT.M, chunks=(50, 30)), ROWS, COLS))
    assert list(model.outliers()["row"]) == [ROWS[i] for i in plain.outliers()["row"]]
    assert isinstance(model.expected(), Labelled) and isinstance(model.expected().values, da.Array)
    with pytest.raises(ValueError, match="M has 120 rows and 3 labels for them"):
        fitted(Labelled(da.from_array(EXACT.M), ["a", "b", "c"]))


def test_features_of_a_long_table_belong_to_sorted_ids(plain):
    frame = dd.from_pandas(long_table(EXACT.M).sample(frac=1, random_state=0), npartitions=3)
    features = pd.DataFrame(EXACT.F1, ROWS)
    model = InductiveRobustPCA().fit(frame, row_features=features, col_features=EXACT.F2)
    assert list(model.expected().index) == ROWS and list(model.expected().columns) == COLS
    assert_allclose(model.expected().to_numpy(), plain.expected(), rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="the labels are the same in another order"):
        InductiveRobustPCA().fit(frame, row_features=features[::-1], col_features=EXACT.F2)


def test_which_dask_frames_are_long_tables(monkeypatch):
    named = pd.DataFrame({"userId": ["a", "a", "b"], "movieId": [1, 2, 1], "rating": [1.0, 2.0, 3.0], "at": [5, 6, 7]})
    for frame in (named, named.drop(columns="at")):
        given = owned(dd.from_pandas(frame, npartitions=1))
        assert given.chunked and given.matrix.shape == (2, 2) and given.matrix.n_observed == 3
        assert list(given.rows) == ["a", "b"] and list(given.columns) == [1, 2]
    wide = pd.DataFrame(np.arange(12.0).reshape(4, 3), list("wxyz"), ["one", "two", "three"])
    frame = dd.from_pandas(wide, npartitions=2, sort=False)
    given = owned(frame)
    assert not given.chunked and isinstance(given.matrix, pd.DataFrame) and given.matrix.equals(wide)
    monkeypatch.setattr(irpca.constants, "BUDGET", replace(irpca.constants.BUDGET, memory=11))
    given = owned(frame)
    assert given.chunked and given.matrix.name == "distributed" and given.container == "pandas"
    assert list(given.rows) == list("wxyz") and list(given.columns) == ["one", "two", "three"]
    assert_array_equal(given.matrix.block(np.arange(4), np.arange(3)), wide)
    with pytest.raises(ValueError, match="M has dtype object and does not convert to numbers"):
        owned(dd.from_pandas(wide.astype({"two": str}), npartitions=2))


def test_a_large_wide_dask_frame(monkeypatch, plain):
    monkeypatch.setattr(irpca.constants, "BUDGET", replace(irpca.constants.BUDGET, memory=1000))
    model = fitted(dd.from_pandas(pd.DataFrame(EXACT.M, ROWS, map(str, COLS)), npartitions=3))
    made = model.expected()
    assert list(made.index) == ROWS and list(made.columns) == list(map(str, COLS))
    assert_allclose(made.to_numpy(), plain.expected(), rtol=1e-9, atol=1e-11)
    assert list(model.outliers()["row"][:9]) == [ROWS[i] for i in plain.outliers()["row"][:9]]


class Loader:
    """Chunks of a matrix of low rank with gross errors, made when they are loaded; it knows how many there are."""

    def __init__(self, shape, chunks):
        rng = np.random.default_rng(0)
        self.F = [rng.standard_normal((n, 4)).astype(np.float32) for n in shape]
        self.W = np.outer(rng.standard_normal(4), rng.standard_normal(4)).astype(np.float32)
        self.lock, self.alive, self.most, self.loads = threading.Lock(), 0, 0, 0
        self.M = da.map_blocks(
            self, chunks=da.core.normalize_chunks(chunks, shape), dtype=np.float32, meta=np.empty((0, 0), np.float32)
        )

    def __call__(self, block_info=None):
        (a, b), (c, d) = block_info[None]["array-location"]
        block = self.F[0][a:b] @ self.W @ self.F[1][c:d].T
        wrong = np.random.default_rng(a + d).random(block.shape) < 0.02
        block[wrong] += 10
        with self.lock:
            self.alive, self.loads = self.alive + 1, self.loads + 1
            self.most = max(self.most, self.alive)
        weakref.finalize(block, self.gone)
        return block

    def gone(self):
        with self.lock:
            self.alive -= 1

    def __deepcopy__(self, memo):
        return self

    def __dask_tokenize__(self):
        return id(self)


@pytest.fixture
def never_whole(monkeypatch):
    """Nobody makes an array of a dask or zarr array."""

    def refuse(self, *args, **kwargs):
        raise AssertionError("all of M was loaded")

    for kind in (da.Array, zarr.Array):
        monkeypatch.setattr(kind, "__array__", refuse)


def test_nothing_large_is_loaded(monkeypatch, never_whole):
    monkeypatch.setattr(irpca.constants, "BUDGET", replace(irpca.constants.BUDGET, memory=1 << 18))
    made = Loader((3000, 2000), (500, 400))
    with dask.config.set(scheduler="threads", num_workers=2):
        model = InductiveRobustPCA(1).fit(made.M, row_features=made.F[0], col_features=made.F[1])
        assert model.status_.name == "CONVERGED" and abs(model.corruption_ - 0.02) < 1e-3
        assert made.most <= 8 and made.loads <= 30 * 4
        assert not model._M._known and model._M._whole is None
        before = made.loads
        first = model.outliers()
        assert made.loads == before + 30  # once, for what was observed
        assert_array_equal(model.outliers(), first)
        model.summary(), model.outlier_rows(), model.outlier_columns(), model.outliers(probability=0.9)
        assert made.loads == before + 30
        expected, std = model.expected(return_std=True)
        repaired, marks = model.repaired(return_marks=True)
        assert made.loads == before + 30
        assert np.isfinite(expected[:3, :4].compute()).all() and std[:3, :4].compute().shape == (3, 4)
        assert made.loads == before + 30
        part, seen = dask.compute(repaired[:500, :400], marks[:500, :400])
        assert made.loads == before + 31
        truth = made.F[0][:500] @ made.W @ made.F[1][:400].T
        assert np.abs(part - truth).max() < 1e-4 * np.abs(truth).max()
        assert 0.01 < (seen == "outlier").mean() < 0.03
        scores = model.transform(made.M[:1000], row_features=made.F[0][:1000])
        assert scores.shape == (1000, 1) and made.loads == before + 31  # features say all
        model.transform(made.M[:1000])
        assert made.loads == before + 41
        assert made.most <= 8 and made.alive <= 2
        state = pickle.dumps(model)
        assert made.loads == before + 41 and len(state) < 8 * made.M.size


def test_features_are_checked_before_M_is_read(never_whole):
    made = Loader((300, 200), (100, 100))
    F1, F2 = made.F
    for options, features, message in (
        ({}, {"row_features": np.vstack([F1, F1[:1]]), "col_features": F2}, "row_features has 301 rows"),
        ({}, {"col_features": F1}, "col_features needs 200 rows, one for each column of M, and has 300"),
        ({"engine": "memory"}, {}, "engine='memory' needs M in memory, and M is a dask array; leave engine out"),
        ({"engine": "reference"}, {}, "engine='reference' needs M in memory, and M is a dask array"),
    ):
        with pytest.raises(ValueError, match=message):
            InductiveRobustPCA(**options).fit(made.M, **features)
    with pytest.raises(ValueError, match="M is in chunks, and here all of it is needed in memory"):
        irpca.selection.cross_validate(InductiveRobustPCA(), made.M)
    with pytest.raises(ValueError, match="engine must be a name here"):
        InductiveRobustPCA(engine=choose(made.M)).fit_transform(made.M)
    assert made.loads == 0


def test_what_is_no_table_in_chunks(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"M is a file name, '.*table.csv': read it first, such as with pd.read_csv"):
        InductiveRobustPCA().fit(str(tmp_path / "table.csv"))
    with pytest.raises(ValueError, match="needs M in chunks, and M is owned by the memory engine"):
        choose(choose(EXACT.M), "distributed")


def test_other_models_and_searches(plain, tmp_path):
    M = da.from_array(EXACT.M[:50, :40], chunks=(30, 20))
    model = make_pipeline(InductiveRobustPCA(2))
    scores = model.fit_transform(M)
    assert_allclose(scores, InductiveRobustPCA(2).fit_transform(EXACT.M[:50, :40]), rtol=1e-8, atol=1e-10)
    assert_allclose(clone(model).fit(M).transform(M), scores, rtol=1e-8, atol=1e-10)
    framed = InductiveRobustPCA(2).set_output(transform="pandas").fit_transform(M)
    assert isinstance(framed, pd.DataFrame) and framed.shape == (50, 2)
    wide = dd.from_pandas(pd.DataFrame(EXACT.M[:50, :40], ROWS[:50], map(str, COLS[:40])), npartitions=2)
    assert_allclose(InductiveRobustPCA(2).fit_transform(wide), scores, rtol=1e-8, atol=1e-10)
    again = fitted(zarr_array(EXACT.M, tmp_path / "M.zarr")).fit(
        EXACT.M, row_features=EXACT.F1, col_features=EXACT.F2
    )  # and then in memory
    assert_array_equal(again.outliers(), plain.outliers())
    assert isinstance(again._M, np.ndarray)


def test_long_tables_are_refused_beyond_what_fits(monkeypatch, tmp_path):
    monkeypatch.setattr("irpca.tables.MOST_CELLS", 1000)
    model = fitted(zarr_array(EXACT.M, tmp_path / "M.zarr"))
    for make in (model.expected, model.repaired, model.predict):
        with pytest.raises(ValueError, match=r"does not fit into memory; take some cells, with low_rank_.entries"):
            make()
    assert fitted(da.from_array(EXACT.M, chunks=(50, 30))).repaired().compute().shape == (120, 60)


def test_pictures_and_reports(tmp_path):
    matplotlib.use("agg")
    from irpca import plots, report

    M = np.array(NOISY.M)
    M[0, 0] = np.nan
    plain = fitted(M, NOISY, rank=2)
    report.write(plain, tmp_path / "plain.html")
    for kind, passed in (("dask array", True), ("dask DataFrame", False)):
        chunked = (ARRAYS | LONG)[kind](M, tmp_path / f"{kind}.zarr")
        model = fitted(chunked, NOISY, rank=2)
        assert plots.fitted.Fitted(model).engine is model._M
        again = chunked if passed else None
        for draw in (plots.cell_map, plots.residuals, plots.singular_values):
            assert draw(model, M=again, ax=Figure().subplots()).has_data()
        row = 3 if model.row_labels_ is None else "r003"
        assert plots.line(model, row=row, M=again, ax=Figure().subplots()).has_data()
        plots.decomposition(model, M=again)
        plt.close("all")
        page = report.write(model, tmp_path / f"{kind}.html", again)
        assert abs(page.stat().st_size / (tmp_path / "plain.html").stat().st_size - 1) < 0.1
        assert model.sparse_.nnz == plain.sparse_.nnz


def test_reads_end_with_chunks():
    engine = choose(da.from_array(EXACT.M, chunks=(50, 60)))
    parts = list(in_batches(engine, 60 * 7))
    assert [rows.stop for rows, _ in parts][:3] == [7, 14, 21] and engine.reads == 1
    assert_array_equal(np.vstack([part for _, part in parts]), EXACT.M)
