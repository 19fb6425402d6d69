"""Outliers as files: what is in them, who reads them, and that no half file is ever under a final name."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mixed_columns import ASKED, KINDS, mixed

import irpca
from irpca import constants, outlier_files, persistence
from irpca.engines import choose
from irpca.model.entry_scale import Judge
from irpca.outlier_files import PARTS, PLAN, OutlierFiles

pytestmark = pytest.mark.usefixtures("short_fits")

COLUMNS = ["row", "column", "observed", "expected", "probability"]


class Banded:
    """An engine whose M comes in bands of rows: ``write`` from ``corruption``."""

    def __init__(self, M, bands=4):
        self.M, self.engine = M, choose(M)
        self.edges = tuple(int(i) for i in np.linspace(0, self.engine.shape[0], bands + 1))
        self.after = lambda place: None
        self.writes = 0

    def __getattr__(self, name):
        if name == "engine":  # not there yet, while unpickling
            raise AttributeError(name)
        return getattr(self.engine, name)

    def write(self, L, limit, sink):
        self.writes += 1
        S, trim = self.engine.corruption(L, limit)
        rows, cols = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices
        sink, flagged = pickle.loads(pickle.dumps(sink)), [np.zeros(n, int) for n in S.shape]
        for i, (first, last) in enumerate(zip(self.edges[:-1], self.edges[1:], strict=True)):
            here = (rows >= first) & (rows < last)
            at = rows[here], cols[here]
            kept = sink.write((i, 0), *at, self.engine.entries(*at), L.entries(*at))
            for axis in (0, 1):
                np.add.at(flagged[axis], at[axis][kept], 1)
            self.after((i, 0))
        return (flagged[0], flagged[1]), trim


def noisy(n1=60, n2=40, seed=0, dtype=float):
    rng = np.random.default_rng(seed)
    M = 3 * rng.standard_normal((n1, 2)) @ rng.standard_normal((2, n2)) + 0.1 * rng.standard_normal((n1, n2))
    wrong = rng.random(M.shape) < 0.05
    M[wrong] += rng.choice([-1, 1], wrong.sum()) * rng.uniform(1, 20, wrong.sum())
    return M.astype(dtype)


def exact(corruption=0.1):
    return irpca.datasets.make_problem(80, 60, d1=4, d2=3, rank=2, corruption=corruption)


def cells(S):
    return np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices


@pytest.fixture
def streamed(monkeypatch):
    """Every table is too large for its S to stay in memory."""
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=100))


def test_a_small_table_has_files_and_S(tmp_path):
    M = noisy()
    result = irpca.solve(M, outliers_to=tmp_path / "S.parquet")
    table = pd.read_parquet(tmp_path / "S.parquet")
    model = irpca.InductiveRobustPCA().fit(M)
    listed = model.outliers()
    listed = listed[np.lexsort((listed["column"], listed["row"]))]
    assert len(table) == result.S.nnz > 50
    assert list(table.columns) == COLUMNS
    for name in COLUMNS:
        np.testing.assert_allclose(table[name], listed[name], rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(table["observed"], M[table["row"], table["column"]])
    assert len(set(table["probability"])) > 1  # or nothing was compared
    assert result.outliers_path == str(tmp_path / "S.parquet")
    assert os.listdir(tmp_path) == ["S.parquet"]
    assert (model.sparse_ != result.S).nnz == 0
    assert [str(doubt) for doubt in model.result_.doubts] == [str(doubt) for doubt in result.doubts]
    persistence.save(result, tmp_path / "r.irpca")
    again = persistence.load_result(tmp_path / "r.irpca")
    assert again.outliers_path == result.outliers_path and again.summary() == result.summary()
    with pytest.raises(ValueError, match=r"sparse=False .* outliers_to"):
        irpca.solve(M, sparse=False, outliers_to=tmp_path / "other")


def test_a_large_table_has_files_only(tmp_path, streamed):
    M = noisy(dtype=np.float32)
    engine = Banded(M)
    result = irpca.solve(M, engine=engine, outliers_to=tmp_path / "S.parquet")
    assert result.S is None and engine.writes == 1
    model = irpca.InductiveRobustPCA().fit(M)
    plain, listed = model.result_, model.outliers()
    listed = listed[np.lexsort((listed["column"], listed["row"]))]
    table = pd.read_parquet(tmp_path / "S.parquet")
    assert table.dtypes.tolist() == [np.int64, np.int64, np.float32, np.float32, np.float64]
    rows, cols = cells(plain.S)
    np.testing.assert_array_equal(table["row"], rows)
    np.testing.assert_array_equal(table["column"], cols)
    np.testing.assert_allclose(table["probability"], listed["probability"], rtol=1e-6)
    np.testing.assert_allclose(table["observed"] - table["expected"], plain.S.data, rtol=1e-5, atol=1e-5)
    assert result.corruption == plain.corruption and result.residual == plain.residual
    assert [str(doubt) for doubt in plain.doubts] == [str(doubt) for doubt in result.doubts]
    text = result.summary()
    assert f"{plain.S.nnz:,} cells" in text and str(tmp_path / "S.parquet") in text


def test_an_exact_fit_is_written_in_the_read_that_checks_it(tmp_path, streamed):
    problem = exact()
    engine = Banded(problem.M)
    result = irpca.solve(problem.M, problem.F1, problem.F2, engine=engine, outliers_to=tmp_path / "S.parquet")
    plain = irpca.solve(problem.M, problem.F1, problem.F2)
    assert engine.writes == 1
    assert result.reads == pytest.approx(plain.reads + result.corruption)  # Banded reads outliers once more
    table = pd.read_parquet(tmp_path / "S.parquet")
    rows, cols = cells(plain.S)
    np.testing.assert_array_equal(table["row"], rows)
    np.testing.assert_array_equal(table["column"], cols)
    assert (table["probability"] == 1).all() and len(table) > 100


def test_lines_that_are_not_known_have_no_outliers(tmp_path, streamed):
    M = noisy()
    M[3, 2:] = np.nan
    M[3, :2] = 1e4, -1e4
    M[:, 7] = np.nan
    M[0, 7] = 1e4
    plain = irpca.solve(M, rank=3)
    result = irpca.solve(M, rank=3, engine=Banded(M), outliers_to=tmp_path / "S.parquet")
    assert not result.known[1][7]
    table = pd.read_parquet(tmp_path / "S.parquet")
    assert result.known[0][table["row"]].all() and result.known[1][table["column"]].all()
    assert len(table) == plain.S.nnz > 50
    assert result.corruption == plain.corruption == pytest.approx(len(table) / result.n_observed)


def sink_at(path, n=40, seed=0, **more):
    files = OutlierFiles.at(path, (n, n), np.dtype(float), "irpca", **more)
    rng = np.random.default_rng(seed)
    L = irpca.LowRank.from_product(rng.standard_normal((n, 2)), rng.standard_normal((n, 2)))
    return files.of(L, Judge(1.0, exact=True), None)


def piece(i, size=9, n=40):
    rng = np.random.default_rng(i)
    at = np.sort(rng.choice(n * n // 4, size, replace=False)) + i * n * n // 4
    return (i, 0), *np.divmod(at, n), rng.standard_normal(size), rng.standard_normal(size)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # dask with pandas 3.1
def test_everybody_reads_the_folder(tmp_path):
    import dask.dataframe as dd
    import polars as pl

    sink = sink_at(tmp_path / "S.parquet")
    sink.begin()
    for i, size in ((1, 5), (0, 9), (2, 0)):
        place, *columns = piece(i, size)
        order = np.random.default_rng(1).permutation(size)
        assert sink.write(place, *(column[order] for column in columns)).all()
    path = sink.finish(14)
    table = pd.read_parquet(path)
    assert len(table) == 14 and list(table.columns) == COLUMNS
    keys = table["row"] * 40 + table["column"]
    assert keys.is_monotonic_increasing
    assert pl.read_parquet(path).to_pandas().equals(table)
    assert pq.read_table(path).to_pandas().equals(table)
    assert dd.read_parquet(path).compute().reset_index(drop=True).equals(table)
    assert sorted(os.listdir(path)) == [f"part-{i:05d}-00000.parquet" for i in range(3)]
    assert pq.read_schema(Path(path) / "part-00002-00000.parquet").names == COLUMNS


@pytest.mark.parametrize(
    "labels, wanted",
    [
        (np.array([f"user {i}" for i in range(40)]), "user 3"),
        (np.arange(40).astype("datetime64[D]").astype("datetime64[us]"), pd.Timestamp("1970-01-04")),
        (np.array([3 if i == 3 else f"{i}" for i in range(40)], object), "3"),
        (pd.MultiIndex.from_product([["a", "b"], range(20)]), "('a', 3)"),
    ],
)
def test_labels(tmp_path, labels, wanted):
    sink = sink_at(tmp_path / "S.parquet", labels=(labels, None))
    sink.begin()
    sink.write((0, 0), np.array([3, 30]), np.array([0, 1]), np.ones(2), np.zeros(2))
    sink.write((1, 0), np.array([], int), np.array([], int), np.ones(0), np.zeros(0))
    path = sink.finish(2)
    table = pd.read_parquet(path)
    assert table["row"][0] == wanted and table["column"].tolist() == [0, 1]
    assert sink_at(tmp_path / "T.parquet").fingerprint != sink.fingerprint


def test_labels_of_a_long_table(tmp_path, streamed):
    M = noisy()
    rows, cols = np.divmod(np.arange(M.size), 40)
    names = [f"user {i}" for i in range(60)]
    table = irpca.LongTable(rows, cols, M.ravel(), row_labels=names)
    result = irpca.solve(table, engine=Banded(table), outliers_to=tmp_path / "S.parquet")
    written = pd.read_parquet(result.outliers_path)
    at = [names.index(name) for name in written["row"]]
    np.testing.assert_array_equal(written["observed"], M[at, written["column"]])
    assert len(written) > 50


def test_two_writers_of_one_piece(tmp_path):
    sink = sink_at(tmp_path / "S.parquet")
    sink.begin()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sink.write(*piece(0, 300)), range(24)))
    assert sorted(os.listdir(sink.folder)) == [PLAN, PARTS]
    assert len(pd.read_parquet(sink.finish(300))) == 300


def full_after(monkeypatch, pieces):
    """The disk is full once so many files have been written."""
    real, left = os.fsync, [pieces]

    def fsync(descriptor):
        left[0] -= not os.path.isdir(f"/proc/self/fd/{descriptor}")
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(outlier_files.os, "fsync", fsync)


def test_a_full_disk(tmp_path, streamed, monkeypatch):
    M, path = noisy(), tmp_path / "S.parquet"
    with monkeypatch.context() as patch:
        full_after(patch, 3)  # the plan and two pieces
        with pytest.raises(OSError, match=r"No space left.*2 pieces are there.*S\.parquet\.part") as caught:
            irpca.solve(M, engine=Banded(M), outliers_to=path)
    assert caught.value.errno == errno.ENOSPC
    folder = tmp_path / "S.parquet.part"
    assert not path.exists() and sorted(os.listdir(folder)) == [PLAN, PARTS]
    times = {part: part.stat().st_mtime_ns for part in (folder / PARTS).iterdir()}
    assert len(times) == 2 and all(pq.read_table(part).num_rows for part in times)
    irpca.solve(M, engine=Banded(M), outliers_to=path)
    assert all((path / part.name).stat().st_mtime_ns == time for part, time in times.items())
    irpca.solve(M, engine=Banded(M), outliers_to=tmp_path / "other")
    assert pd.read_parquet(path).equals(pd.read_parquet(tmp_path / "other"))


def script(code):
    """Python with the functions of this file."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_outlier_files import *\n"
    return [sys.executable, "-c", start + textwrap.dedent(code)]


def test_killed_at_any_moment(tmp_path):
    """Processes that write 40 pieces over and over are killed, and others go on: every file is whole at every time."""
    path = tmp_path / "S.parquet"
    code = f"""
    sink = sink_at({str(path)!r}, n=400)
    sink.begin()
    print("begun", flush=True)
    order = np.random.default_rng(int(sys.argv[1])).permutation(40)
    for i in np.tile(order, 1000):
        sink.write((int(i), 0), *piece(int(i) % 4, 3000, 400)[1:])
    """
    rng = np.random.default_rng(0)
    for attempt in range(3):
        process = subprocess.Popen([*script(code), str(attempt)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n"
        time.sleep(rng.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        written = [pq.read_table(part).num_rows for part in (tmp_path / "S.parquet.part" / PARTS).glob("*.parquet")]
        assert set(written) <= {3000} and not path.exists()  # a fast machine may have written all 40
    assert written
    (tmp_path / "S.parquet.part" / PARTS / f".irpca-0123{outlier_files.TEMPORARY}").write_bytes(b"PAR1")
    times = {part.name: part.stat().st_mtime_ns for part in (tmp_path / "S.parquet.part" / PARTS).glob("*.parquet")}
    tables = []
    for target in (path, tmp_path / "other"):
        sink = sink_at(target, n=400)
        sink.begin()
        assert sorted(os.listdir(sink.folder)) == [PLAN, PARTS]
        (sink.folder / PARTS / f".irpca-4567{outlier_files.TEMPORARY}").write_bytes(b"PAR1")
        for i in range(40):
            sink.write((i, 0), *piece(i % 4, 3000, 400)[1:])
        tables.append(pd.read_parquet(sink.finish(120_000)))
    assert tables[0].equals(tables[1])
    assert sorted(os.listdir(path)) == [f"part-{i:05d}-00000.parquet" for i in range(40)]  # nothing half written
    assert all((path / name).stat().st_mtime_ns == time for name, time in times.items())


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def changed(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 255
    path.write_bytes(content)


def of_another_piece(path):
    path.write_bytes((path.parent / "part-00001-00000.parquet").read_bytes())


@pytest.mark.parametrize("damage", [cut_off, changed, of_another_piece])
def test_damaged_pieces_are_written_again(tmp_path, damage):
    sink = sink_at(tmp_path / "S.parquet")
    for _ in range(2):
        sink.begin()
        for i in range(2):
            sink.write(*piece(i))
        first = sink.folder / PARTS / "part-00000-00000.parquet"
        whole = first.read_bytes()
        damage(first)
        assert first.read_bytes() != whole
    sink.begin()
    sink.write(*piece(0))
    assert first.read_bytes() == whole
    assert len(pd.read_parquet(sink.finish(18))) == 18


def test_part_of_another_fit_is_refused(tmp_path):
    sink = sink_at(tmp_path / "S.parquet")
    sink.begin()
    sink.write(*piece(0))
    with pytest.raises(FileExistsError, match=r"part of another fit; delete it.*S\.parquet\.part"):
        sink_at(tmp_path / "S.parquet", seed=1).begin()
    for shape, solver in (((40, 41), "irpca"), ((40, 40), "pca")):
        with pytest.raises(FileExistsError, match="part of another fit"):  # before the fit begins
            OutlierFiles.at(tmp_path / "S.parquet", shape, np.dtype(float), solver)
    assert len(list((sink.folder / PARTS).iterdir())) == 1
    for text in ("", "[]", "{", json.dumps({"format": 99, "fingerprint": sink.fingerprint})):
        (sink.folder / PLAN).write_text(text)
        with pytest.raises(FileExistsError, match="part of another fit"):
            sink.begin()


def test_pieces_of_another_cut_are_noticed(tmp_path):
    sink = sink_at(tmp_path / "S.parquet")
    sink.begin()
    sink.write(*piece(0))
    sink.write(*piece(3))
    with pytest.raises(OSError, match="hold 18 outliers, 9 were found"):
        sink.finish(9)
    assert not (tmp_path / "S.parquet").exists()


def test_a_folder_without_pieces_is_taken(tmp_path):
    sink_at(tmp_path / "S.parquet").begin()
    sink = sink_at(tmp_path / "S.parquet", seed=1)
    sink.begin()
    sink.write(*piece(0))
    assert len(pd.read_parquet(sink.finish(9))) == 9
    assert os.listdir(tmp_path) == ["S.parquet"]


def test_the_target_is_never_overwritten(tmp_path):
    sink = sink_at(tmp_path / "S.parquet")
    sink.begin()
    sink.write(*piece(0))
    (tmp_path / "S.parquet").mkdir()
    with pytest.raises(FileExistsError, match="someone else"):
        sink.finish(9)
    assert os.listdir(tmp_path / "S.parquet") == []


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="every worker has to see it"):
        sink_at(tmp_path / "S.parquet").write(*piece(0))


def never(*_):
    raise AssertionError("the fit has begun")


def test_what_stands_in_the_way_is_said_before_the_fit(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="is there already; delete it, or choose another name"):
        irpca.solve(noisy(), callbacks=never, outliers_to=tmp_path / "there")
    with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
        irpca.solve(noisy(), callbacks=never, outliers_to=tmp_path / "nowhere" / "S.parquet")
    monkeypatch.setattr(outlier_files.tempfile, "mkdtemp", refused)
    with pytest.raises(PermissionError, match="nothing can be written in the folder of outliers_to"):
        irpca.solve(noisy(), callbacks=never, outliers_to=tmp_path / "S.parquet")
    assert os.listdir(tmp_path) == ["there"]


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r'pip install "irpca\[files\]"'):
        irpca.solve(noisy(), callbacks=never, outliers_to=tmp_path / "S.parquet")
    assert irpca.solve(noisy()).S.nnz > 0


def test_no_outlier_at_all(tmp_path, streamed):
    problem, path = exact(0.0), tmp_path / "S.parquet"
    irpca.solve(problem.M, problem.F1, problem.F2, engine=Banded(problem.M), outliers_to=path)
    assert pd.read_parquet(tmp_path / "S.parquet").shape == (0, 5)


def test_interrupted_while_it_writes(tmp_path, streamed):
    def interrupt(place):
        raise KeyboardInterrupt

    M = noisy()
    engine = Banded(M)
    engine.after = interrupt
    result = irpca.solve(M, engine=engine, outliers_to=tmp_path / "S.parquet")
    assert result.status.name == "INTERRUPTED" and result.outliers_path is None and result.S is None
    assert os.listdir(tmp_path) == ["S.parquet.part"]
    assert irpca.solve(M, engine=Banded(M), outliers_to=tmp_path / "S.parquet").converged
    assert os.listdir(tmp_path) == ["S.parquet"]


@pytest.mark.parametrize(
    ("most", "given"),
    [(1000, np.asarray), (1 << 24, np.asarray), (100, lambda M: da.from_array(M, chunks=(60, 3)))],
    ids=["large", "small", "dask"],
)
def test_mapped_columns_are_written_in_units_of_M(tmp_path, monkeypatch, most, given):
    M = mixed()
    monkeypatch.setattr(constants, "BUDGET", replace(constants.BUDGET, memory=most))
    model = irpca.InductiveRobustPCA(3, columns=KINDS).fit(M)
    result = irpca.solve(given(M.to_numpy()), rank=3, columns=ASKED, outliers_to=tmp_path / "S")
    wanted, found = model.outliers(), pq.read_table(tmp_path / "S").to_pandas()
    wanted["row"] = M.index.get_indexer(wanted["row"])
    wanted["column"] = M.columns.get_indexer(wanted["column"])
    wanted, found = (table.sort_values(["row", "column"], ignore_index=True) for table in (wanted, found))
    assert len(found) >= 4 and (result.S is None) == (most < M.size)
    for name in found:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9)
    at = found["row"].to_numpy(), found["column"].to_numpy()
    np.testing.assert_allclose(found["observed"], M.to_numpy()[at], rtol=1e-12)
    np.testing.assert_allclose(found["expected"], result.L.entries(*at), rtol=1e-12)
