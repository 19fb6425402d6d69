"""Features of any kind, through the estimator: encoded, matched by their labels, applied to what is new."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pandas.testing import assert_frame_equal

from irpca import InductiveRobustPCA

N = 60
ROWS, COLS = [f"r{i}" for i in range(N)], [f"c{j}" for j in range(12)]


def described():
    """A table of which a category and a number of each row tell all, but for noise and one error."""
    rng = np.random.default_rng(0)
    kind, size = np.array(["a", "b", "c"])[np.arange(N) % 3], rng.standard_normal(N)
    left = np.column_stack([np.array([1.0, 2.0, 4.0])[np.arange(N) % 3], size])
    A = left @ rng.standard_normal((2, 12)) + 0.05 * rng.standard_normal((N, 12))
    A[3, 4] += 30
    return A, kind, size


A, KIND, SIZE = described()
M = pd.DataFrame(A, ROWS, COLS)
F = pd.DataFrame({"kind": KIND, "size": SIZE}, ROWS)
M_POLARS = pl.DataFrame({"id": ROWS, **{name: A[:, j] for j, name in enumerate(COLS)}})
F_POLARS = pl.DataFrame({"id": ROWS, "kind": KIND, "size": SIZE})


@pytest.fixture(scope="module")
def model():
    return InductiveRobustPCA(2, extra_rank=0).fit(M, row_features=F)


def first(table, k):
    """The first rows of features of any kind."""
    if isinstance(table, dict):
        return {name: values[:k] for name, values in table.items()}
    return table.slice(0, k) if isinstance(table, pa.Table) else table[:k]


KINDS = {
    "pandas": (M, F),
    "polars": (M_POLARS, F_POLARS),
    "pyarrow": (M_POLARS.to_arrow(), F_POLARS.to_arrow()),
    "polars for pandas": (M, F_POLARS),
    "dict": (A, {"kind": KIND.tolist(), "size": SIZE}),
    "pandas for an array": (A, F),
}


@pytest.mark.parametrize(("table", "features"), KINDS.values(), ids=KINDS)
def test_features_of_every_library_give_the_same(table, features, model):
    """A column of labels that was there in fit may be there again."""
    other = InductiveRobustPCA(2, extra_rank=0).fit(table, row_features=features)
    assert other.row_encoder_.columns_ == ("kind", "size")
    assert_allclose(other.low_rank_.dense(), model.low_rank_.dense(), atol=1e-9)
    assert len(other.outliers()) == 1
    new = other.outliers(first(table, 5), row_features=first(features, 5))
    assert len(new) == 1
    expected = other.predict(first(features, 3))
    if isinstance(expected, pa.Table | pl.DataFrame):
        expected = pl.DataFrame(expected).select(COLS)
    assert_allclose(np.asarray(expected), model.low_rank_.dense()[:3], atol=1e-9)


def test_categories_explain_the_table(model):
    assert list(model.row_encoder_.get_feature_names_out()) == ["constant", "kind = a", "kind = b", "size"]
    assert model.col_encoder_ is None
    clean = A.copy()
    clean[3, 4] -= 30
    assert np.abs(model.expected().to_numpy() - clean).max() < 0.25
    assert "row_features, as encoded:" in model.summary()
    assert "'kind': one column for each of 3 levels." in model.summary()


def test_encoders_are_applied_to_new_rows(model):
    new = pd.DataFrame({"kind": ["c", "a"], "size": [0.5, -1.0]}, ["x", "y"])
    expected, std = model.predict(new, return_std=True)
    assert list(expected.index) == list(std.index) == ["x", "y"] and list(expected.columns) == COLS
    at = model.row_encoder_.transform(new)
    assert_allclose(expected, at @ model.W_, atol=1e-10)
    assert (std > 0.03).all(axis=None) and (std < 0.2).all(axis=None)
    assert_allclose(model.predict(new[["size", "kind"]]), expected)  # columns are found by name


def test_numbers_are_used_as_they_are():
    """No encoder, no constant: as the user has it."""
    for table, features in ((M, F[["size"]]), (M_POLARS, F_POLARS.select("id", "size")), (A, {"size": SIZE})):
        model = InductiveRobustPCA(1, extra_rank=1).fit(table, row_features=features)
        assert model.row_encoder_ is None
        assert model._rows.expected.coefficients.shape == (1, 2)


def test_features_of_both_sides():
    columns = pd.DataFrame({"group": ["x", "y"] * 6}, COLS)
    model = InductiveRobustPCA().fit(M, row_features=F, col_features=columns)
    assert list(model.col_encoder_.get_feature_names_out()) == ["constant", "group = x"]
    assert list(model.predict(F[:2], columns[:3]).columns) == COLS[:3]
    inside = InductiveRobustPCA(col_features=columns).fit(M, row_features=F)
    assert_array_equal(inside.low_rank_.dense(), model.low_rank_.dense())


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (F[::-1], r"does not match the rows of M: 'r59', .* against 'r0', .* pass row_features.loc\[M.index\]"),
        (F.set_axis([f"x{i}" for i in range(N)]), r"pass row_features.set_axis\(M.index\)"),
        (F[:50], "row_features has 50 rows but M has 60"),
        (F_POLARS.reverse(), "does not match the rows of M: 'r59', .* in another order"),
        ({"kind": KIND, "size": SIZE[:50]}, "columns of row_features differ in length"),
        ("Index", "row_features='Index' is unknown: pass a table of features, or \"index\" to use the labels"),
        ("index", "'index' makes features from dates or numbers, but the labels of '(index|id)' are neither"),
        (pd.DataFrame({"same": ["a"] * N}, ROWS), "row_features has no column that tells rows apart"),
    ],
)
def test_features_that_do_not_belong_to_the_table(features, message):
    for table in (M, M_POLARS):
        with pytest.raises(ValueError, match=message):
            InductiveRobustPCA(2).fit(table, row_features=features)
    with pytest.raises(ValueError, match=r"does not match the rows of M: 'xr0', .* against 'r0', "):  # no feature
        InductiveRobustPCA(2).fit(M_POLARS, row_features=F_POLARS.with_columns(id="x" + pl.col("id")))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((2, 3)), "row_features must be a frame .* or a dict of columns, got ndarray"),
        ("index", "row_features"),
        (F.assign(size=["x"] * N), "size"),
    ],
)
def test_new_features_that_are_not_those_of_the_fit(model, features, message):
    with pytest.raises(ValueError, match=message):
        model.predict(features)


def test_new_rows_and_their_features_belong_together(model):
    for method in (model.transform, model.decompose, model.score, model.outliers):
        with pytest.raises(ValueError, match=r"the index of row_features does not match the rows of M: 'r5', .* 'r0'"):
            method(M[:5], row_features=F[5:10])
        with pytest.raises(ValueError, match="row_features has 4 rows but M has 5"):
            method(M[:5], row_features=F[:4])
        with pytest.raises(ValueError, match="columns of M are those of the fitted table in another order, 'c11'"):
            method(M.iloc[:5, ::-1])
    with pytest.raises(ValueError, match=r"not have the columns of the fitted table, 'c0', .*: leave out 'more'$"):
        model.transform(M.assign(more=1.0))
    with pytest.raises(ValueError, match=r"columns of the fitted table, .*: 'c1' missing; add them, as NaN"):
        model.transform(M.drop(columns="c1"))
    with pytest.raises(ValueError, match="col_features was given, but this model was fitted without"):
        model.predict(F[:2], np.ones((3, 2)))
    plain = InductiveRobustPCA(2).fit(M)
    with pytest.raises(ValueError, match=r"row_features was given, .* it knows nothing about new rows but their data"):
        plain.outliers(M, row_features=F)


def test_an_array_for_a_fit_with_an_array():
    model = InductiveRobustPCA(2, extra_rank=0).fit(A, row_features=np.column_stack([SIZE, KIND == "a", np.ones(N)]))
    with pytest.raises(ValueError, match="row_features='index', but this model was fitted with a table of features"):
        model.predict("index")
    with pytest.raises(ValueError, match=r"row_features has 2 columns but had 3 in fit"):
        model.predict(np.ones((5, 2)))


# Features from the index

DAYS = pd.date_range("2020-01-01", periods=N, freq="D", name="day")


def seasons(index=DAYS):
    rng = np.random.default_rng(4)
    course = np.sin(np.arange(N) / 30)
    A = np.outer(course, 3 + rng.standard_normal(12)) + 0.02 * rng.standard_normal((N, 12))
    return pd.DataFrame(A, index, COLS)


@pytest.fixture(scope="module")
def by_day():
    return InductiveRobustPCA(1, extra_rank=0).fit(seasons(), row_features="index")


def test_dates_of_the_index_become_features(by_day):
    assert by_day.row_encoder_.columns_ == ("day",)
    assert any("curve" in name for name in by_day.row_encoder_.get_feature_names_out())
    assert np.abs(by_day.expected() - seasons()).to_numpy().max() < 0.3


def test_the_index_of_every_library(by_day):
    frame = pl.from_pandas(seasons().reset_index())
    for table in (frame, frame.to_arrow(), seasons(DAYS.astype(str).rename("day"))):
        other = InductiveRobustPCA(1, extra_rank=0).fit(table, row_features="index")
        assert_allclose(other.low_rank_.dense(), by_day.low_rank_.dense(), atol=1e-9)


LATER = pd.date_range("2020-03-01", periods=3, freq="D", name="day")


@pytest.mark.parametrize("days", [LATER, LATER.rename(None), LATER.to_numpy(), list(LATER.astype(str)), list(LATER)])
def test_days_to_come(by_day, days):
    expected, std = by_day.predict(days, return_std=True)
    truth = np.outer(np.sin((N + np.arange(3)) / 30), 3 + np.random.default_rng(4).standard_normal(12))
    assert np.abs(np.asarray(expected) - truth).max() < 0.3
    assert np.asarray(std).min() > 0.015
    assert list(by_day.predict(LATER).index) == list(LATER)


def test_new_rows_bring_their_index(by_day):
    new = seasons()[:10]
    new.iloc[3, 3] += 5
    found = by_day.outliers(new)
    assert found["row"].tolist() == [DAYS[3]] and found["column"].tolist() == ["c3"]
    assert_frame_equal(by_day.outliers(new, row_features="index"), found)
    assert len(by_day.outliers(new.rename_axis(None))) == 1  # whatever the index is called
    with pytest.warns(UserWarning, match="does not have valid feature names"):  # as scikit-learn has it
        assert len(by_day.outliers(new.to_numpy())) == 1  # without labels, by the data alone


def test_numbers_of_the_columns_become_a_curve():
    wide = seasons().T.set_axis(range(2000, 2000 + N), axis=1)
    model = InductiveRobustPCA(1, extra_rank=0).fit(wide, col_features="index")
    assert "smooth curve" in model.col_encoder_.notes_[0]
    later = model.predict(col_features=[2060, 2061])
    assert later.shape == (12, 2) and np.isfinite(later).all(axis=None)
    assert list(later.columns) == [2060, 2061]
    named = InductiveRobustPCA(1, extra_rank=0).fit(wide.rename_axis(columns="year"), col_features="index")
    assert_allclose(named.predict(col_features=[2060, 2061]), later)


def test_an_index_that_is_no_feature():
    with pytest.raises(ValueError, match="makes features from the labels of the rows, and M has none"):
        InductiveRobustPCA().fit(A, row_features="index")
    nested = M.set_axis(pd.MultiIndex.from_product([range(6), range(10)]))
    with pytest.raises(ValueError, match="needs labels of one level, and the rows have nested ones"):
        InductiveRobustPCA().fit(nested, row_features="index")
    with pytest.raises(ValueError, match="the labels of 'index' are neither"):
        InductiveRobustPCA().fit(M, col_features="index")
