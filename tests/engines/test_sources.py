"""Storages of M in chunks: each gives back M exactly, and what is wrong with it is said."""

import gc
import pickle
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from distributed import Client
from distributed.utils import key_split
from engines.conformance import listed, with_nan

from irpca.engines.distributed import observations, sources
from irpca.engines.distributed.sources import UnreadableError, source_of

A = np.random.default_rng(0).standard_normal((60, 45))
HOLES = np.where(np.random.default_rng(1).random(A.shape) < 0.7, np.nan, A)


def chunk_of(source, i, j):
    """The task that reads a chunk."""
    found = source.read(i, j)
    return dask.delayed(found, pure=False)() if isinstance(found, sources.Reading) else found


def whole(source, **how):
    """All chunks put together, after a look at each; a listed source gives NaN where nothing was observed."""
    how = how or {"scheduler": "threads"}
    n_rows, n_cols = len(source.row_edges) - 1, len(source.col_edges) - 1
    chunks = dask.compute([[chunk_of(source, i, j) for j in range(n_cols)] for i in range(n_rows)], **how)[0]
    full = np.full(source.shape, np.nan, source.dtype)
    for i, row in enumerate(chunks):
        for j, chunk in enumerate(row):
            assert chunk.dtype == source.dtype
            to = slice(*source.row_edges[i : i + 2]), slice(*source.col_edges[j : j + 2])
            assert chunk.shape == full[to].shape
            if source.listed:
                assert isinstance(chunk, sp.csr_array)
                assert sp.csr_array((chunk.data, chunk.indices, chunk.indptr), chunk.shape).has_canonical_format
                chunk = with_nan(chunk)
            assert type(chunk) is np.ndarray
            full[to] = chunk
    return full


def first(source):
    return chunk_of(source, 0, 0).compute(scheduler="threads")


@pytest.fixture
def small(monkeypatch):
    """Limits that are as small as these matrices."""
    monkeypatch.setattr(sources, "SMALL_BYTES", 1)
    monkeypatch.setattr(sources, "PIECE_BYTES", 8 * A.shape[1] * 9)
    monkeypatch.setattr(observations, "BAND_ENTRIES", 120)


def stored(path, values=HOLES, **options):
    array = zarr.create_array(path, shape=values.shape, dtype=values.dtype, **options)
    array[:] = values
    return array


def npy_folder(path, cuts=(0, 25, 27, 60), M=HOLES):
    path.mkdir(exist_ok=True)
    for k, (start, end) in enumerate(pairwise(cuts)):
        np.save(path / f"part-{k + 8}.npy", M[start:end])
    return path


STORED = {
    "dask array": lambda path, M: da.from_array(M, chunks=((1, 40, 19), (30, 2, 13)) if M.shape == A.shape else -1),
    "zarr array": lambda path, M: stored(path / "M.zarr", M, chunks=(16, 11)[: M.ndim], zarr_format=2),
    "folder of .npy files": lambda path, M: npy_folder(path, (0, 25, 27, 60) if len(M) == 60 else (0, len(M)), M),
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("dtype", ["f8", "f4", ">i4", "?"])
def test_numbers_are_read_as_they_were_stored(tmp_path, small, name, dtype):
    M = HOLES if dtype == "f8" else (10 * A).astype(dtype)
    source = source_of(STORED[name](tmp_path, np.asfortranarray(M)))
    assert (source.name, source.shape, source.listed) == (name, A.shape, False)
    assert source.dtype == (np.float32 if dtype == "f4" else np.float64) and len(source.row_edges) > 3
    np.testing.assert_array_equal(whole(source), M.astype(source.dtype))


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize(
    "values, said",
    [
        (np.arange(5.0), r"must have two dimensions, got shape \(5,\)"),
        (np.ones((0, 3)), r"M is empty: its shape is \(0, 3\)"),
        (np.array([["a", "b"]]), "M.* has dtype .* and does not convert to numbers"),
    ],
)
def test_what_is_refused_wherever_it_is_stored(tmp_path, name, values, said):
    with pytest.raises(ValueError, match=said):
        source_of(STORED[name](tmp_path, values))


# dask arrays


def test_sizes_of_chunks_that_are_zero_unknown_or_found_out():
    source = source_of(da.from_array(A, chunks=((0, 30, 0, 30, 0), (45,))))
    assert source.row_edges == (0, 30, 60)
    np.testing.assert_array_equal(whole(source), A)
    M = da.from_array(A, chunks=20)[da.from_array(A[:, 0] > 0, chunks=20)]
    with pytest.raises(ValueError, match=r"unknown chunk sizes; .*M\.compute_chunk_sizes\(\)"):
        source_of(M)
    M.compute_chunk_sizes()
    np.testing.assert_array_equal(whole(source_of(M)), A[A[:, 0] > 0])


@pytest.mark.parametrize("make", [sp.csr_array, sp.coo_array, sp.csc_matrix])
def test_sparse_chunks_list_what_is_observed(make):
    full = np.where(np.isnan(HOLES), 0, HOLES)
    full[:20] = 0  # whole chunks without an entry
    source = source_of(da.from_array(full, chunks=(20, 15)).map_blocks(make, meta=make((0, 0))))
    assert source.listed
    np.testing.assert_array_equal(whole(source), np.where(full == 0, np.nan, full))


def test_chunks_that_are_not_what_the_meta_says():
    """Listed and dense chunks are made of each other: NaN is what is not observed."""
    kinds = da.from_array(HOLES, chunks=(20, 45)).map_blocks(
        lambda x, block_info=None: listed(x, ~np.isnan(x)).tocoo() if block_info[0]["chunk-location"][0] else x,
        meta=np.empty((0, 0)),
    )
    assert not source_of(kinds).listed
    np.testing.assert_array_equal(whole(source_of(kinds)), HOLES)
    some = HOLES.copy()
    some[20:40] = np.nan
    kinds = da.from_array(some, chunks=(20, 45)).map_blocks(lambda x: x, meta=sp.csr_array((0, 0)))
    assert source_of(kinds).listed
    np.testing.assert_array_equal(whole(source_of(kinds)), some)


def test_masked_chunks_are_missing():
    source = source_of(da.from_array(np.ma.masked_array(A, np.isnan(HOLES)), chunks=(20, 20)))
    assert not source.listed
    np.testing.assert_array_equal(whole(source), HOLES)


def declared(dtype, made):
    """A dask array that declares a dtype, and makes something else of its chunk (1, 0)."""

    def block(x, block_info=None):
        return made(x) if block_info[0]["chunk-location"] == (1, 0) else x

    M = da.from_array(A.astype(dtype), chunks=(20, 45))
    return M.map_blocks(block, dtype=dtype, meta=np.empty((0, 0), dtype))


@pytest.mark.parametrize("dtype, found", [("f8", "f4"), ("f4", "i2"), ("i8", "f8")])
def test_a_chunk_of_another_dtype_is_converted_if_nothing_is_lost(dtype, found):
    source = source_of(declared(dtype, lambda x: x.astype(found)))
    expected = A.astype(dtype).astype(source.dtype)
    expected[20:40] = A.astype(dtype)[20:40].astype(found)
    np.testing.assert_array_equal(whole(source), expected)


@pytest.mark.parametrize(
    "dtype, made, said",
    [
        ("f4", lambda x: x.astype("f8"), "has dtype float64, and M declares float32: digits would be lost"),
        ("f8", lambda x: x.astype(object), "has dtype object and does not convert to numbers"),
        ("f8", lambda x: x[:3], r"has shape (3, 45), and M declares (20, 45) for it"),
        ("f8", lambda x: sp.csr_array(x.astype("c16")), "is complex; only real matrices"),
    ],
)
def test_a_chunk_that_is_not_as_declared(dtype, made, said):
    source = source_of(declared(dtype, made))
    first(source)
    with pytest.raises(ValueError, match=re.escape("chunk (1, 0) of M (rows 20 to 39, columns 0 to 44) " + said)):
        whole(source)


@pytest.mark.parametrize(
    "value, said",
    [
        (np.inf, r"chunk \(0, 0\) of M .*infinite"),
        (np.nan, r"1 entries that chunk \(0, 0\) of M .* stores are NaN; leave out"),
    ],
)
def test_what_a_sparse_chunk_may_not_hold(value, said):
    made = sp.csr_array((np.array([1.0, value]), ([0, 1], [0, 1])), (20, 45))
    with pytest.raises(ValueError, match=said):
        first(source_of(da.from_array(A, chunks=(20, 45)).map_blocks(lambda x: made, meta=made[:0])))


# zarr


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [(60, 45), (7, 45), (60, 8)])
def test_small_chunks_of_a_zarr_store_are_read_together(tmp_path, monkeypatch, chunks, zarr_format):
    array = stored(tmp_path / "plain", chunks=chunks, zarr_format=zarr_format)
    cut = (*range(0, 60, chunks[0]), 60), (*range(0, 45, chunks[1]), 45)
    for limit, edges in ((1 << 22, ((0, 60), (0, 45))), (1, cut)):
        monkeypatch.setattr(sources, "SMALL_BYTES", limit)
        for given in (array, tmp_path / "plain", str(tmp_path / "plain")):
            source = source_of(given)
            assert (source.row_edges, source.col_edges) == edges
            np.testing.assert_array_equal(whole(source), HOLES)


def test_whole_shards_are_read_and_what_is_not_there_is_the_fill_value(tmp_path, small):
    array = zarr.create_array(
        tmp_path / "M", shape=A.shape, chunks=(5, 5), shards=(30, 20), dtype="f8", fill_value=np.nan
    )
    array[:30] = A[:30]
    source = source_of(array)
    assert source.row_edges == (0, 30, 60) and source.col_edges == (0, 20, 40, 45)
    np.testing.assert_array_equal(whole(source), np.where(np.arange(60)[:, None] < 30, A, np.nan))


def test_a_zarr_group_with_one_matrix(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group["x"], group["M"], group["cube"] = np.arange(60), HOLES, np.ones((2, 2, 2))
    for M in (group, tmp_path / "g.zarr"):
        np.testing.assert_array_equal(whole(source_of(M)), HOLES)
    group["other"] = A
    with pytest.raises(ValueError, match=r"group of the arrays .*'M'.*'other'.*of which 2 have.*pass one.*group\[\""):
        source_of(group)
    empty = zarr.open_group(tmp_path / "empty", mode="w")
    with pytest.raises(ValueError, match=r"M is a zarr group, .*empty, that holds no array"):
        source_of(empty)


def damaged(tmp_path):
    array = stored(tmp_path / "M.zarr", A, chunks=(20, 15))
    (tmp_path / "M.zarr" / "c" / "1" / "2").write_bytes(b"not a chunk")
    return array


def test_a_damaged_chunk_is_named(tmp_path, small):
    source = source_of(damaged(tmp_path))
    np.testing.assert_array_equal(first(source), A[:20, :15])
    with pytest.raises(UnreadableError, match=r"rows 20 to 39, columns 30 to 44 of file:.*M\.zarr") as caught:
        whole(source)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is UnreadableError and str(again) == str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    (tmp_path / "M.zarr" / "zarr.json").write_text("{nothing")
    with pytest.raises(ValueError, match=r"M is a folder, '.*M\.zarr', that is no zarr store, or damaged"):
        source_of(tmp_path / "M.zarr")


# .npy files


@pytest.mark.parametrize("cuts", [(0, 60), (0, 25, 27, 60), (0, 0, 9, 18, 18, 60), range(61)])
def test_a_folder_of_npy_files(tmp_path, monkeypatch, cuts):
    """Small ones are read together, nine rows at a time here; part-10 comes after part-9."""
    folder = npy_folder(tmp_path / "M", cuts)
    assert source_of(folder).row_edges == (0, 60)
    monkeypatch.setattr(sources, "PIECE_BYTES", 8 * A.shape[1] * 9)
    for M in (folder, str(folder)):
        source = source_of(M)
        assert len(source.row_edges) == 8 and max(np.diff(source.row_edges)) <= 9
        np.testing.assert_array_equal(whole(source), HOLES)


@pytest.mark.parametrize(
    "values, said",
    [
        (np.ones((3, 44)), r"part-99\.npy has 44 columns, and .*part-8\.npy has 45"),
        (np.full((3, 45), None), r"part-99\.npy is no \.npy array of numbers"),
    ],
)
def test_an_npy_file_that_is_refused(tmp_path, values, said):
    np.save(npy_folder(tmp_path) / "part-99.npy", values)
    with pytest.raises(ValueError, match=f"M: .*{said}"):
        source_of(tmp_path)


def test_an_npy_file_that_is_cut_off(tmp_path):
    file = npy_folder(tmp_path) / "part-9.npy"
    source = source_of(tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UnreadableError, match=r"rows 0 to 1 of .*part-9\.npy"):
        whole(source)
    with pytest.raises(ValueError, match=r"M: .*part-9\.npy is no \.npy array of numbers, or damaged"):
        source_of(tmp_path)


# tables of (row, column, value)


def table(kind=int, order="shuffled", M=HOLES):
    """Lines of the observed entries, whose ids sort as the rows and columns do."""
    rows, cols = np.nonzero(~np.isnan(M))
    frame = pd.DataFrame({"row": 5 + 3 * rows, "column": 100 - 45 + cols, "value": M[rows, cols]})
    if kind is str:
        frame["row"], frame["column"] = (frame["row"]).map("u{:04}".format), frame["column"].map("é{:03}".format)
    if kind == "category":
        frame = frame.astype({"row": "category", "column": "category"})
    if kind == "Int64":
        frame = frame.astype({"row": "Int64", "column": "UInt32", "value": "Float64"})
    if kind == "date":
        frame["row"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(frame["row"], unit="D")
    return frame if order == "sorted" else frame.sample(frac=1, random_state=0, ignore_index=True)


def in_parts(frame, npartitions=5):
    return dd.from_pandas(frame, npartitions=npartitions, sort=False)


def check_table(source, frame, M=HOLES, **how):
    rows, cols = (~np.isnan(M)).any(1), (~np.isnan(M)).any(0)
    assert source.listed and source.col_edges == (0, cols.sum()) and source.shape == (rows.sum(), cols.sum())
    np.testing.assert_array_equal(whole(source, **how), M[rows][:, cols])
    if frame["row"].dtype.kind != "M":
        expected = [np.unique(np.asarray(frame[side], object)).tolist() for side in ("row", "column")]
        assert [labels.tolist() for labels in source.labels] == expected


@pytest.mark.parametrize("kind", [int, str, "category", "Int64", "date"])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_a_dask_frame(small, kind, order):
    frame = table(kind, order)
    source = source_of(in_parts(frame))
    assert source.name == "dask DataFrame" and len(source.row_edges) > 4
    check_table(source, frame)


def scratch_folders(tmp_path):
    return list(tmp_path.glob("irpca-*"))


def test_the_scratch_folder_lives_as_long_as_the_source(tmp_path, small):
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        source = source_of(in_parts(table()))
    [folder] = scratch_folders(tmp_path)
    assert {file.name.split("-")[0] for file in folder.iterdir()} == {"band"}
    task = chunk_of(source, 1, 0)
    (folder / "band-1-0.npy").unlink()
    with pytest.raises(UnreadableError, match=r"rows \d+ to \d+, columns 0 to 44, in .*irpca-"):
        task.compute(scheduler="threads")
    del source, task
    gc.collect()
    assert not scratch_folders(tmp_path)


def test_parts_that_are_bands_are_read_as_they_are(tmp_path, small):
    """Nothing is written, and small neighbours are read together."""
    frame = table(order="sorted")
    row = frame["row"].to_numpy()
    parts = [frame[(row >= 5 + 3 * start) & (row < 5 + 3 * start + 6)] for start in range(0, 60, 2)]
    parts.insert(3, frame[:0].astype({"row": object}))  # empty, and of another kind
    M = dd.from_delayed([dask.delayed(part) for part in parts], meta=frame[:0], verify_meta=False)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        source = source_of(M)
        assert not scratch_folders(tmp_path)
    assert 5 < len(source.row_edges) < 20
    check_table(source, frame)


def test_a_full_disk_is_told(tmp_path, small, monkeypatch):
    def save(file, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", save)
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        pytest.raises(OSError, match=r"cannot be written to .*irpca-.*No space left.*temporary-directory"),
    ):
        source_of(in_parts(table()))
    assert not scratch_folders(tmp_path)


@pytest.mark.parametrize("kind", [int, str, "category", "date"])
@pytest.mark.parametrize("files", [1, 12])
def test_parquet(tmp_path, small, kind, files):
    frame = table(kind).astype({"value": "f4" if files > 1 else "f8"})
    folder = tmp_path / "ratings"
    folder.mkdir()
    for k, lines in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[lines].to_parquet(folder / f"part-{k}.parquet", row_group_size=50)
    (folder / "_SUCCESS").touch()
    M = folder if files > 1 else folder / "part-0.parquet"
    for given in (M, str(M)):
        source = source_of(given)
        assert source.name == ("folder of Parquet files" if files > 1 else "Parquet file")
        assert source.dtype == (np.float32 if files > 1 else np.float64)
        check_table(source, frame, HOLES.astype(source.dtype))


@pytest.mark.parametrize("names", [("userId", "movieId", "rating"), ("Row_ID", "Col", "Value"), ("x", "y", "z")])
def test_names_of_the_columns(names):
    frame = table()
    renamed = frame.set_axis(list(names), axis=1)
    if names[0] != "x":
        renamed = renamed.assign(when=0)[[names[1], "when", names[2], names[0]]]
    check_table(source_of(in_parts(renamed, 2)), frame)


def test_columns_that_say_nothing(tmp_path):
    frame = pd.DataFrame(A[:, :4], columns=list("wxyz"))
    said = r"the columns 'w', 'x', 'y', 'z'\. Three are needed, row, column and value.*M\.to_dask_array\(lengths=True\)"
    with pytest.raises(ValueError, match=f"M is a dask DataFrame, with {said}"):
        source_of(in_parts(frame, 2))
    frame.to_parquet(tmp_path / "M.parquet")
    with pytest.raises(ValueError, match=rf"M: .*M\.parquet, with {said}"):
        source_of(tmp_path / "M.parquet")
    table().to_parquet(tmp_path / "L.parquet")
    with pytest.raises(ValueError, match=r"M: .*M\.parquet has the columns 'w', 'x', 'y', 'z', and .*L\.parquet has"):
        source_of(tmp_path)


@pytest.mark.parametrize(
    "column, value, said",
    [
        ("value", np.nan, "M: 2 values are NaN in the column 'value'; leave out what was not observed"),
        ("value", np.inf, "M: 2 values are infinite in the column 'value'"),
        ("value", "high", "M: the values in the column 'value' must be real numbers, got"),
        ("row", None, r"M: 2 ids are missing in the column 'row'.*M\.dropna\(subset=\['row'\]\)"),
        ("column", "four", "M: the ids in the column 'column' cannot be sorted"),
    ],
)
def test_lines_that_are_refused(small, column, value, said):
    frame = table()
    frame[column] = frame[column].astype(frame[column].dtype if isinstance(value, float) else object)
    frame.loc[[3, len(frame) - 3], column] = value
    with dask.config.set({"dataframe.convert-string": False}), pytest.raises(ValueError, match=said):
        source_of(in_parts(frame))


@pytest.mark.parametrize("kind, shown", [(int, "row 65, column 6[0-9]"), (str, "row 'u0065', column 'é0[0-9]+'")])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_a_cell_that_is_there_twice(small, kind, shown, order):
    frame = table(kind, order="sorted")
    again = frame[frame["row"] == (65 if kind is int else "u0065")].iloc[[2]].assign(value=7.0)
    frame = pd.concat([frame, again], ignore_index=True)
    frame = frame.sample(frac=1, random_state=0) if order == "shuffled" else frame.sort_values("row", kind="stable")
    with pytest.raises(
        ValueError, match=rf"M: {shown} is there 2 times, with values .*; only you can say.*drop_duplicates\(\['row'"
    ):
        whole(source_of(in_parts(frame, 5 if order == "shuffled" else 1)))


def test_a_table_without_lines(tmp_path):
    table()[:0].to_parquet(tmp_path / "M.parquet")
    for M in (in_parts(table()[:0], 1), tmp_path / "M.parquet"):
        with pytest.raises(ValueError, match="M is empty: there are no observations"):
            source_of(M)


def test_a_parquet_file_that_changes_or_is_damaged(tmp_path):
    file, frame = tmp_path / "M.parquet", table(order="sorted")
    frame.to_parquet(file)
    source, content = source_of(file), file.read_bytes()
    frame.assign(column=1).to_parquet(file)
    with pytest.raises(ValueError, match=r"M has changed since it was first read: there are other ids in .*'column'"):
        first(source)
    file.write_bytes(content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :])
    with pytest.raises(UnreadableError, match=r"row groups 0 to 0 of .*M\.parquet"):
        first(source)
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"M: .*M\.parquet is no Parquet file, or damaged"):
        source_of(file)


# by name


@pytest.mark.parametrize(
    "M", [A, A.tolist(), sp.csr_array(A), pd.DataFrame(A), None, "a.csv", Path("b.npy"), "x" * 999, __file__]
)
def test_what_is_no_storage(M):
    assert source_of(M) is None


@pytest.mark.parametrize("name", ["M.zarr", "M.parquet"])
def test_a_storage_that_is_not_there(tmp_path, name):
    with pytest.raises(ValueError, match=rf"M is a file name, '.*{name}', and there is no such file or folder"):
        source_of(tmp_path / name)
    with pytest.raises(ValueError, match=f"M is 's3://bucket/{name}', which is not on this machine; pass (zarr|dask)"):
        source_of(f"s3://bucket/{name}")


def test_a_folder_of_nothing_or_of_too_much(tmp_path):
    with pytest.raises(ValueError, match=r"M is a folder, .*, that holds neither \.npy nor Parquet files"):
        source_of(tmp_path)
    npy_folder(tmp_path)
    table().to_parquet(tmp_path / "M.parquet")
    with pytest.raises(ValueError, match=r"M is a folder, .*, of both \.npy and Parquet files"):
        source_of(tmp_path)


def test_nothing_is_imported_for_an_array():
    code = """
import sys, numpy as np
from irpca.engines.distributed.sources import source_of
assert source_of(np.ones((2, 2))) is None and source_of("M.csv") is None
print(*[name for name in ("dask", "distributed", "zarr", "pandas", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_without_dask(tmp_path, monkeypatch):
    table().to_parquet(tmp_path / "M.parquet")
    storages = [npy_folder(tmp_path / "npy"), stored(tmp_path / "M.zarr"), tmp_path / "M.zarr", tmp_path / "M.parquet"]
    for name in ("dask", "dask.array", "dask.dataframe"):
        monkeypatch.setitem(sys.modules, name, None)
    for M in storages:
        with pytest.raises(ImportError, match=r'M is a .*dask.* reads it: pip install "irpca\[dask\]"'):
            source_of(M)


# schedulers


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, dashboard_address=":0", n_workers=1, threads_per_worker=2) as client:  # any free port
        yield client


def storages(tmp_path):
    """One of each, with several chunks."""
    table().to_parquet(tmp_path / "M.parquet", row_group_size=50)
    yield da.from_array(HOLES, chunks=(16, 11))
    yield stored(tmp_path / "M.zarr", chunks=(16, 11))
    yield npy_folder(tmp_path / "npy")
    yield in_parts(table())
    yield in_parts(table(str, "sorted"), 1)
    yield tmp_path / "M.parquet"


def test_the_tasks_can_be_sent(tmp_path, small, client):
    for M in storages(tmp_path):
        source = source_of(M)
        task = chunk_of(source, 0, 0)
        if source.name == "dask array":
            assert key_split(task.key) == "irpca-read" and chunk_of(source, 0, 0).key == task.key
        again = cloudpickle.loads(cloudpickle.dumps(task)).compute(scheduler="sync")
        expected = HOLES[slice(*source.row_edges[:2]), slice(*source.col_edges[:2])]
        np.testing.assert_array_equal(with_nan(again) if source.listed else again, expected)
        np.testing.assert_array_equal(whole(source, scheduler=client), HOLES, err_msg=source.name)


def test_workers_that_share_no_disk_exchange_the_entries(tmp_path, small, client, monkeypatch):
    monkeypatch.setattr(observations, "_is_shared", lambda client, folder: False)
    frame = table(str)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        source = source_of(in_parts(frame))
    assert not scratch_folders(tmp_path) and len(source.row_edges) > 4
    check_table(source, frame, scheduler=client)
    with pytest.raises(ValueError, match="is there 2 times, with values"):
        whole(source_of(in_parts(pd.concat([frame, frame[:1]]))), scheduler=client)
