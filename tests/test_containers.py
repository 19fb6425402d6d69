"""Tables of every library: in with labels, out in kind, with the same numbers; or refused with what to do."""

import datetime
import subprocess
import sys

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pandas.testing import assert_frame_equal, assert_index_equal

from irpca import InductiveRobustPCA, LongTable
from irpca.containers import Labelled, as_records, listing, taken
from irpca.labels import Labels

ROWS, COLS = [f"r{i}" for i in range(40)], [f"c{j}" for j in range(12)]
ERROR, HOLE = (3, 4), (5, 6)


def values():
    """Without noise, of which a fit is quick."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 12))
    A[ERROR] += 30
    A[HOLE] = np.nan
    return A


A = values()
FRAME = pd.DataFrame(A, pd.Index(ROWS, name="who"), COLS)
POLARS = pl.DataFrame({"who": ROWS, **{name: A[:, j] for j, name in enumerate(COLS)}})


def long():
    rows = FRAME.reset_index().melt("who", var_name="what").dropna()
    return LongTable.from_frame(rows, "who", "what", "value", rows=FRAME.index, columns=COLS)


# What answers are: the type of tables, and that of lists.
KINDS = {
    "array": (A, "numpy", np.ndarray, np.ndarray),
    "lists": ([[None if np.isnan(x) else x for x in row] for row in A.tolist()], "numpy", np.ndarray, np.ndarray),
    "masked": (np.ma.masked_invalid(A), "numpy", np.ndarray, np.ndarray),
    "pandas": (FRAME, "pandas", pd.DataFrame, pd.DataFrame),
    "nullable": (FRAME.convert_dtypes(), "pandas", pd.DataFrame, pd.DataFrame),
    "objects": (FRAME.astype(object).where(FRAME.notna(), None), "pandas", pd.DataFrame, pd.DataFrame),
    "polars": (POLARS, "polars", pl.DataFrame, pl.DataFrame),
    "polars without labels": (POLARS.drop("who"), "polars", pl.DataFrame, pl.DataFrame),
    "pyarrow": (POLARS.to_arrow(), "pyarrow", pa.Table, pa.Table),
    "xarray": (xr.DataArray(FRAME), "xarray", xr.DataArray, pd.DataFrame),
    "xarray without labels": (xr.DataArray(A, dims=("who", "what")), "xarray", xr.DataArray, np.ndarray),
    "dask": (dd.from_pandas(FRAME, npartitions=3, sort=False), "pandas", pd.DataFrame, pd.DataFrame),
    "long": (long(), "pandas", pd.DataFrame, pd.DataFrame),
    "long without labels": (LongTable(*np.nonzero(~np.isnan(A)), A[~np.isnan(A)]), "numpy", np.ndarray, np.ndarray),
    "labelled": (Labelled(A, ROWS, COLS), "numpy", Labelled, np.ndarray),
}


def numbers(table):
    """A table as an array, without its labels."""
    if isinstance(table, Labelled):
        return table.values
    if isinstance(table, pl.DataFrame):
        return table.drop("who", strict=False).to_numpy()
    if isinstance(table, pa.Table):
        return numbers(pl.from_arrow(table))
    return np.asarray(table)


def labels_in(table):
    """The labels of the rows and of the columns of a table; None without."""
    if isinstance(table, np.ndarray):
        return None, None
    if isinstance(table, Labelled):
        return list(table.rows), list(table.columns)
    if isinstance(table, xr.DataArray):
        return tuple(list(table.indexes[dim]) if dim in table.indexes else None for dim in table.dims)
    if isinstance(table, pd.DataFrame):
        return list(table.index), list(table.columns)
    frame = pl.DataFrame(table)
    return (frame["who"].to_list() if "who" in frame else None), frame.drop("who", strict=False).columns


@pytest.fixture(scope="module")
def plain():
    return InductiveRobustPCA(2).fit(A)


@pytest.mark.parametrize(("M", "container", "table", "listed"), KINDS.values(), ids=KINDS)
def test_in_with_labels_and_out_in_kind(M, container, table, listed, plain):
    model = InductiveRobustPCA(2).fit(M)
    assert model.container_ == container
    expected, std = model.expected(return_std=True)
    assert labels_in(expected) == (ROWS if model.row_labels_ else None, COLS if model.col_labels_ else None)
    repaired, marks = model.repaired(return_marks=True)
    for made, same in ((expected, plain.expected()), (std, plain.expected(True)[1]), (repaired, plain.repaired())):
        assert isinstance(made, table)
        assert_allclose(numbers(made).astype(float), same, rtol=1e-9, atol=1e-12)
    assert isinstance(marks, table)
    assert_array_equal(numbers(marks), plain.repaired(return_marks=True)[1])
    found = model.outliers()
    assert isinstance(found, listed)
    assert isinstance(model.outlier_rows(), listed) and isinstance(model.outlier_columns(), listed)
    (row,), (column,) = (list(map(_python, found[side])) for side in ("row", "column"))
    assert row == ("r3" if model.row_labels_ else 3) and column == ("c4" if model.col_labels_ else 4)
    assert _python(found["observed"][0]) == A[ERROR]
    again = M.compute() if hasattr(M, "compute") and container == "pandas" else M
    assert _python(model.outliers(again)["row"][0]) == row
    assert isinstance(model.repaired(M), table)


def _python(value):
    return value.as_py() if hasattr(value, "as_py") else value.item() if hasattr(value, "item") else value


INDEXES = {
    "dates": pd.date_range("2020-01-01", periods=40, freq="D", name="day"),
    "some missing": pd.DatetimeIndex([pd.NaT, *pd.date_range("2020", periods=39)]),
    "nested": pd.MultiIndex.from_product([["a", "b"], range(20)], names=["group", None]),
    "repeated": pd.Index(["a", "b"] * 20),
}


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_every_index_of_pandas_comes_back(index):
    M = pd.DataFrame(A, index, COLS)
    model = InductiveRobustPCA(2).fit(M)
    for made in (model.expected(), model.repaired(), model.repaired(M), model.expected(True)[1]):
        assert_index_equal(made.index, index, exact=True)
        assert getattr(made.index, "freq", None) == getattr(index, "freq", None)
    found = model.outliers()
    assert found["row"][0] == index[3]
    if index.nlevels == 1:
        assert found["row"].dtype == index.dtype
    assert_frame_equal(model.outliers(M)[["row", "column"]], found[["row", "column"]])


def test_nested_columns_and_coordinates_come_back():
    index = INDEXES["nested"].set_names(["group", "member"])
    M = xr.DataArray(A, dims=("t", "w")).assign_coords(xr.Coordinates.from_pandas_multiindex(index, "t"))
    assert_index_equal(InductiveRobustPCA(2).fit(M).expected().indexes["t"], index, check_names=False)
    columns = pd.MultiIndex.from_product([["x", "y"], range(6)], names=["sensor", "channel"])
    model = InductiveRobustPCA(2).fit(pd.DataFrame(A, ROWS, columns))
    assert_index_equal(model.expected().columns, columns)
    assert model.outliers()["column"][0] == ("x", 4)
    assert model.col_labels_.texts()[4] == "x, 4"


LABELS_OF_POLARS = {
    "dates": pl.date_range(datetime.date(2020, 1, 1), datetime.date(2020, 2, 9), eager=True),
    "times in a zone": pl.datetime_range(
        datetime.datetime(2020, 6, 1), datetime.datetime(2020, 6, 2, 15), "1h", time_zone="Europe/Berlin", eager=True
    ),
    "categories": pl.Series(ROWS, dtype=pl.Categorical),
}


@pytest.mark.parametrize("labels", LABELS_OF_POLARS.values(), ids=LABELS_OF_POLARS)
@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_labels_in_the_first_column_come_back(labels, library):
    M = POLARS.with_columns(who=labels)
    model = InductiveRobustPCA(2).fit(M if library == "polars" else M.to_arrow())
    for made, name in ((model.expected(), "who"), (model.outliers(), "row")):
        back = pl.DataFrame(made)[name]
        assert back[0] == (labels[0] if name == "who" else labels[3])
        if labels.dtype != pl.Categorical:
            assert back.dtype == labels.dtype


def test_single_precision_stays():
    M = POLARS.with_columns(pl.col(COLS).cast(pl.Float32))
    for given in (M, M.to_arrow(), FRAME.astype(np.float32), xr.DataArray(FRAME.astype(np.float32))):
        made = InductiveRobustPCA(2).fit(given).repaired()
        assert numbers(made).dtype == np.float32
        assert_array_equal(numbers(made)[0], A[0].astype(np.float32))


def test_integers_and_booleans_are_numbers_and_gaps_missing():
    whole = np.round(10 * np.nan_to_num(A)).astype(int)
    for M in (pd.DataFrame(whole), pl.DataFrame(whole), pl.DataFrame(whole).to_arrow()):
        found = pl.DataFrame(InductiveRobustPCA(2).fit(M).outliers())
        assert whole[ERROR] in found["observed"].to_list()
    assert taken(pl.DataFrame(A > 0)).matrix.dtype == float
    gap = POLARS.with_columns(c0=pl.when(pl.col("who") == "r0").then(None).otherwise(pl.col("c0")))
    for given in (gap, gap.to_arrow()):
        assert np.argwhere(np.isnan(taken(given).matrix)).tolist() == [[0, 0], list(HOLE)]


@pytest.mark.filterwarnings("ignore::irpca.DoNotUseWarning")  # of int64 few values are left
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64"])
def test_tensors(dtype):
    torch = pytest.importorskip("torch")
    full = np.round(np.nan_to_num(A) * 8) / 8
    M = torch.as_tensor(full).to(getattr(torch, dtype)).requires_grad_(dtype != "int64")
    model = InductiveRobustPCA(2, columns="as they are").fit(M)
    wanted = torch.float64 if dtype in ("float64", "int64") else torch.float32
    expected, std = model.expected(return_std=True)
    repaired, marks = model.repaired(return_marks=True, force=True)
    for made in (expected, std, repaired):
        assert isinstance(made, torch.Tensor) and made.dtype == wanted and made.shape == (40, 12)
        assert not made.requires_grad
    assert isinstance(marks, np.ndarray) and marks[ERROR] == "outlier"
    found = model.outliers()
    assert isinstance(found, dict) and all(isinstance(column, torch.Tensor) for column in found.values())
    assert found["observed"][0] == M[ERROR] and found["observed"].dtype == wanted


# Refused, with what to do


@pytest.mark.parametrize(
    ("M", "message"),
    [
        (
            FRAME.assign(name=ROWS, day=pd.Timestamp("2020-01-01")),
            r"the columns 'name', 'day' of M hold text or dates.* M.set_index\('name'\).* row_features.*LongTable",
        ),
        (FRAME.assign(c3=pd.Categorical(ROWS)), r"'c3' of M hold"),
        (FRAME.assign(c3=pd.timedelta_range("1h", periods=40, freq="h")), r"'c3' of M hold"),
        (FRAME.astype(object).assign(c3=[1.0] * 39 + ["x"]), "'c3'"),
        (pd.DataFrame({"user": ["a"], "item": ["x"]}), r"'user', 'item' of M hold text .*LongTable.from_frame"),
        (FRAME["c0"], "M is .*; a table .*is needed"),
        (POLARS["c0"], "M is .*; a table .*is needed"),
        (POLARS.lazy(), r"M is lazy, and has no values yet; pass M.collect\(\)"),
        (POLARS.with_columns(name=pl.lit("a")), "'name' of M hold no numbers. The first column may hold the labels"),
        (POLARS.with_columns(who=pl.lit("a")), "the first column of M, 'who', labels .* and holds some labels twice"),
        (xr.Dataset({"a": xr.DataArray(A), "b": xr.DataArray(A)}), "M is a Dataset of 'a', 'b'; pass one variable"),
        (xr.DataArray(np.zeros((3, 4, 5))), "M has the dimensions 'dim_0', 'dim_1', 'dim_2'; two are needed"),
        (Labelled(A, ROWS[:3], COLS), "M has 40 rows and 3 labels for them"),
        (Labelled(A, ROWS, COLS[:2]), "M has 12 columns and 2 labels for them"),
        (pd.DataFrame(A, ROWS, [*COLS[:-1], "c0"]), "columns of M .*'c0'"),
        (pd.DataFrame(), "M is empty: it has 0 rows and 0 columns"),
        (None, "M is None; an array, a frame or another table of numbers is needed"),
        ({"a": [1, 2]}, "M is a dict: make it a table, .*table of numbers is needed"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_table_of_numbers_is_refused(M, message):
    with pytest.raises(ValueError, match=message):
        InductiveRobustPCA(2).fit(M)


def test_new_rows_with_other_columns_are_refused():
    model = InductiveRobustPCA(2).fit(FRAME)
    with pytest.raises(ValueError, match="order"):
        model.outliers(FRAME[COLS[::-1]])
    with pytest.raises(ValueError, match=r"c5|columns|features"):
        model.outliers(FRAME[COLS[:5]])
    polars = InductiveRobustPCA(2).fit(POLARS)
    with pytest.raises(ValueError, match=r"the columns of M are .*order"):
        polars.outliers(POLARS.select("who", *COLS[::-1]))


def test_new_rows_may_be_of_another_library():
    model = InductiveRobustPCA(2).fit(FRAME)
    for M in (POLARS, POLARS.to_arrow(), xr.DataArray(FRAME)):
        found = model.outliers(M)  # no warning that names are missing: they are there
        assert isinstance(found, pd.DataFrame) and len(found) == 1
        assert found["column"][0] == "c4"


# The pieces


def test_an_array_is_not_copied():
    assert np.shares_memory(taken(A).matrix, A)
    assert np.shares_memory(taken(xr.DataArray(A)).matrix, A)


def test_a_list_without_any_label_is_records():
    columns = {"row": np.array([1, 0]), "column": np.array([0, 2]), "score": np.array([3.0, 2.0])}
    assert_array_equal(listing(columns, {"row": None, "column": None}, "numpy"), as_records(columns))
    half = listing(columns, {"row": Labels.of(["a", "b"]), "column": None}, "numpy")
    assert half["row"].tolist() == ["b", "a"] and half["column"].tolist() == [0, 2]


def test_no_library_is_imported_before_its_table_comes():
    """But for pandas, and pyarrow with it, which scikit-learn imports where it is installed."""
    code = (
        "import sys, numpy as np, irpca\n"
        "M = np.outer(np.arange(1.0, 21), np.arange(1.0, 11)); M[3, 4] = 0\n"
        "model = irpca.InductiveRobustPCA(1).fit(M); model.outliers(); model.repaired(return_marks=True)\n"
        "print([name for name in ('polars', 'xarray', 'dask', 'torch', 'matplotlib')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[]\n"
