"""The estimator on matrices with holes, and with features that do not tell all."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import coo_array
from sklearn.exceptions import ConvergenceWarning

from irpca import InductiveRobustPCA, LongTable

NEW = 20  # rows, and columns, that a model has not seen
NOISE = 0.1


@dataclass
class Data:
    M: np.ndarray
    F1: np.ndarray
    F2: np.ndarray
    L: np.ndarray
    corrupted: np.ndarray

    @property
    def features(self):
        return {"row_features": self.F1[:-NEW], "col_features": self.F2[:-NEW]}

    @property
    def trained(self):
        return self.M[:-NEW, :-NEW]

    @property
    def new_rows(self):
        return self.M[-NEW:, :-NEW]


def data_of(n1=140, n2=110, *, rank=2, extra=0, noise=0.0, corruption=0.1, holes=0.3, seed=0):
    """``extra`` directions that features know nothing of, as strong as what they know."""
    rng = np.random.default_rng(seed)
    F1, F2 = rng.standard_normal((n1, 6)), rng.standard_normal((n2, 5))
    W = rng.standard_normal((6, rank)) @ rng.standard_normal((rank, 5))
    L = F1 @ W @ F2.T / np.sqrt(30 * rank)
    L += rng.standard_normal((n1, extra)) @ rng.standard_normal((extra, n2)) / np.sqrt(max(extra, 1))
    corrupted = rng.random(L.shape) < corruption
    M = L + noise * rng.standard_normal(L.shape) + np.where(corrupted, rng.uniform(-10, 10, L.shape), 0)
    M[rng.random(L.shape) < holes] = np.nan
    return Data(M, F1, F2, L, corrupted)


def fitted(data, *, features=True, **options):
    return InductiveRobustPCA(**options).fit(data.trained, **(data.features if features else {}))


@pytest.fixture(scope="module")
def exact():
    return data_of()


@pytest.fixture(scope="module")
def exact_model(exact):
    return fitted(exact)


@pytest.fixture(scope="module")
def partial():
    """Noise, and three directions that features know nothing of."""
    return data_of(extra=3, noise=NOISE)


@pytest.fixture(scope="module")
def partial_model(partial):
    return fitted(partial)


def close(actual, expected, tolerance=1e-10):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def rms(A):
    return float(np.sqrt(np.mean(np.square(A))))


def labels_of(M):
    return [f"user {i}" for i in range(len(M))], [f"item {j}" for j in range(M.shape[1])]


def kinds_of(M):
    rows, cols = np.nonzero(~np.isnan(M))
    sparse = coo_array((M[rows, cols], (rows, cols)), shape=M.shape)
    frame = pd.DataFrame(M, *labels_of(M))
    names = frame.index[rows], frame.columns[cols]
    long = pd.DataFrame({"user": names[0], "item": names[1], "rating": M[rows, cols]}).sample(frac=1, random_state=0)
    return {
        "mask over numbers": np.ma.array(np.nan_to_num(M, nan=7.0), mask=np.isnan(M)),
        "csr": sparse.tocsr(),
        "coo": sparse,
        "nullable": frame.astype("Float64"),
        "objects with NA": frame.astype(object).where(frame.notna(), pd.NA),
        "long": LongTable(rows, cols, M[rows, cols], M.shape),
        "long with labels": LongTable.from_frame(long, rows=frame.index, columns=frame.columns),
    }


LABELLED = {"nullable", "objects with NA", "long with labels"}


# One answer, whatever M is


@pytest.fixture(scope="module")
def with_zeros(exact):
    """Zeros that were observed, and a model."""
    M = exact.trained.copy()
    M[0, :5] = 0.0
    return M, InductiveRobustPCA().fit(M, **exact.features)


@pytest.mark.parametrize("kind", kinds_of(np.eye(2)))
def test_all_kinds_of_holes_are_the_same(exact, with_zeros, kind):
    M, expected = with_zeros
    given = kinds_of(M)[kind]
    model = InductiveRobustPCA().fit(given, **exact.features)
    # Engines add in orders of their own, so it is the same to rounding.
    close(model.low_rank_.dense(), expected.low_rank_.dense(), 1e-12)
    for S, other in ((model.sparse_, expected.sparse_), (model.decompose(given).S, expected.decompose(M).S)):
        assert_array_equal(S.indices, other.indices)
        close(S.toarray(), other.toarray(), 1e-12)
    assert_array_equal(model.result_.counts[0], np.count_nonzero(~np.isnan(M), axis=1))
    close(model.transform(given), expected.transform(M), 1e-12)
    assert model.score(given) == pytest.approx(expected.score(M), abs=0.1)  # a mean of logarithms of rounding errors
    found = model.predict(row_features=exact.F1[-NEW:])
    close(found, expected.predict(row_features=exact.F1[-NEW:]), 1e-12)
    if kind in LABELLED:
        rows, cols = labels_of(M)
        assert list(found.columns) == cols
        assert list(model.predict().index) == rows
        table = model.outliers(most=3)
        assert_array_equal(
            table["observed"],
            [M[rows.index(i), cols.index(j)] for i, j in zip(table["row"], table["column"], strict=True)],
        )
        assert table["row"].str.startswith("user").all() and table["column"].str.startswith("item").all()
        assert set(model.outlier_rows()["row"]) == set(rows)
        assert set(model.outlier_columns()["column"]) == set(cols)
    else:
        assert isinstance(found, np.ndarray)
        table = model.outliers()
        assert_array_equal(table["observed"], M[table["row"], table["column"]])
        assert sorted(model.outlier_rows()["row"].tolist()) == list(range(len(M)))


# Exact problems: holes cost nothing


@pytest.mark.parametrize("sides", ["both", "rows", "columns", "none"])
def test_holes_and_errors_are_got_over(exact, sides):
    features = dict(exact.features)
    if sides in ("columns", "none"):
        features["row_features"] = None
    if sides in ("rows", "none"):
        features["col_features"] = None
    model = InductiveRobustPCA().fit(exact.trained, **features)
    assert model.rank_ == 2 and model.converged_
    close(model.low_rank_.dense(), exact.L[:-NEW, :-NEW], 1e-9)
    seen = ~np.isnan(exact.trained)
    assert_array_equal(model.sparse_.toarray() != 0, exact.corrupted[:-NEW, :-NEW] & seen)
    assert model.corruption_ == pytest.approx(exact.corrupted[:-NEW, :-NEW][seen].mean())
    scores = model.transform(exact.new_rows)
    close(model.inverse_transform(scores), exact.L[-NEW:, :-NEW], 1e-9)
    assert model.result_.n_observed == seen.sum()


def test_new_rows_and_columns_and_those_of_the_fit(exact, exact_model):
    """By their features, and by their entries: the same where features tell all."""
    F1, F2, L = exact.F1, exact.F2, exact.L
    close(exact_model.predict(row_features=F1[-NEW:]), L[-NEW:, :-NEW])
    close(exact_model.predict(col_features=F2[-NEW:]), L[:-NEW, -NEW:])
    close(exact_model.predict(F1[-NEW:], F2[-NEW:]), L[-NEW:, -NEW:])
    cold = exact_model.predict()
    close(cold, exact_model.low_rank_.dense(), 1e-12)
    close(exact_model.inverse_transform(exact_model.transform(exact.trained)), cold)
    close(exact_model.inverse_transform(exact_model.transform(exact.trained, row_features=F1[:-NEW])), cold)
    close(exact_model.decompose(exact.trained, row_features=F1[:-NEW]).L.dense(), cold)
    close(exact_model.decompose(exact.trained).L.dense(), cold)


# What was not seen at all


def test_lines_without_observations_are_what_their_features_say_and_are_named(exact):
    M = exact.trained.copy()
    M[[3, 77]], M[:, 5] = np.nan, np.nan
    frame = pd.DataFrame(M, *labels_of(M))
    model = InductiveRobustPCA().fit(frame, **exact.features)
    close(model.low_rank_.dense(), exact.L[:-NEW, :-NEW])
    told = [doubt for doubt in model.result_.doubts if doubt.kind == "unseen-lines"]
    assert [doubt.text.partition(".")[0] for doubt in told] == [
        "2 rows have no values: user 3, user 77",
        "1 column has no values: item 5",
    ]
    assert (told[0].rows, told[1].columns) == ((3, 77), (5,))
    assert all(doubt.text in model.summary() for doubt in told)
    with pytest.warns(ConvergenceWarning, match=r"(?s)^STOPPED.*: user 3, user 77\."):
        InductiveRobustPCA(callbacks=lambda state, history: True).fit(frame, **exact.features)


def test_nothing_is_said_of_a_row_without_observations_or_features(exact):
    M = exact.trained.copy()
    M[3], M[:, 5] = np.nan, np.nan
    M[8, 1:], M[8, 0] = np.nan, 1e6  # one entry, of whatever size, says nothing either
    model = InductiveRobustPCA(2).fit(M, col_features=exact.F2[:-NEW])
    (doubt,) = (doubt for doubt in model.result_.doubts if doubt.kind == "unknown-lines")
    assert doubt.rows == (3, 8) and "There are no expected values there" in doubt.text
    (doubt,) = (doubt for doubt in model.result_.doubts if doubt.kind == "unseen-lines")
    assert doubt.columns == (5,)
    others = ~np.isin(np.arange(len(M)), (3, 8))
    close(model.low_rank_.dense()[others], exact.L[:-NEW, :-NEW][others])
    found = model.predict()
    assert np.isnan(found[~others]).all() and np.isfinite(found[others]).all()
    assert np.isnan(model.predict(col_features=exact.F2[:3])[~others]).all()
    assert not np.isin(model.outliers()["row"], (3, 8)).any()
    rows = model.outlier_rows()
    assert not rows["flagged"][np.isin(rows["row"], (3, 8))].any()


def test_a_new_row_without_observations(exact, exact_model, partial, partial_model):
    nothing = np.full((1, 90), np.nan)
    for data, model in ((exact, exact_model), (partial, partial_model)):
        F1 = data.F1[-1:]
        found = model.transform(np.vstack([data.new_rows[:1], nothing]), row_features=data.F1[-2:])
        close(model.inverse_transform(found)[1:], model.predict(row_features=F1))
    # Without features either, it is like the others.
    rows = np.vstack([exact.new_rows[:1], nothing])
    close(exact_model.inverse_transform(exact_model.transform(rows))[1], exact.L[:-NEW, :-NEW].mean(axis=0))
    assert exact_model.score(rows) == exact_model.score(rows[:1])  # and has no say


def test_lines_without_entries_leave_the_rest_as_it_is():
    """Their posterior is the prior, which must not count among those of the others: rank 3 to 7 was found for 2."""
    rng = np.random.default_rng(0)
    L = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    M = L + 0.1 * rng.standard_normal(L.shape)
    M[3], M[:, 5] = np.nan, np.nan
    model = InductiveRobustPCA().fit(M)
    assert model.rank_ == 2 and model.result_.usable == "usable"
    assert np.abs(model.low_rank_.dense() - L)[np.isfinite(M)].mean() < 0.03
    doubts = [doubt for doubt in model.result_.doubts if doubt.kind == "unknown-lines"]
    assert [(doubt.rows, doubt.columns) for doubt in doubts] == [((3,), ()), ((), (5,))]
    assert np.isnan(model.expected()[:, 5]).all() and np.isnan(model.expected()[3]).all()


# Features that do not tell all


def test_the_number_of_free_directions_is_found(exact_model, partial, partial_model):
    assert exact_model.rank_ == 2 and exact_model.shares_ == {}
    assert partial_model.rank_ == 5
    assert rms(partial_model.low_rank_.dense() - partial.L[:-NEW, :-NEW]) <= 0.5 * NOISE
    assert set(partial_model.shares_) == {"features", "free"}
    assert sum(partial_model.shares_.values()) == pytest.approx(1, abs=1e-12)
    assert partial_model.shares_["free"] == pytest.approx(0.5, abs=0.15)
    alone = fitted(partial, extra_rank=0, rank=2)
    assert alone.rank_ == 2 and rms(alone.low_rank_.dense() - partial.L[:-NEW, :-NEW]) > 5 * NOISE


# What is refused


@pytest.mark.parametrize("features", [True, False])
def test_far_too_few_entries(features):
    """One in a hundred thousand: the message says how many would be needed."""
    rng = np.random.default_rng(0)
    n1, n2 = 2000, 1500
    at = rng.choice(n1 * n2, size=30, replace=False)
    table = LongTable(*np.divmod(at, n2), rng.standard_normal(30), (n1, n2))
    F = {"row_features": rng.standard_normal((n1, 20)), "col_features": rng.standard_normal((n2, 15))}
    needed = 2 * (20 + 15 - 2) if features else 2 * (30 + 30 - 2)  # lines without an entry do not count
    with pytest.raises(ValueError, match=rf"30 observed cells \(1e-05 of all\).*{needed} degrees of freedom"):
        InductiveRobustPCA(2).fit(table, **(F if features else {}))


# Outliers


def test_an_attacker_and_a_dead_sensor_are_found():
    data = data_of(noise=NOISE, corruption=0.02)
    M, rng = data.trained, np.random.default_rng(0)
    M[17] = np.where(np.isnan(M[17]), np.nan, rng.choice([-5.0, 5.0], M.shape[1]))
    M[:, 31] = np.where(np.isnan(M[:, 31]), np.nan, -6.0)
    frame = pd.DataFrame(M, *labels_of(M))
    model = InductiveRobustPCA().fit(frame, **data.features)
    rows, columns = model.outlier_rows(), model.outlier_columns()
    assert rows["row"].iloc[0] == "user 17" and columns["column"].iloc[0] == "item 31"
    assert rows["row"][rows["broken"]].tolist() == ["user 17"]
    assert columns["column"][columns["broken"]].tolist() == ["item 31"]
    assert rows["observed"].iloc[0] == np.count_nonzero(~np.isnan(M[17]))
    assert abs(columns["mean_signed"].iloc[0]) == pytest.approx(columns["mean_size"].iloc[0], rel=0.1)  # to one side
    assert len(rows) == len(M) and len(columns) == M.shape[1]
    at = model.outliers()
    assert (at["row"] == "user 17").sum() > 0.9 * rows["observed"].iloc[0]


def test_rows_that_are_not_as_their_features_say():
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((300, 4)), rng.standard_normal((120, 4))
    L = F1 @ rng.standard_normal((4, 4)) @ F2.T
    M = L + 0.1 * L.std() * rng.standard_normal(L.shape)
    M[:30] += 3 * L.std() * np.outer(np.ones(30), rng.standard_normal(120))
    model = InductiveRobustPCA().fit(M[30:], row_features=F1[30:], col_features=F2)
    found = model.outlier_rows(M, row_features=F1)
    assert set(found["row"][found["broken"]]) == set(range(30))


def test_new_rows_with_few_entries_are_doubted(exact, exact_model):
    rows = exact.new_rows[:2].copy()
    rows[1, 1:] = np.nan
    assert exact_model.decompose(rows[:1]).doubts == ()
    (doubt,) = exact_model.decompose(rows).doubts
    assert doubt.kind == "few-entries" and doubt.rows == (1,) and "1 row has fewer than 2 values: 1. " in doubt.text
    (doubt,) = exact_model.decompose(pd.DataFrame(rows, ["old", "new"])).doubts
    assert "1 row has fewer than 2 values: new. " in doubt.text
