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

from irpca.engines.distributed import observations, sources
from irpca.engines.distributed.sources import UnreadableError, source_of

A = np.random.default_rng(0).standard_normal((60, 45))
HOLES = np.where(np.random.default_rng(1).random(A.shape) < 0.7, np.nan, A)
CHUNKINGS = {
    "one": (60, 45),
    "rows": (7, 45),
    "columns": (60, 8),
    "tiles": (16, 11),
    "ragged": ((1, 40, 19), (30, 2, 13)),
    "cells of one row": (1, 20),
}


def whole(source, **how):
    """All chunks put together, after a look at each; a listed source gives NaN where nothing was observed."""
    how = how or {"scheduler": "threads"}
    n_rows, n_cols = len(source.row_edges) - 1, len(source.col_edges) - 1
    chunks = dask.compute([[source.chunk(i, j) for j in range(n_cols)] for i in range(n_rows)], **how)[0]
    full = np.full(source.shape, np.nan, source.dtype)
    for i, row in enumerate(chunks):
        for j, chunk in enumerate(row):
            assert chunk.dtype == source.dtype
            to = slice(*source.row_edges[i : i + 2]), slice(*source.col_edges[j : j + 2])
            assert chunk.shape == full[to].shape
            if source.listed:
                assert isinstance(chunk, sp.csr_array)
                again = sp.csr_array((chunk.data, chunk.indices, chunk.indptr), chunk.shape)
                assert again.has_canonical_format
                chunk = dense(chunk)
            assert type(chunk) is np.ndarray
            full[to] = chunk
    return full


def dense(entries):
    entries = entries.tocoo()
    full = np.full(entries.shape, np.nan, entries.dtype)
    full[entries.coords] = entries.data
    return full


def first(source):
    return source.chunk(0, 0).compute(scheduler="threads")


@pytest.fixture
def small(monkeypatch):
    """Limits that are as small as these matrices."""
    monkeypatch.setattr(sources, "SMALL_BYTES", 1)
    monkeypatch.setattr(sources, "PIECE_BYTES", 8 * A.shape[1] * 9)
    monkeypatch.setattr(observations, "BAND_ENTRIES", 120)


# dask arrays


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
def test_a_dask_array_of_any_chunks(chunks):
    M = da.from_array(HOLES, chunks=chunks)
    source = source_of(M)
    assert (source.shape, source.dtype, source.listed, source.name) == (A.shape, A.dtype, False, "dask array")
    assert np.diff(source.row_edges).tolist() == list(M.chunks[0])
    assert np.diff(source.col_edges).tolist() == list(M.chunks[1])
    np.testing.assert_array_equal(whole(source), HOLES)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i8", "u1", "?", ">f8"])
def test_numbers_of_a_dask_array(dtype):
    M = (10 * np.abs(A)).astype(dtype)
    source = source_of(da.from_array(M, chunks=20))
    assert source.dtype == (np.float32 if dtype == "f4" else np.float64)
    np.testing.assert_array_equal(whole(source), M.astype(source.dtype))


def test_chunks_without_rows_are_left_out():
    M = da.from_array(A, chunks=((0, 30, 0, 30, 0), (45,)))
    assert 0 in M.chunks[0]
    source = source_of(M)
    assert source.row_edges == (0, 30, 60)
    np.testing.assert_array_equal(whole(source), A)


def test_a_dask_array_in_fortran_order():
    np.testing.assert_array_equal(whole(source_of(da.from_array(np.asfortranarray(A), chunks=(20, 45)))), A)


@pytest.mark.parametrize("make", [sp.csr_array, sp.coo_array, sp.csc_matrix])
def test_sparse_chunks_list_what_is_observed(make):
    full = np.where(np.isnan(HOLES), 0, HOLES)
    full[:20] = 0  # whole chunks without an entry
    M = da.from_array(full, chunks=(20, 15)).map_blocks(make, meta=make((0, 0)))
    source = source_of(M)
    assert source.listed
    np.testing.assert_array_equal(whole(source), np.where(full == 0, np.nan, full))


def test_chunks_that_are_not_what_the_meta_says():
    """Listed and dense chunks are made of each other: NaN is what is not observed."""
    entries = sp.csr_array(np.where(np.isnan(HOLES), 0, HOLES))
    kinds = da.from_array(HOLES, chunks=(20, 45)).map_blocks(
        lambda x, block_info=None: listed(x) if block_info[0]["chunk-location"][0] else x, meta=np.empty((0, 0))
    )
    assert not source_of(kinds).listed
    np.testing.assert_array_equal(whole(source_of(kinds)), HOLES)
    some = HOLES.copy()
    some[20:40] = np.nan
    kinds = da.from_array(some, chunks=(20, 45)).map_blocks(lambda x: x, meta=entries[:0])
    assert source_of(kinds).listed
    np.testing.assert_array_equal(whole(source_of(kinds)), some)


def listed(x):
    rows, cols = np.nonzero(~np.isnan(x))
    return sp.coo_array((x[rows, cols], (rows, cols)), x.shape)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_masked_chunks_are_missing(dtype):
    data = (100 * A).astype(dtype)
    M = da.from_array(np.ma.masked_array(data, np.isnan(HOLES)), chunks=(20, 20))
    source = source_of(M)
    assert not source.listed
    np.testing.assert_array_equal(whole(source), np.where(np.isnan(HOLES), np.nan, data.astype(source.dtype)))


def declared(dtype, made):
    """A dask array that declares a dtype, and makes something else of its chunk (1, 0)."""

    def block(x, block_info=None):
        return made(x) if block_info[0]["chunk-location"] == (1, 0) else x

    M = da.from_array(A.astype(dtype), chunks=(20, 45))
    return M.map_blocks(block, dtype=dtype, meta=np.empty((0, 0), dtype))


@pytest.mark.parametrize(
    "dtype, found", [("f8", "f4"), ("f8", "i4"), ("f4", "f2"), ("f4", "i2"), ("i8", "f8"), ("f8", "?")]
)
def test_a_chunk_of_another_dtype_is_converted_if_nothing_is_lost(dtype, found):
    source = source_of(declared(dtype, lambda x: x.astype(found)))
    expected = A.astype(dtype).astype(source.dtype)
    expected[20:40] = A.astype(dtype)[20:40].astype(found)
    np.testing.assert_array_equal(whole(source), expected)


@pytest.mark.parametrize(
    "dtype, made, said",
    [
        ("f4", lambda x: x.astype("f8"), "has dtype float64, and M declares float32: digits would be lost"),
        ("f4", lambda x: x.astype("i8"), "has dtype int64, and M declares float32: digits would be lost"),
        ("f8", lambda x: x.astype("c16"), "is complex; only real matrices"),
        ("f8", lambda x: x.astype(object), "has dtype object and does not convert to numbers"),
        ("f8", lambda x: x.astype(str), "has dtype <U32 and does not convert to numbers"),
        ("f8", lambda x: x[:3], r"has shape (3, 45), and M declares (20, 45) for it"),
        ("f8", lambda x: sp.csr_array(x.astype("c16")), "is complex; only real matrices"),
        ("f8", lambda x: x.ravel(), "has shape (900,), and M declares (20, 45) for it"),
    ],
)
def test_a_chunk_that_is_not_as_declared(dtype, made, said):
    source = source_of(declared(dtype, made))
    first(source)
    with pytest.raises(ValueError, match=re.escape("chunk (1, 0) of M (rows 20 to 39, columns 0 to 44) " + said)):
        whole(source)


def test_what_a_sparse_chunk_may_not_hold():
    def with_entry(value):
        made = sp.csr_array((np.array([1.0, value]), ([0, 1], [0, 1])), (20, 45))
        return source_of(da.from_array(A, chunks=(20, 45)).map_blocks(lambda x: made, meta=made[:0]))

    with pytest.raises(ValueError, match=r"chunk \(0, 0\) of M .*infinite"):
        first(with_entry(np.inf))
    with pytest.raises(ValueError, match=r"1 entries that chunk \(0, 0\) of M .* stores are NaN; leave out"):
        first(with_entry(np.nan))


@pytest.mark.parametrize(
    "M, said",
    [
        (da.ones(5), r"M must have two dimensions, got shape \(5,\)"),
        (da.ones((2, 3, 4)), r"M must have two dimensions, got shape \(2, 3, 4\)"),
        (da.ones((0, 4)), r"M is empty: its shape is \(0, 4\)"),
        (da.ones((4, 4), dtype=complex), "M is complex; only real matrices can be decomposed"),
        (da.from_array(A.astype(object), chunks=20), "M has dtype object and does not convert to numbers"),
        (da.from_array(A.astype(str), chunks=20), "M has dtype <U.* and does not convert to numbers"),
        (da.from_array(A, chunks=20)[da.from_array(A[:, 0] > 0, chunks=20)], r"M .*M\.compute_chunk_sizes\(\)"),
        (dd.from_pandas(pd.Series([1, 2]), npartitions=1), "M is a dask Series; a dask array"),
    ],
)
def test_a_dask_array_that_is_refused(M, said):
    with pytest.raises(ValueError, match=said):
        source_of(M)


def test_unknown_sizes_that_were_found_out():
    M = da.from_array(A, chunks=20)[da.from_array(A[:, 0] > 0, chunks=20)]
    M.compute_chunk_sizes()
    np.testing.assert_array_equal(whole(source_of(M)), A[A[:, 0] > 0])


# zarr


def stored(path, values=HOLES, **options):
    array = zarr.create_array(path, shape=values.shape, dtype=values.dtype, **options)
    array[:] = values
    return array


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [(60, 45), (7, 45), (60, 8), (16, 11), (1, 20)])
def test_a_zarr_array_of_any_chunks(tmp_path, monkeypatch, chunks, zarr_format):
    array = stored(tmp_path / "M", chunks=chunks, zarr_format=zarr_format)
    source = source_of(array)
    assert (source.row_edges, source.col_edges) == ((0, 60), (0, 45))  # small chunks are read together
    np.testing.assert_array_equal(whole(source), HOLES)
    monkeypatch.setattr(sources, "SMALL_BYTES", 1)
    source = source_of(array)
    assert source.row_edges == (*range(0, 60, chunks[0]), 60) and source.col_edges == (*range(0, 45, chunks[1]), 45)
    assert source.name == "zarr array" and not source.listed
    np.testing.assert_array_equal(whole(source), HOLES)


def test_whole_shards_are_read(tmp_path, small):
    source = source_of(stored(tmp_path / "M", chunks=(5, 5), shards=(30, 20)))
    assert source.row_edges == (0, 30, 60) and source.col_edges == (0, 20, 40, 45)
    np.testing.assert_array_equal(whole(source), HOLES)


@pytest.mark.parametrize(
    "chunk, shape",
    [((1, 1), (10**6, 10**6)), ((100, 100), (10**6, 10**6)), ((1000, 1), (10**6, 10**6)), ((1, 10), (10**7, 10))],
)
def test_small_chunks_are_read_several_together(chunk, shape):
    rows, cols = sources._joined(chunk, shape, 8)
    assert rows % chunk[0] == 0 and cols % chunk[1] == 0
    assert 16 << 20 <= 8 * rows * cols <= 64 << 20


def test_chunks_that_are_large_enough_stay():
    assert sources._joined((1000, 1000), (10**5, 10**5), 8) == (1000, 1000)
    assert sources._joined((10**5, 10**4), (10**5, 10**5), 8) == (10**5, 10**4)


@pytest.mark.parametrize("dtype", ["f4", "i2", ">i4", "?"])
def test_numbers_of_a_zarr_array(tmp_path, small, dtype):
    M = (10 * A).astype(dtype)
    source = source_of(stored(tmp_path / "M", M, chunks=(20, 20)))
    assert source.dtype == (np.float32 if dtype == "f4" else np.float64)
    np.testing.assert_array_equal(whole(source), M.astype(source.dtype))


def test_chunks_that_are_not_there_are_the_fill_value(tmp_path, small):
    array = zarr.create_array(tmp_path / "M", shape=A.shape, chunks=(20, 45), dtype="f8", fill_value=np.nan)
    array[:20] = A[:20]
    np.testing.assert_array_equal(whole(source_of(array)), np.where(np.arange(60)[:, None] < 20, A, np.nan))


def test_a_zarr_group_with_one_matrix(tmp_path):
    group = zarr.open_group(tmp_path / "g", mode="w")
    group["x"], group["M"], group["cube"] = np.arange(60), HOLES, np.ones((2, 2, 2))
    for M in (group, tmp_path / "g", str(tmp_path / "g")):
        np.testing.assert_array_equal(whole(source_of(M)), HOLES)
    group["other"] = A
    with pytest.raises(ValueError, match=r"group of the arrays .*'M'.*'other'.*of which 2 have.*pass one.*group\[\""):
        source_of(group)
    empty = zarr.open_group(tmp_path / "empty", mode="w")
    with pytest.raises(ValueError, match=r"M is a zarr group, .*empty, that holds no array"):
        source_of(empty)
    empty["x"] = np.arange(3)
    with pytest.raises(ValueError, match="'x', of which 0 have two dimensions"):
        source_of(tmp_path / "empty")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["M.zarr", "plain"])
def test_a_zarr_store_by_its_name(tmp_path, zarr_format, name):
    stored(tmp_path / name, chunks=(16, 11), zarr_format=zarr_format)
    for path in (tmp_path / name, str(tmp_path / name)):
        np.testing.assert_array_equal(whole(source_of(path)), HOLES)


@pytest.mark.parametrize(
    "values, said",
    [
        (np.arange(5.0), r"M must have two dimensions, got shape \(5,\)"),
        (np.ones((0, 3)), r"M is empty: its shape is \(0, 3\)"),
        (np.ones((2, 3), complex), "M is complex"),
        (np.array([["a", "b"]]), "M has dtype .* and does not convert to numbers"),
    ],
)
def test_a_zarr_array_that_is_refused(values, said):
    array = zarr.create_array({}, shape=values.shape, dtype=values.dtype, chunks=(1,) * values.ndim, zarr_format=2)
    with pytest.raises(ValueError, match=said):
        source_of(array)


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


class Locked(zarr.storage.LocalStore):
    """A store with a chunk that nobody may read; its error does not pickle."""

    async def get(self, key, *args, **kwargs):
        if key == "c/0/1":
            error = PermissionError(13, "Permission denied")
            error.handle = lambda: None
            raise error
        return await super().get(key, *args, **kwargs)


def test_a_chunk_without_permission_is_named(tmp_path, small):
    stored(tmp_path / "M", chunks=(60, 20))
    with pytest.raises(UnreadableError, match=r"rows 0 to 59, columns 20 to 39 of file:.*Permission denied"):
        whole(source_of(zarr.open_array(Locked(tmp_path / "M"), mode="r")))


def test_a_folder_that_is_a_damaged_zarr_store(tmp_path):
    (tmp_path / "M.zarr").mkdir()
    (tmp_path / "M.zarr" / "zarr.json").write_text("{nothing")
    with pytest.raises(ValueError, match=r"M is a folder, '.*M\.zarr', that is no zarr store, or damaged"):
        source_of(tmp_path / "M.zarr")


# .npy files


def npy_folder(path, cuts=(0, 25, 27, 60), M=HOLES):
    path.mkdir(exist_ok=True)
    for k, (start, end) in enumerate(pairwise(cuts)):
        np.save(path / f"part-{k + 8}.npy", M[start:end])
    return path


@pytest.mark.parametrize("cuts", [(0, 60), (0, 25, 27, 60), (0, 0, 9, 18, 60), range(61)])
def test_a_folder_of_npy_files(tmp_path, small, cuts):
    """Nine rows are read at once; part-10 comes after part-9."""
    folder = npy_folder(tmp_path / "M", cuts)
    for M in (folder, str(folder)):
        source = source_of(M)
        assert source.name == "folder of .npy files" and source.col_edges == (0, 45)
        assert len(source.row_edges) > 6 and max(np.diff(source.row_edges)) <= 9
        np.testing.assert_array_equal(whole(source), HOLES)


def test_npy_files_are_cut_at_64_mib_and_small_ones_read_together(tmp_path):
    source = source_of(npy_folder(tmp_path / "M"))
    assert source.row_edges == (0, 60)
    np.save(tmp_path / "M" / "part-99.npy", np.broadcast_to(np.float64(1), (1 << 18, 45)))  # 90 MiB
    assert np.diff(source_of(tmp_path / "M").row_edges).tolist() == [60 + (1 << 17), 1 << 17]


def test_npy_files_of_several_kinds(tmp_path, small):
    np.save(tmp_path / "a1.npy", np.asfortranarray(A[:20]))
    np.save(tmp_path / "a2.npy", A[20:40].astype("f4"))
    np.save(tmp_path / "a10.npy", (9 * A[40:]).astype("i2"))
    source = source_of(tmp_path)
    assert source.dtype == np.float64
    expected = np.vstack([A[:20], A[20:40].astype("f4"), (9 * A[40:]).astype("i2")])
    np.testing.assert_array_equal(whole(source), expected)


def test_npy_files_of_float32_stay(tmp_path):
    source = source_of(npy_folder(tmp_path, M=A.astype("f4")))
    assert source.dtype == np.float32
    np.testing.assert_array_equal(whole(source), A.astype("f4"))


@pytest.mark.parametrize(
    "values, said",
    [
        (np.ones((3, 44)), r"part-99\.npy has 44 columns, and .*part-8\.npy has 45"),
        (np.ones(45), r"part-99\.npy must have two dimensions, got shape \(45,\)"),
        (np.ones((3, 45), complex), r"part-99\.npy is complex"),
        (np.full((3, 45), "a"), r"part-99\.npy has dtype <U1 and does not convert to numbers"),
        (np.full((3, 45), None), r"part-99\.npy is no \.npy array of numbers"),
    ],
)
def test_an_npy_file_that_is_refused(tmp_path, values, said):
    np.save(npy_folder(tmp_path) / "part-99.npy", values)
    with pytest.raises(ValueError, match=f"M: .*{said}"):
        source_of(tmp_path)


def test_npy_files_without_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((0, 3)))
    with pytest.raises(ValueError, match=r"M is empty: its shape is \(0, 3\)"):
        source_of(tmp_path)


def test_an_npy_file_that_is_cut_off(tmp_path):
    file = npy_folder(tmp_path) / "part-9.npy"
    source = source_of(tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UnreadableError, match=r"rows 0 to 1 of .*part-9\.npy"):
        whole(source)
    with pytest.raises(ValueError, match=r"M: .*part-9\.npy is no \.npy array of numbers, or damaged"):
        source_of(tmp_path)
    file.unlink()
    with pytest.raises(UnreadableError, match=r"part-9\.npy.*No such file"):
        whole(source)


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


def expected_labels(frame):
    return [np.unique(np.asarray(frame[side], object)).tolist() for side in ("row", "column")]


def check_table(source, frame, M=HOLES, **how):
    rows, cols = (~np.isnan(M)).any(1), (~np.isnan(M)).any(0)
    assert source.listed and source.col_edges == (0, cols.sum()) and source.shape == (rows.sum(), cols.sum())
    np.testing.assert_array_equal(whole(source, **how), M[rows][:, cols])
    if "row" in frame and not isinstance(frame["row"].dtype, pd.DatetimeTZDtype) and frame["row"].dtype.kind != "M":
        assert [labels.tolist() for labels in source.labels] == expected_labels(frame)


@pytest.mark.parametrize("kind", [int, str, "category", "Int64", "date"])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_a_dask_frame(small, kind, order):
    frame = table(kind, order)
    source = source_of(dd.from_pandas(frame, npartitions=5, sort=False))
    assert source.name == "dask DataFrame" and len(source.row_edges) > 4
    check_table(source, frame)


@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_bands_have_about_as_many_entries(small, order):
    frame = table(order=order)
    source = source_of(dd.from_pandas(frame, npartitions=2 if order == "shuffled" else 40, sort=False))
    sizes = [source.chunk(i, 0).compute(scheduler="threads").nnz for i in range(len(source.row_edges) - 1)]
    assert sum(sizes) == len(frame) and min(sizes) > 50 and max(sizes) < 150


def test_a_row_longer_than_a_band(small):
    M = np.full((30, 400), np.nan)
    M[3], M[:, 0], M[29] = 1, 2, 3
    frame = table(M=M)
    check_table(source_of(dd.from_pandas(frame, npartitions=3, sort=False)), frame, M)


def test_small_tables_make_one_band():
    frame = table()
    source = source_of(dd.from_pandas(frame, npartitions=5, sort=False))
    assert source.row_edges == (0, 60)
    check_table(source, frame)


def scratch_folders(tmp_path):
    return list(tmp_path.glob("irpca-*"))


def test_the_scratch_folder_lives_as_long_as_the_source(tmp_path, small):
    frame = dd.from_pandas(table(), npartitions=5, sort=False)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        source = source_of(frame)
        [folder] = scratch_folders(tmp_path)
        assert {file.name.split("-")[0] for file in folder.iterdir()} == {"band"}
        task = source.chunk(1, 0)
        (folder / "band-1-0.npy").unlink()
        with pytest.raises(UnreadableError, match=r"rows \d+ to \d+, columns 0 to 44, in .*irpca-"):
            task.compute(scheduler="threads")
        del source, task
        gc.collect()
        assert not scratch_folders(tmp_path)
        ascending = source_of(dd.from_pandas(whole_rows(), npartitions=1))
        assert not scratch_folders(tmp_path) and len(ascending.row_edges) == 2


def whole_rows():
    return table(order="sorted")


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
        source_of(dd.from_pandas(table(), npartitions=5, sort=False))
    assert not scratch_folders(tmp_path)


@pytest.mark.parametrize("kind", [int, str, "category", "date"])
@pytest.mark.parametrize("files", [1, 12])
def test_parquet(tmp_path, small, kind, files):
    frame = table(kind)
    folder = tmp_path / "ratings"
    folder.mkdir()
    for k, lines in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[lines].to_parquet(folder / f"part-{k}.parquet", row_group_size=50)
    (folder / "_SUCCESS").touch()
    M = folder if files > 1 else folder / "part-0.parquet"
    for given in (M, str(M)):
        source = source_of(given)
        assert source.name == ("folder of Parquet files" if files > 1 else "Parquet file")
        check_table(source, frame)


def test_float32_values_stay(tmp_path):
    frame = table().astype({"value": "f4"})
    frame.to_parquet(tmp_path / "M.parquet")
    source = source_of(tmp_path / "M.parquet")
    assert source.dtype == np.float32
    check_table(source, frame, HOLES.astype("f4"))


@pytest.mark.parametrize(
    "names",
    [
        ("row", "col", "value"),
        ("user", "item", "rating"),
        ("userId", "movieId", "rating"),
        ("Row_ID", "Column", "Value"),
        ("x", "y", "z"),
    ],
)
def test_names_of_the_columns(names):
    frame = table()
    renamed = frame.set_axis(list(names), axis=1)
    if names[0] != "x":
        renamed = renamed.assign(when=0)[[names[1], "when", names[2], names[0]]]
    check_table(source_of(dd.from_pandas(renamed, npartitions=2)), frame)


def test_columns_that_say_nothing(tmp_path):
    frame = pd.DataFrame(A[:, :4], columns=list("wxyz"))
    said = r"the columns 'w', 'x', 'y', 'z'\. Three are needed, row, column and value.*M\.to_dask_array\(lengths=True\)"
    with pytest.raises(ValueError, match=f"M is a dask DataFrame, with {said}"):
        source_of(dd.from_pandas(frame, npartitions=2))
    frame.to_parquet(tmp_path / "M.parquet")
    with pytest.raises(ValueError, match=rf"M: .*M\.parquet, with {said}"):
        source_of(tmp_path / "M.parquet")
    table().to_parquet(tmp_path / "L.parquet")
    with pytest.raises(ValueError, match=r"M: .*M\.parquet has the columns 'w', 'x', 'y', 'z', and .*L\.parquet has"):
        source_of(tmp_path)


def changed(**values):
    """A table with some lines changed, in five parts."""
    frame = table()
    for column, value in values.items():
        frame[column] = frame[column].astype(object if isinstance(value, str) or value is None else frame[column].dtype)
        frame.loc[[3, len(frame) - 3], column] = value
    return dd.from_pandas(frame, npartitions=5, sort=False)


@pytest.mark.parametrize(
    "values, said",
    [
        ({"value": np.nan}, "M: 2 values are NaN in the column 'value'; leave out what was not observed"),
        ({"value": np.inf}, "M: 2 values are infinite in the column 'value'"),
        ({"row": None}, r"M: 2 ids are missing in the column 'row'.*M\.dropna\(subset=\['row'\]\)"),
        ({"column": None}, "M: 2 ids are missing in the column 'column'"),
    ],
)
def test_lines_that_are_refused(small, values, said):
    with dask.config.set({"dataframe.convert-string": False}), pytest.raises(ValueError, match=said):
        source_of(changed(**values))


def test_missing_ids_in_parquet(tmp_path):
    frame = table().astype({"row": "Int64"})
    frame.loc[[1, 5, 7], "row"] = pd.NA
    frame.to_parquet(tmp_path / "M.parquet", row_group_size=50)
    with pytest.raises(ValueError, match="M: 3 ids are missing in the column 'row'"):
        source_of(tmp_path / "M.parquet")


@pytest.mark.parametrize("kind, shown", [(int, "row 65, column 6[0-9]"), (str, "row 'u0065', column 'é0[0-9]+'")])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_a_cell_that_is_there_twice(small, kind, shown, order):
    frame = table(kind, order="sorted")
    again = frame[frame["row"] == (65 if kind is int else "u0065")].iloc[[2]].assign(value=7.0)
    frame = pd.concat([frame, again], ignore_index=True)
    frame = frame.sample(frac=1, random_state=0) if order == "shuffled" else frame.sort_values("row", kind="stable")
    parts = 5 if order == "shuffled" else 1
    with pytest.raises(
        ValueError, match=rf"M: {shown} is there 2 times, with values .*; only you can say.*drop_duplicates\(\['row'"
    ):
        whole(source_of(dd.from_pandas(frame, npartitions=parts, sort=False)))


def test_ids_of_several_kinds():
    parts = [table(int), table(str)]
    M = dd.from_delayed([dask.delayed(part) for part in parts], meta=parts[0][:0], verify_meta=False)
    with pytest.raises(ValueError, match="M: the ids in the column 'row' are of several kinds, 'int64', 'object'"):
        source_of(M)
    mixed = table().astype({"column": object})
    mixed.loc[4, "column"] = "four"
    with (
        dask.config.set({"dataframe.convert-string": False}),
        pytest.raises(ValueError, match="M: the ids in the column 'column' cannot be sorted"),
    ):
        source_of(dd.from_pandas(mixed, npartitions=2))


def test_values_that_are_no_numbers():
    M = dd.from_pandas(table().astype({"value": str}), npartitions=2)
    with pytest.raises(ValueError, match="M: the values in the column 'value' must be real numbers, got"):
        source_of(M)


def test_a_table_without_lines(tmp_path):
    with pytest.raises(ValueError, match="M is empty: there are no observations"):
        source_of(dd.from_pandas(table()[:0], npartitions=1))
    table()[:0].to_parquet(tmp_path / "M.parquet")
    with pytest.raises(ValueError, match="M is empty: there are no observations"):
        source_of(tmp_path / "M.parquet")


def test_a_table_that_changes_is_noticed(tmp_path):
    file = tmp_path / "M.parquet"
    table(order="sorted").to_parquet(file)
    source = source_of(file)
    table(order="sorted").assign(column=1).to_parquet(file)
    with pytest.raises(ValueError, match=r"M has changed since it was first read: there are other ids in .*'column'"):
        first(source)


def test_damaged_parquet(tmp_path):
    file = tmp_path / "M.parquet"
    table(order="sorted").to_parquet(file)
    source = source_of(file)
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :])
    with pytest.raises(UnreadableError, match=r"row groups 0 to 0 of .*M\.parquet"):
        first(source)
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"M: .*M\.parquet is no Parquet file, or damaged"):
        source_of(file)


# by name


@pytest.mark.parametrize(
    "M", [A, A.tolist(), sp.csr_array(A), pd.DataFrame(A), None, "a.csv", Path("b.npy"), "x" * 999]
)
def test_what_is_no_storage(M):
    assert source_of(M) is None


def test_files_of_other_kinds(tmp_path):
    (tmp_path / "M.csv").write_text("1,2")
    assert source_of(tmp_path / "M.csv") is None


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


@pytest.mark.parametrize("kind", ["npy", "zarr", "parquet"])
def test_without_dask(tmp_path, monkeypatch, kind):
    if kind == "npy":
        npy_folder(tmp_path)
    elif kind == "zarr":
        stored(tmp_path / "M.zarr")
    else:
        table().to_parquet(tmp_path / "M.parquet")
    array = stored({}, A)
    for name in ("dask", "dask.array", "dask.dataframe"):
        monkeypatch.setitem(sys.modules, name, None)
    for M in [tmp_path / {"npy": "", "zarr": "M.zarr", "parquet": "M.parquet"}[kind], array]:
        with pytest.raises(ImportError, match=r'M is a .*dask.* reads it: pip install "irpca\[dask\]"'):
            source_of(M)


def test_a_fit_without_dask_says_what_to_install(tmp_path):
    """In a new process: here the engine is imported already."""
    npy_folder(tmp_path)
    code = f"import sys; sys.modules['dask'] = None; import irpca; irpca.solve({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert 'dask reads it: pip install "irpca[dask]"' in done.stderr


# schedulers


def storages(tmp_path):
    """One of each, with several chunks."""
    frame = table()
    yield "dask", source_of(da.from_array(HOLES, chunks=(16, 11)))
    yield "zarr", source_of(stored(tmp_path / "M.zarr", chunks=(16, 11)))
    yield "npy", source_of(npy_folder(tmp_path / "npy"))
    yield "frame", source_of(dd.from_pandas(frame, npartitions=5, sort=False))
    yield "sorted frame", source_of(dd.from_pandas(table(str, "sorted"), npartitions=1))
    frame.to_parquet(tmp_path / "M.parquet", row_group_size=50)
    yield "parquet", source_of(tmp_path / "M.parquet")


def test_the_tasks_can_be_sent(tmp_path, small):
    for name, source in storages(tmp_path):
        task = source.chunk(0, 0)
        assert task.key.startswith("irpca-read") and key_split(task.key) == "irpca-read", name
        assert source.chunk(0, 0).key == task.key
        again = cloudpickle.loads(cloudpickle.dumps(task)).compute(scheduler="sync")
        expected = HOLES[slice(*source.row_edges[:2]), slice(*source.col_edges[:2])]
        np.testing.assert_array_equal(dense(again) if source.listed else again, expected)


def test_there_is_no_such_chunk():
    with pytest.raises(IndexError, match=r"there is no chunk \(2, 0\) of M, which has 2 × 1"):
        source_of(da.from_array(A, chunks=(30, 45))).chunk(2, 0)


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, dashboard_address=":0", n_workers=1, threads_per_worker=2) as client:  # any free port
        yield client


def test_a_client_reads_every_storage(tmp_path, small, client):
    for name, source in storages(tmp_path):
        np.testing.assert_array_equal(whole(source, scheduler=client), HOLES, err_msg=name)


def test_errors_come_back_from_a_client(tmp_path, small, client):
    source = source_of(damaged(tmp_path))
    with pytest.raises(UnreadableError, match=r"rows 20 to 39, columns 30 to 44 of file:"):
        whole(source, scheduler=client)


@pytest.mark.parametrize("kind", [int, str])
def test_workers_that_share_no_disk_exchange_the_entries(tmp_path, small, client, monkeypatch, kind):
    monkeypatch.setattr(observations, "_shares", lambda client, folder: False)
    frame = table(kind)
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        source = source_of(dd.from_pandas(frame, npartitions=5, sort=False))
    assert not scratch_folders(tmp_path) and len(source.row_edges) > 4
    check_table(source, frame, scheduler=client)
    assert source.chunk(0, 0).key.startswith("irpca-read")


def test_a_cell_twice_where_no_disk_is_shared(small, client, monkeypatch):
    monkeypatch.setattr(observations, "_shares", lambda client, folder: False)
    frame = pd.concat([table(), table()[:1]]).sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match="is there 2 times, with values"):
        whole(source_of(dd.from_pandas(frame, npartitions=5, sort=False)), scheduler=client)


def test_whose_disk_is_shared(tmp_path, client):
    assert observations._client() is client
    assert observations._shares(client, str(tmp_path))
    assert not observations._shares(client, str(tmp_path / "elsewhere"))
    with dask.config.set(scheduler="threads"):
        assert observations._client() is None


def test_headers_are_parsed_by_one_thread_at_a_time(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.arange(3.0))
    load, held = np.load, []
    monkeypatch.setattr(
        np, "load", lambda *args, **kwargs: held.append(sources.PARSING.locked()) or load(*args, **kwargs)
    )
    np.testing.assert_array_equal(sources.mapped(tmp_path / "a.npy"), np.arange(3.0))
    assert held == [True] and not sources.PARSING.locked()
