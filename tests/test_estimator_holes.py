"""The estimator on matrices with holes, and with features that do not tell all."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array, csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score

from irpca import InductiveRobustPCA, LongTable
from irpca.model.factors import Side
from irpca.model.noise import NoiseModel
from irpca.model.placement import Placement

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
        "mask": np.ma.masked_invalid(M),
        "mask over numbers": np.ma.array(np.nan_to_num(M, nan=7.0), mask=np.isnan(M)),
        "csr": sparse.tocsr(),
        "csc": sparse.tocsc(),
        "coo": sparse,
        "frame": frame,
        "nullable": frame.astype("Float64"),
        "objects": frame.astype(object).where(frame.notna(), None),
        "objects with NA": frame.astype(object).where(frame.notna(), pd.NA),
        "long": LongTable(rows, cols, M[rows, cols], M.shape),
        "long with labels": LongTable.from_frame(long, rows=frame.index, columns=frame.columns),
    }


LABELLED = {"frame", "nullable", "objects", "objects with NA", "long with labels"}


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
    F1 = exact.F1[:-NEW]
    close(model.transform(given, row_features=F1), expected.transform(M, row_features=F1), 1e-12)
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


def test_integers_with_missing_values(exact):
    """pandas has its own kind of integers for that."""
    M = np.round(10 * exact.trained)
    frame = pd.DataFrame(M, *labels_of(M)).astype("Int64")
    assert frame.isna().any(axis=None)
    model = InductiveRobustPCA(2).fit(frame, **exact.features)
    expected = InductiveRobustPCA(2).fit(M, **exact.features)
    assert_array_equal(model.low_rank_.dense(), expected.low_rank_.dense())


def test_single_precision_stays(exact):
    model = InductiveRobustPCA(2).fit(exact.trained.astype(np.float32), **exact.features)
    assert model.components_.dtype == model.sparse_.dtype == np.float32
    assert model.transform(exact.new_rows.astype(np.float32)).dtype == np.float32
    close(model.low_rank_.dense(), exact.L[:-NEW, :-NEW], 1e-5)


def test_a_mask_without_holes_is_a_full_matrix(exact):
    full = data_of(holes=0)
    model = InductiveRobustPCA().fit(np.ma.array(full.trained, mask=False), **full.features)
    assert model.result_.engine == "memory"
    assert_array_equal(model.low_rank_.dense(), fitted(full).low_rank_.dense())


def test_features_of_frames_must_have_the_labels_of_a_long_table(exact):
    table = kinds_of(exact.trained)["long with labels"]
    rows, cols = labels_of(exact.trained)
    F1, F2 = pd.DataFrame(exact.F1[:-NEW], rows), pd.DataFrame(exact.F2[:-NEW], cols)
    model = InductiveRobustPCA().fit(table, row_features=F1, col_features=F2)
    close(model.low_rank_.dense(), exact.L[:-NEW, :-NEW])
    new = pd.DataFrame(exact.F1[-NEW:], [f"new {i}" for i in range(NEW)])
    found = model.predict(row_features=new)
    assert list(found.index) == list(new.index) and list(found.columns) == cols
    with pytest.raises(ValueError, match=r"row_features does not match the rows of M.*another order"):
        InductiveRobustPCA().fit(table, row_features=F1[::-1], col_features=F2)


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


def test_new_rows_new_columns_and_both(exact, exact_model):
    F1, F2, L = exact.F1[-NEW:], exact.F2[-NEW:], exact.L
    close(exact_model.predict(row_features=F1), L[-NEW:, :-NEW])
    close(exact_model.predict(col_features=F2), L[:-NEW, -NEW:])
    close(exact_model.predict(F1, F2), L[-NEW:, -NEW:])
    close(exact_model.predict(), exact_model.low_rank_.dense(), 1e-12)


@pytest.mark.parametrize("model", ["exact_model", "partial_model"])
def test_batches_do_not_matter(request, partial, model):
    """Rows are placed one by one, whatever else is in the batch; some have holes and some have not."""
    model = request.getfixturevalue(model)
    F1, M = partial.F1[-NEW:], partial.new_rows.copy()
    M[::3] = partial.L[-NEW:, :-NEW][::3]
    pieces = [slice(k, k + 7) for k in range(0, NEW, 7)]
    close(np.vstack([model.predict(F1[some]) for some in pieces]), model.predict(F1), 1e-12)
    close(np.vstack([model.transform(M[some]) for some in pieces]), model.transform(M))
    close(
        np.vstack([model.transform(M[some], row_features=F1[some]) for some in pieces]),
        model.transform(M, row_features=F1),
    )


def test_warm_is_cold_where_features_tell_all(exact, exact_model):
    """A training row, by its own entries and by its features."""
    F1 = exact.F1[:-NEW]
    cold, warm = exact_model.predict(row_features=F1), exact_model.low_rank_.dense()
    close(warm, cold, 1e-10)
    close(exact_model.inverse_transform(exact_model.transform(exact.trained)), cold, 1e-10)
    close(exact_model.inverse_transform(exact_model.transform(exact.trained, row_features=F1)), cold, 1e-10)
    close(exact_model.decompose(exact.trained, row_features=F1).L.dense(), cold, 1e-10)
    close(exact_model.decompose(exact.trained).L.dense(), cold, 1e-10)


# What was not seen at all


def test_a_row_without_observations_is_what_its_features_say(exact):
    M = exact.trained.copy()
    M[[3, 77]] = np.nan
    model = InductiveRobustPCA().fit(M, **exact.features)
    close(model.low_rank_.dense(), exact.L[:-NEW, :-NEW])
    (doubt,) = (doubt for doubt in model.result_.doubts if doubt.kind == "unseen-lines")
    assert doubt.text == "2 rows have no values: 3, 77. What is expected there rests on the features alone"
    assert doubt.rows == (3, 77) and doubt.text in model.summary()


def test_doubts_name_labels(exact):
    M = exact.trained.copy()
    M[[3, 77]], M[:, 5] = np.nan, np.nan
    model = InductiveRobustPCA().fit(pd.DataFrame(M, *labels_of(M)), **exact.features)
    told = [doubt for doubt in model.result_.doubts if doubt.kind == "unseen-lines"]
    assert [doubt.text.partition(".")[0] for doubt in told] == [
        "2 rows have no values: user 3, user 77",
        "1 column has no values: item 5",
    ]
    assert (told[0].rows, told[1].columns) == ((3, 77), (5,))
    assert all(doubt.text in model.summary() for doubt in told)


def test_warnings_name_labels(exact):
    M = exact.trained.copy()
    M[[3, 77]] = np.nan
    with pytest.warns(ConvergenceWarning, match=r"(?s)^STOPPED.*: user 3, user 77\."):
        InductiveRobustPCA(callbacks=lambda state, history: True).fit(pd.DataFrame(M, *labels_of(M)), **exact.features)


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


def test_nothing_is_said_of_a_column_without_observations_or_features(exact):
    M = exact.trained.copy()
    M[:, 5] = np.nan
    M[7, 5] = 1e6
    model = InductiveRobustPCA(2).fit(M, row_features=exact.F1[:-NEW])
    (doubt,) = (doubt for doubt in model.result_.doubts if doubt.kind == "unknown-lines")
    assert doubt.columns == (5,)
    others = np.arange(M.shape[1]) != 5
    close(model.low_rank_.dense()[:, others], exact.L[:-NEW, :-NEW][:, others])
    for found in (model.predict(), model.predict(row_features=exact.F1[-NEW:])):
        assert np.isnan(found[:, 5]).all() and np.isfinite(found[:, others]).all()
    assert 5 not in model.outliers()["column"]


def test_a_new_row_without_observations(exact, exact_model, partial, partial_model):
    nothing = np.full((1, 90), np.nan)
    for data, model in ((exact, exact_model), (partial, partial_model)):
        F1 = data.F1[-1:]
        found = model.transform(np.vstack([data.new_rows[:1], nothing]), row_features=data.F1[-2:])
        close(model.inverse_transform(found)[1:], model.predict(row_features=F1))
    # Without features either, it is like the others.
    found = exact_model.transform(np.vstack([exact.new_rows[:1], nothing]))
    close(exact_model.inverse_transform(found)[1], exact.L[:-NEW, :-NEW].mean(axis=0))


# Features that do not tell all


@pytest.mark.parametrize(("extra", "noise"), [(0, 0.0), (0, NOISE), (3, 0.0)])
def test_the_number_of_free_directions_is_found(extra, noise):
    data = data_of(extra=extra, noise=noise)
    model = fitted(data)
    assert model.rank_ == 2 + extra
    assert rms(model.low_rank_.dense() - data.L[:-NEW, :-NEW]) <= max(0.4 * noise, 1e-9)
    if extra:
        assert sum(model.shares_.values()) == pytest.approx(1, abs=1e-12)
        assert set(model.shares_) == {"features", "free"}
        assert model.shares_["free"] == pytest.approx(0.5, abs=0.15)
    else:
        assert model.shares_ == {}


def test_free_directions_that_are_asked_for(partial):
    model = fitted(partial, extra_rank=3, rank=2)
    assert model.rank_ == 5 and model.converged_
    alone = fitted(partial, extra_rank=0, rank=2)
    assert alone.rank_ == 2 and rms(alone.low_rank_.dense() - partial.L[:-NEW, :-NEW]) > 5 * NOISE


def test_a_solver_without_a_free_part_says_so(partial):
    with pytest.raises(ValueError, match="solver='pcpf' knows no free part beside the features"):
        fitted(partial, solver="pcpf", extra_rank=2)


def some_of(M, count, seed=0):
    """So many observed entries of each row, and nothing else."""
    rng, found = np.random.default_rng(seed), np.full(M.shape, np.nan)
    for row, kept in zip(M, found, strict=True):
        at = rng.permutation(np.flatnonzero(~np.isnan(row)))[:count]
        kept[at] = row[at]
    return found


@cache
def many_rows(corruption):
    data = data_of(200, 110, extra=3, noise=NOISE, corruption=corruption)
    return data, fitted(data)


@pytest.mark.parametrize("corruption", [0.0, 0.1])
@pytest.mark.parametrize("method", ["transform", "decompose"])
def test_the_more_is_seen_of_a_new_row_the_better(corruption, method):
    """From what features say alone to what the whole row says. A few gross errors among few entries do some harm."""
    data, model = many_rows(corruption)
    L, F1 = data.L[-NEW:, :-NEW], data.F1[-NEW:]

    def error(M, **features):
        if method == "decompose":
            found = model.decompose(M, **features).L.dense()
        else:
            found = model.inverse_transform(model.transform(M, **features))
        return np.median(np.sqrt(np.mean((found - L) ** 2, axis=1)))

    cold = np.median(np.sqrt(np.mean((model.predict(row_features=F1) - L) ** 2, axis=1)))
    errors = [error(some_of(data.new_rows, count), row_features=F1) for count in (1, 3, 6, 12, 24, 48)]
    assert cold > errors[0] and (np.diff(errors) < 0).all()
    assert errors[-1] < 0.5 * NOISE < 5 * NOISE < cold
    assert errors[2] < 0.3 * cold  # twice as many entries as there are free directions
    without = [error(some_of(data.new_rows, count)) for count in (6, 12, 24, 48)]
    assert all(one < other for one, other in zip(errors[2:], without, strict=True))


def test_a_row_seen_whole_is_as_good_as_in_the_fit(partial, partial_model):
    """The same rows, within the fit and afterwards."""
    among = InductiveRobustPCA(extra_rank=3).fit(
        partial.M[:, :-NEW], row_features=partial.F1, col_features=partial.F2[:-NEW]
    )
    within = rms(among.low_rank_.dense()[-NEW:] - partial.L[-NEW:, :-NEW])
    found = partial_model.decompose(partial.new_rows, row_features=partial.F1[-NEW:])
    assert rms(found.L.dense() - partial.L[-NEW:, :-NEW]) < 1.2 * within
    assert found.doubts == ()


def test_noisy_rows_with_holes_need_no_features():
    """A model with features, asked about rows of which it is given none: they are not drawn to zero."""
    data = data_of(noise=NOISE)
    model = fitted(data)
    found = model.inverse_transform(model.transform(data.new_rows))
    assert rms(found - data.L[-NEW:, :-NEW]) < 0.5 * NOISE
    assert model.score(data.new_rows) == pytest.approx(
        model.score(data.new_rows, row_features=data.F1[-NEW:]), abs=0.05
    )


def placement(V, spread, noise, gross=1e-4, exact=0.0):
    """Rows whose factors are Gaussian with this covariance about zero, under Gaussian noise."""
    ones, K = np.ones(len(V)), V.shape[1]
    model = NoiseModel(noise, 1e-300 * ones, np.ones(1), ones, 100.0, gross, np.array([1.0, 0.0, 0.0]))
    columns = Side(V, ones[:, None], False, np.zeros(K), np.zeros(K), ones > 0)
    posterior = noise**2 * np.linalg.inv(V.T @ V)
    none = np.zeros((len(V), 0))
    return Placement(
        columns, model, ones, np.eye(K), np.zeros(K), spread, spread, posterior, none, spread, spread, exact
    )


def test_scores_are_the_mean_given_what_is_seen():
    """Gaussian scores, Gaussian noise, no gross errors: the formula of the conditional mean."""
    rng = np.random.default_rng(0)
    V, A = rng.standard_normal((30, 3)), rng.standard_normal((3, 3))
    spread, prior = A @ A.T, rng.standard_normal((50, 3))
    U = prior + rng.standard_normal((50, 3)) @ A.T
    M = some_of(U @ V.T + 0.1 * rng.standard_normal((50, 30)), 4)
    found = placement(V, spread, 0.1, gross=1e-12).place(M, prior).scores
    for row, expected, mean in zip(M, found, prior, strict=True):
        at = ~np.isnan(row)
        K = V[at] @ spread @ V[at].T + 0.01 * np.eye(at.sum())
        assert_allclose(
            expected, mean + spread @ V[at].T @ np.linalg.solve(K, row[at] - V[at] @ mean), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("count", [5, 8, 30])
def test_a_gross_error_among_few_entries_is_left_out(count):
    """It is far beyond what the spread of the scores allows, or what the others say."""
    rng = np.random.default_rng(0)
    V, U = rng.standard_normal((30, 3)), rng.standard_normal((200, 3))
    clean = some_of(U @ V.T + 0.1 * rng.standard_normal((200, 30)), count)
    M = clean.copy()
    at = np.argmax(~np.isnan(M), axis=1)
    M[np.arange(200), at] += 20.0
    clean[np.arange(200), at] = np.nan
    model = placement(V, np.eye(3), 0.1, gross=0.1)
    found, without = (model.place(A, np.zeros((200, 3))).scores for A in (M, clean))
    off = np.abs(found - without).max(axis=1) > 1e-3
    assert off.mean() <= 0.02


@pytest.mark.parametrize("size", [1.0, 1e5])
def test_exact_rows_are_placed_to_rounding_whatever_their_size(size):
    """A third of the entries of every row is wrong, and some are missing."""
    rng = np.random.default_rng(0)
    V, U = np.linalg.qr(rng.standard_normal((60, 3)))[0], 8 * rng.standard_normal((100, 3))
    X = U @ V.T
    X[rng.random(X.shape) < 0.3] += 20.0
    X[rng.random(X.shape) < 0.1] = np.nan
    typical = np.sqrt(np.mean((U @ V.T) ** 2))
    model = placement(V, 64 * np.eye(3), 1e-5 * typical, gross=0.3, exact=1e-14)
    close(model.place(size * X, None).scores, size * U, 1e-9)


def test_few_entries_are_as_good_as_the_prior_makes_them():
    """Nothing is known of a row but the average, and of another but one entry."""
    V = np.random.default_rng(0).standard_normal((30, 3))
    nothing = np.full((2, 30), np.nan)
    nothing[1, 4] = 1.0
    found = placement(V, np.eye(3), 0.1).place(nothing, None)
    assert_allclose(found.scores[0], 0, atol=1e-12)
    assert_allclose(found.scores[1], V[4] / (V[4] @ V[4] + 0.01), rtol=1e-3)
    before, after = (np.sum(V @ np.diag(variances) * V) for variances in found.variances)
    assert before > after > np.trace(V @ np.linalg.inv(V.T @ V) @ V.T) * 0.1**2  # less sure than a typical row
    assert_allclose(found.variances[0], 1, rtol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_line_without_entries_leaves_the_rest_as_it_is(axis):
    """Its posterior is the prior, which must not count among those of the others: rank 3 to 7 was found for 2."""
    rng = np.random.default_rng(0)
    L = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    M = L + 0.1 * rng.standard_normal(L.shape)
    (M if axis == 0 else M.T)[3] = np.nan
    model = InductiveRobustPCA().fit(M)
    assert model.rank_ == 2 and model.result_.usable == "use with care"
    assert np.abs(model.low_rank_.dense() - L)[np.isfinite(M)].mean() < 0.03
    (doubt,) = (doubt for doubt in model.result_.doubts if doubt.kind == "unknown-lines")
    assert (doubt.rows, doubt.columns) == (((3,), ()) if axis == 0 else ((), (3,)))


# What is refused


def test_what_a_long_table_refuses():
    with pytest.raises(ValueError, match="row 0, column 1 is there 2 times"):
        LongTable([0, 0, 1], [1, 1, 0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"rows\[1\] is 9, but M has only 4 rows"):
        LongTable([0, 9], [0, 1], [1.0, 2.0], (4, 3))
    with pytest.raises(ValueError, match="never negative"):
        LongTable([0, -1], [0, 1], [1.0, 2.0], (4, 3))


def test_duplicates_in_a_sparse_matrix_are_refused():
    twice = coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), shape=(4, 3))
    with pytest.raises(ValueError, match="more than once, such as the one in row 0, column 1"):
        InductiveRobustPCA(1).fit(twice)


@pytest.mark.parametrize(
    "M",
    [
        np.full((6, 5), np.nan),
        np.ma.masked_all((6, 5)),
        csr_array((6, 5)),
        pd.DataFrame(np.full((6, 5), np.nan)),
        pd.DataFrame(np.full((6, 5), pd.NA)),
    ],
    ids=["nan", "mask", "sparse", "frame", "NA"],
)
def test_nothing_observed(M):
    with pytest.raises(ValueError, match="every cell of M is missing"):
        InductiveRobustPCA(1).fit(M)


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


def test_infinite_entries_of_new_rows(exact, exact_model):
    M = exact.new_rows.copy()
    M[0, 0] = -np.inf
    for method in ("transform", "decompose", "score"):
        with pytest.raises(ValueError, match="infinite"):
            getattr(exact_model, method)(M)


# Outliers


def test_false_alarms_are_held_down():
    data = data_of(300, 250, noise=NOISE, corruption=0.05)
    model = fitted(data)
    seen = ~np.isnan(data.trained)
    wrong = data.corrupted[:-NEW, :-NEW] & seen
    every = model.outliers()
    for fdr in (0.01, 0.1):
        table = model.outliers(fdr=fdr)
        false = ~wrong[table["row"], table["column"]]
        assert false.mean() <= fdr + 3 * np.sqrt(fdr / len(table))
        assert 0.9 * wrong.sum() < len(table)
    assert len(model.outliers(fdr=0.001)) <= len(model.outliers(fdr=0.01)) <= len(model.outliers(fdr=0.1))
    assert (np.diff(every["probability"]) <= 0).all()
    assert (every["probability"][:1000] > 0.99).all() and every["probability"].min() > 0.5
    assert_array_equal(every["observed"], data.trained[every["row"], every["column"]])
    assert len(model.outliers(most=7, fdr=0.1)) == 7


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


def test_lines_without_labels_are_positions(exact_model):
    rows = exact_model.outlier_rows()
    assert rows.dtype.names[0] == "row" and sorted(rows["row"].tolist()) == list(range(120))


# Searches of scikit-learn, which cut rows


WRONG = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@WRONG
@pytest.mark.parametrize("kind", ["nan", "csr", "frame", "nullable"])
def test_grid_search_over_rows(exact, kind):
    M = exact.trained if kind == "nan" else kinds_of(exact.trained)[kind]
    model = InductiveRobustPCA(col_features=exact.F2[:-NEW], extra_rank=0)
    found = GridSearchCV(model, {"rank": [1, 2, 3]}, cv=2, error_score="raise")
    found.fit(M, row_features=exact.F1[:-NEW])
    scores = found.cv_results_["mean_test_score"]
    assert scores[0] < scores[1] - 0.3 and abs(scores[2] - scores[1]) < 0.05
    assert found.best_params_["rank"] >= 2


@WRONG
def test_grid_search_for_free_directions():
    data = data_of(extra=3, noise=NOISE)
    model = InductiveRobustPCA(2, col_features=data.F2[:-NEW])
    found = GridSearchCV(model, {"extra_rank": [0, 2, 3]}, cv=2, error_score="raise")
    found.fit(data.trained, row_features=data.F1[:-NEW])
    assert found.best_params_ == {"extra_rank": 3}


@WRONG
def test_grid_search_without_features():
    data = data_of(100, 90, noise=NOISE)
    found = GridSearchCV(InductiveRobustPCA(), {"rank": [1, 2]}, cv=2, error_score="raise").fit(data.trained)
    assert found.best_params_ == {"rank": 2}


def test_scores_of_kinds_agree(exact):
    expected = cross_val_score(InductiveRobustPCA(2), exact.trained, cv=3, error_score="raise")
    sparse = cross_val_score(InductiveRobustPCA(2), kinds_of(exact.trained)["csr"], cv=3, error_score="raise")
    assert_array_equal(sparse, expected)


def test_rows_of_other_weight_count_by_what_is_observed(exact, exact_model):
    """A row that is not observed at all has no say."""
    M = exact.new_rows.copy()
    M[0] = np.nan
    assert exact_model.score(M) == exact_model.score(M[1:])


def test_a_fit_that_was_stopped_early_still_places_rows(partial):
    with pytest.warns(ConvergenceWarning):
        model = fitted(partial, callbacks=lambda state, history: True)
    assert np.isfinite(model.transform(partial.new_rows)).all()
    assert np.isfinite(model.transform(partial.new_rows, row_features=partial.F1[-NEW:])).all()


def test_rows_that_are_not_as_their_features_say():
    rng = np.random.default_rng(0)
    F1, F2 = rng.standard_normal((300, 4)), rng.standard_normal((120, 4))
    L = F1 @ rng.standard_normal((4, 4)) @ F2.T
    M = L + 0.1 * L.std() * rng.standard_normal(L.shape)
    M[:30] += 3 * L.std() * np.outer(np.ones(30), rng.standard_normal(120))
    model = InductiveRobustPCA().fit(M[30:], row_features=F1[30:], col_features=F2)
    found = model.outlier_rows(M, row_features=F1)
    assert set(found["row"][found["broken"]]) == set(range(30))
    with pytest.raises(ValueError, match="give row_features, too"):
        model.outlier_rows(M)


def test_columns_in_another_order_are_refused(exact):
    frame = pd.DataFrame(exact.M[:, :40], columns=range(100, 140))
    model = InductiveRobustPCA(2).fit(frame[:60])
    for method in (model.transform, model.decompose, model.score):
        with pytest.raises(ValueError, match=r"columns of M are those of the fitted table in another order, 139, 138"):
            method(frame[60:].iloc[:, ::-1])


def test_text_is_pointed_to_long_tables():
    ratings = pd.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "stars": [1, 5]})
    with pytest.raises(ValueError, match=r"'user', 'item' of M hold text.*LongTable\.from_frame"):
        InductiveRobustPCA().fit(ratings)


def test_new_rows_with_few_entries_are_doubted(exact, exact_model):
    rows = exact.new_rows[:2].copy()
    rows[1, 1:] = np.nan
    assert exact_model.decompose(rows[:1]).doubts == ()
    (doubt,) = exact_model.decompose(rows).doubts
    assert doubt.kind == "few-entries" and doubt.rows == (1,) and "1 row has fewer than 2 values: 1. " in doubt.text
    (doubt,) = exact_model.decompose(pd.DataFrame(rows, ["old", "new"])).doubts
    assert "1 row has fewer than 2 values: new. " in doubt.text
