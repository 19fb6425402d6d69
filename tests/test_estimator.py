"""The estimator by itself; how it gets on with scikit-learn is in test_sklearn.py."""

import copy
import dataclasses
import tracemalloc
from functools import cache

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import irpca
from irpca import InductiveRobustPCA, Status
from irpca.datasets import load_life_expectancy, make_problem
from irpca.features import FeatureWarning

SIDES = {"both": (True, True), "rows": (True, False), "columns": (False, True), "none": (False, False)}
REAL = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of no concern here
NEW = 10  # rows that a model has not seen
FITS = {}


def problem_of(**options):
    options = {"d1": 5, "d2": 4, "rank": 2, "corruption": 0.05, "features": "conditioned", **options}
    return make_problem(90 + NEW, 60, **options)


@pytest.fixture(scope="module")
def problem():
    return problem_of()


def fit(problem, sides="both", rank=2, **options):
    rows, columns = SIDES[sides]
    F = {"row_features": problem.F1[:-NEW] if rows else None, "col_features": problem.F2 if columns else None}
    return InductiveRobustPCA(rank, **options).fit(problem.M[:-NEW], **F)


def fitted(problem, sides="both", rank=2, **options):
    """The same; what is fitted without options is fitted once."""
    if options:
        return fit(problem, sides, rank, **options)
    key = id(problem), sides, rank
    if key not in FITS:
        FITS[key] = problem, fit(problem, sides, rank)  # the problem too, lest another one gets its id
    return copy.copy(FITS[key][1])


def close(actual, expected, tolerance=1e-9):
    """Equal up to a share of the largest entry."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def frames(problem):
    rows = [f"user {i}" for i in range(len(problem.M))]
    cols = [f"item {j}" for j in range(problem.M.shape[1])]
    M = pd.DataFrame(problem.M, index=rows, columns=cols)
    F1 = pd.DataFrame(problem.F1, index=rows, columns=[f"age {k}" for k in range(problem.F1.shape[1])])
    F2 = pd.DataFrame(problem.F2, index=cols, columns=[f"price {k}" for k in range(problem.F2.shape[1])])
    return M, F1, F2


# What a fit leaves behind


@pytest.mark.parametrize("sides", SIDES)
def test_a_fit_is_that_of_solve(problem, sides):
    rows, columns = SIDES[sides]
    F1, F2 = problem.F1[:-NEW] if rows else None, problem.F2 if columns else None
    result = irpca.solve(problem.M[:-NEW], F1, F2, rank=2)
    model = fitted(problem, sides)
    assert_array_equal(model.low_rank_.dense(), result.L.dense())
    assert_array_equal(model.sparse_.toarray(), result.S.toarray())
    if sides == "none":
        assert model.W_ is None
    else:
        assert_array_equal(model.W_, result.W)
    for name in ("rank", "noise", "corruption", "zeta", "explained", "status", "n_iter", "converged"):
        assert getattr(model, name + "_") == getattr(result, name)
    assert model.history_ is model.result_.history
    assert model.n_features_in_ == 60 and not hasattr(model, "feature_names_in_")
    assert model.status_ is Status.CONVERGED and model.converged_


@pytest.mark.parametrize("sides", SIDES)
def test_components_are_orthonormal_sorted_and_of_fixed_sign(problem, sides):
    model = fitted(problem, sides)
    V = model.components_
    assert V.shape == (2, 60)
    assert_allclose(V @ V.T, np.eye(2), atol=1e-12)
    assert (V[np.arange(2), np.abs(V).argmax(axis=1)] > 0).all()
    L = model.low_rank_.dense()
    assert_allclose(model.singular_values_, np.linalg.svd(L, compute_uv=False)[:2], rtol=1e-10)
    close(L @ V.T @ V, L)
    assert_allclose(np.linalg.norm(L @ V.T, axis=0), model.singular_values_, rtol=1e-10)


def test_factors_of_any_kind_give_the_same_components(problem, monkeypatch):
    expected = fitted(problem)

    def skew(*arguments, **options):
        result = irpca.solve(*arguments, **options)
        mix = np.array([[1.0, 2.0], [0.0, 3.0]])
        L = irpca.LowRank(result.L.left @ mix, np.linalg.solve(mix, result.L.core), -result.L.right)
        return dataclasses.replace(result, L=irpca.LowRank(L.left, -L.core, L.right))

    monkeypatch.setattr("irpca.estimator.solve", skew)
    model = fit(problem)
    close(model.components_, expected.components_)
    close(model.singular_values_, expected.singular_values_)
    close(model.predict(problem.F1[-NEW:]), expected.predict(problem.F1[-NEW:]))


def test_every_parameter_reaches_solve(problem, monkeypatch):
    seen = {}

    def spy(M, F1, F2, **options):
        seen.update(options)
        return irpca.solve(M, F1, F2, rank=2)

    monkeypatch.setattr("irpca.estimator.solve", spy)
    watch, rng = [lambda state, history: False], np.random.default_rng(0)
    fitted(
        problem,
        rank=3,
        solver="irpca_iht",
        engine="reference",
        tol=1e-3,
        max_iter=7,
        solver_options={"nu": 0.5},
        callbacks=watch,
        random_state=rng,
    )
    assert seen == {
        "rank": 3,
        "solver": "irpca_iht",
        "engine": "reference",
        "tol": 1e-3,
        "max_iter": 7,
        "nu": 0.5,
        "callbacks": watch,
        "resume": None,
        "random_state": rng,
    }


def test_fit_leaves_parameters_and_data_alone():
    problem = problem_of(noise=1e-4)
    M, F1, F2 = problem.M[:-NEW].copy(), problem.F1[:-NEW].copy(), problem.F2.copy()
    options = {"noise": 1e-4}
    model = InductiveRobustPCA("auto", col_features=F2, solver_options=options)
    before = dict(vars(model))
    model.fit(M, row_features=F1)
    assert {name: vars(model)[name] for name in before} == before  # the same objects
    assert options == {"noise": 1e-4}
    assert_array_equal(M, problem.M[:-NEW])
    assert_array_equal(F1, problem.F1[:-NEW])
    assert_array_equal(F2, problem.F2)


def test_the_rank_is_found(problem):
    assert fitted(problem, rank="auto").rank_ == 2


def test_column_features_in_the_constructor_are_those_of_fit(problem):
    M, F1, F2 = problem.M[:-NEW], problem.F1[:-NEW], problem.F2
    model = InductiveRobustPCA(2, col_features=F2).fit(M, row_features=F1)
    assert_array_equal(model.W_, fitted(problem).W_)
    with pytest.raises(ValueError, match="both to the constructor and to fit"):
        model.fit(M, row_features=F1, col_features=F2)


# Cold start


@pytest.mark.parametrize("rows", ["new", "trained"])
@pytest.mark.parametrize("columns", ["new", "trained"])
def test_predict_is_the_formula(problem, rows, columns):
    model = fitted(problem)
    rng = np.random.default_rng(0)
    A = rng.standard_normal((7, 5)) if rows == "new" else None
    B = rng.standard_normal((3, 4)) if columns == "new" else None
    left = problem.F1[:-NEW] if A is None else A
    right = problem.F2 if B is None else B
    close(model.predict(A, B), left @ model.W_ @ right.T, 1e-12)


def test_ten_new_items_for_all_users_in_one_call(problem):
    model = InductiveRobustPCA().fit(problem.M[:, :-NEW], row_features=problem.F1, col_features=problem.F2[:-NEW])
    close(model.predict(col_features=problem.F2[-NEW:]), problem.L[:, -NEW:])


def test_predict_with_features_of_one_side(problem):
    model = fitted(problem, "rows")
    close(model.predict(row_features=problem.F1[-NEW:]), problem.L[-NEW:])
    close(model.predict(), model.low_rank_.dense(), 1e-12)
    with pytest.raises(ValueError, match=r"col_features was given, but .* nothing about new columns$"):
        model.predict(col_features=problem.F2)
    model = fitted(problem, "columns")
    close(model.predict(col_features=problem.F2[:3]), problem.L[:-NEW, :3])
    with pytest.raises(ValueError, match=r"row_features was given, but .*pass the rows to outliers"):
        model.predict(row_features=problem.F1)


def test_without_any_features_there_is_no_predict(problem):
    model = InductiveRobustPCA(2)
    assert hasattr(model, "predict")
    model.fit(problem.M)
    assert not hasattr(model, "predict")
    with pytest.raises(AttributeError, match=r"needs a model fitted with .*use expected"):
        model.predict()
    model.fit(problem.M, row_features=problem.F1)  # and now there is
    assert hasattr(model, "predict")


def test_redundant_features_predict_as_well(problem):
    F1 = np.column_stack([problem.F1, problem.F1[:, 0] - problem.F1[:, 1]])
    with pytest.warns(FeatureWarning, match="row_features has 6 columns but only 5 independent"):
        model = InductiveRobustPCA(2, col_features=problem.F2).fit(problem.M[:-NEW], row_features=F1[:-NEW])
    assert model.W_.shape == (6, 4)
    close(model.predict(row_features=F1[-NEW:]), problem.L[-NEW:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"row_features": np.ones((5, 7))},
            r"row_features has 7 columns but had 5 in fit; did .*row_features\.T",
        ),
        ({"row_features": np.ones((3, 7))}, r"row_features has 7 columns but had 5 in fit$"),
        ({"col_features": np.ones((3, 5))}, r"col_features has 5 columns but had 4 in fit$"),
        ({"col_features": np.ones(4)}, "Expected 2D array"),
        ({"row_features": np.full((2, 5), np.nan)}, "row_features contains NaN"),
    ],
)
def test_predict_refuses_other_features(problem, arguments, message):
    with pytest.raises(ValueError, match=message):
        fitted(problem).predict(**arguments)


# New rows


@pytest.mark.parametrize("sides", SIDES)
def test_new_rows_are_placed_and_their_corruption_is_trimmed(problem, sides):
    model = fitted(problem, sides)
    scores = model.transform(problem.M[-NEW:])
    assert problem.corrupted[-NEW:].any()
    assert scores.shape == (NEW, 2)
    close(model.inverse_transform(scores), problem.L[-NEW:])


@pytest.mark.parametrize("sides", ["both", "rows"])
def test_new_rows_by_their_features_alone(problem, sides):
    model = fitted(problem, sides)
    anything = np.random.default_rng(0).standard_normal((NEW, 60))
    scores = model.transform(anything, row_features=problem.F1[-NEW:])
    close(model.inverse_transform(scores), problem.L[-NEW:])
    close(model.inverse_transform(scores), model.predict(row_features=problem.F1[-NEW:]), 1e-12)


def test_warm_and_cold_agree_on_trained_rows(problem):
    model = fitted(problem)
    warm = model.transform(problem.M[:-NEW])
    close(warm, model.transform(problem.M[:-NEW], row_features=problem.F1[:-NEW]))
    close(model.inverse_transform(warm), model.low_rank_.dense())


@pytest.mark.parametrize("sides", SIDES)
def test_fit_transform_is_fit_then_transform(problem, sides):
    rows, columns = SIDES[sides]
    M, F1 = problem.M[:-NEW], problem.F1[:-NEW] if rows else None
    model = InductiveRobustPCA(2)
    scores = model.fit_transform(M, row_features=F1, col_features=problem.F2 if columns else None)
    assert_array_equal(scores, model.transform(M, row_features=F1))
    assert_array_equal(scores, fitted(problem, sides).transform(M, row_features=F1))
    close(model.inverse_transform(scores), model.low_rank_.dense())


def test_nothing_is_fitted_again(problem, monkeypatch):
    model = fit(problem)
    before = {name: value.copy() for name, value in vars(model).items() if isinstance(value, np.ndarray)}
    L, S, names = model.low_rank_.dense(), model.sparse_.toarray(), set(vars(model))

    def refit(*arguments, **options):
        raise AssertionError("solve was called")

    monkeypatch.setattr("irpca.estimator.solve", refit)
    model.transform(problem.M[-NEW:])
    model.transform(problem.M[-NEW:], row_features=problem.F1[-NEW:])
    model.inverse_transform(np.ones((2, 2)))
    model.predict(row_features=problem.F1[-NEW:])
    model.decompose(problem.M[-NEW:])
    model.score(problem.M[-NEW:])
    model.outliers()
    model.summary()
    assert {"W_", "components_", "singular_values_"} <= set(before)
    for name, value in before.items():
        assert_array_equal(getattr(model, name), value)
    assert_array_equal(model.low_rank_.dense(), L)
    assert_array_equal(model.sparse_.toarray(), S)
    assert set(vars(model)) - {"_fingerprint"} == names  # that is found when it is needed


def test_one_new_row(problem):
    model = fitted(problem)
    assert model.transform(problem.M[-1:]).shape == (1, 2)
    close(model.transform(problem.M[-1:]), model.transform(problem.M[-NEW:])[-1:])
    close(model.decompose(problem.M[-1:]).L.dense(), problem.L[-1:])


@pytest.mark.parametrize("sides", SIDES)
def test_new_rows_taken_apart(problem, sides):
    model = fitted(problem, sides)
    M, F1 = problem.M[-NEW:], problem.F1[-NEW:] if SIDES[sides][0] else None
    result = model.decompose(M, row_features=F1)
    close(result.L.dense(), problem.L[-NEW:])
    close(result.S.toarray(), problem.S[-NEW:])
    assert_array_equal(result.S.toarray() != 0, problem.corrupted[-NEW:])
    assert result.rank == 2 and result.converged and result.doubts == ()
    assert result.corruption == pytest.approx(problem.corrupted[-NEW:].mean())
    assert result.reads == (1 if SIDES[sides][0] else 2)
    assert result.explained == pytest.approx(1)
    if sides == "none":
        assert result.W is None
    else:
        left = np.eye(NEW) if F1 is None else F1
        right = problem.F2 if SIDES[sides][1] else np.eye(60)
        close(left @ result.W @ right.T, problem.L[-NEW:])


@pytest.mark.parametrize("sides", SIDES)
def test_trained_rows_taken_apart_again(sides):
    problem = problem_of(noise=1e-4)
    model = fitted(problem, sides)
    result = model.decompose(problem.M[:-NEW], row_features=problem.F1[:-NEW] if SIDES[sides][0] else None)
    close(result.L.dense(), model.low_rank_.dense(), 1e-4)
    assert result.zeta == model.zeta_
    found, before = result.S.toarray() != 0, model.sparse_.toarray() != 0
    assert (found != before).mean() < 1e-3
    assert result.explained == pytest.approx(model.explained_, rel=1e-4)


def test_rounding_of_new_rows_is_no_gross_error(problem):
    model = fitted(problem, "columns")
    for M in (problem.M[-NEW:].astype(np.float32), 1e5 * problem.M[-NEW:]):
        result = model.decompose(M)
        assert_array_equal(result.S.toarray() != 0, problem.corrupted[-NEW:])
        assert result.S.dtype == M.dtype


def test_rows_that_do_not_belong_are_doubted(problem):
    model = fitted(problem)
    result = model.decompose(problem.M[-NEW:], row_features=problem.F1[:NEW])
    (doubt,) = result.doubts
    assert doubt.kind == "unlike-fit"
    assert "may not hold for these rows" in doubt.text and doubt.text in result.summary()


@pytest.mark.parametrize("method", ["transform", "decompose", "score"])
def test_new_rows_that_are_refused(problem, method):
    def use(sides, M, **options):
        return getattr(fitted(problem, sides), method)(M, **options)

    M = problem.M[-NEW:]
    with pytest.raises(ValueError, match="row_features has 9 rows but M has 10"):
        use("both", M, row_features=problem.F1[-NEW + 1 :])
    with pytest.raises(ValueError, match=r"fitted without.*pass the rows to outliers"):
        use("columns", M, row_features=problem.F1[-NEW:])
    with pytest.raises(ValueError, match="59 features, but InductiveRobustPCA is expecting 60"):
        use("none", M[:, 1:])
    spoilt = M.copy()
    spoilt[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinite"):
        use("none", spoilt)


def test_scores_of_another_model_are_refused(problem):
    with pytest.raises(ValueError, match="scores has 3 columns, this model 2 components"):
        fitted(problem).inverse_transform(np.ones((4, 3)))


@pytest.mark.parametrize("method", ["transform", "inverse_transform", "decompose", "score", "predict"])
def test_first_fit_then_ask(method):
    with pytest.raises(NotFittedError):
        getattr(InductiveRobustPCA(), method)(np.ones((3, 3)))
    for method in ("outliers", "summary", "get_feature_names_out"):
        with pytest.raises(NotFittedError):
            getattr(InductiveRobustPCA(), method)()


# Score


def test_zeros_explained_by_nothing_are_no_great_success():
    rng = np.random.default_rng(0)
    F1 = rng.uniform(1, 2, (90, 1))
    L = F1 @ rng.uniform(1, 2, (1, 60))
    M = np.where(rng.random(L.shape) < 0.3, 0.0, L)
    model = InductiveRobustPCA(1).fit(L, row_features=F1)
    right = model.score(M, row_features=F1)
    model.components_ = np.zeros_like(model.components_)  # predicts zero
    assert right > model.score(M, row_features=F1)


@pytest.mark.parametrize("row_features", [True, False])
def test_score_is_robust_and_in_the_units_of_M(row_features):
    problem = problem_of(noise=1e-3, corruption=0.1)
    model = fitted(problem)
    F1 = problem.F1[-NEW:] if row_features else None
    typical = 1e-3 * np.exp(-(np.euler_gamma + np.log(2)) / 2)  # geometric mean of |N(0, 1)|
    clean = model.score(problem.L[-NEW:] + problem.N[-NEW:], row_features=F1)
    assert np.exp(-clean) == pytest.approx(typical, rel=0.1)
    worse = problem.L[-NEW:] + problem.N[-NEW:] + 1e6 * (np.arange(60) % 12 == 0)
    assert clean - model.score(worse, row_features=F1) < 0.1 * np.log(1e6 / typical)


def test_no_entry_is_scored_by_itself(problem):
    model = fitted(problem, "none")
    M = problem.L[-NEW:].copy()
    exact = model.score(M)
    M[0, 0] += 1e-9  # far too small to be trimmed by a row's own threshold, were the row not exact
    assert (exact - model.score(M)) * M.size == pytest.approx(np.log(1e-9) + exact, abs=0.5)


def test_rows_are_weighted(problem):
    model = fitted(problem)
    M, weights = problem.M[-NEW:], np.arange(NEW)
    each = [model.score(M[[i]]) for i in range(NEW)]
    assert model.score(M) == pytest.approx(np.mean(each), abs=1e-5)
    assert model.score(M, sample_weight=weights) == pytest.approx(np.average(each, weights=weights), abs=1e-5)
    assert abs(np.mean(each) - np.average(each, weights=weights)) > 1e-2


def test_score_in_batches_is_score(problem, monkeypatch):
    model = fitted(problem)
    whole = model.score(problem.M), model.score(problem.M, row_features=problem.F1)
    monkeypatch.setattr("irpca.estimator.CHUNK_ENTRIES", 7 * 60)
    batched = model.score(problem.M), model.score(problem.M, row_features=problem.F1)
    assert batched == pytest.approx(whole, abs=1e-5)


# The table of gross errors


def test_outliers_as_an_array(problem):
    model = fitted(problem)
    table = model.outliers()
    assert table.dtype.names == ("row", "column", "observed", "expected", "difference", "std", "score", "probability")
    assert (table["probability"] == 1).all() and (np.diff(table["score"]) <= 0).all()  # there is no noise
    assert len(table) == model.sparse_.nnz == problem.corrupted[:-NEW].sum()
    assert (np.diff(np.abs(table["difference"])) <= 0).all()
    row, column = table["row"], table["column"]
    assert_array_equal(table["difference"], model.sparse_.toarray()[row, column])
    assert_array_equal(table["observed"], problem.M[:-NEW][row, column])  # to the bit
    assert_allclose(table["expected"], model.low_rank_.dense()[row, column], rtol=1e-12, atol=1e-15)
    assert_array_equal(model.outliers(most=3), table[:3])
    assert len(model.outliers(most=0)) == 0
    with pytest.raises(ValueError, match="most must be a whole number, at least 0; got -1"):
        model.outliers(most=-1)


def test_outliers_as_a_frame(problem):
    M, F1, _ = frames(problem)
    model = InductiveRobustPCA(2, col_features=problem.F2).fit(M, row_features=F1)
    table = model.outliers(most=20)
    assert list(table.columns) == ["row", "column", "observed", "expected", "difference", "std", "score", "probability"]
    assert len(table) == 20
    for row in table.itertuples():
        assert row.observed == M.loc[row.row, row.column]
        i, j = M.index.get_loc(row.row), M.columns.get_loc(row.column)
        assert row.difference == pytest.approx(problem.S[i, j], rel=1e-6)


@pytest.fixture(scope="module")
def noisy():
    """Gaussian noise, and outliers of all sizes from 4 standard deviations on."""
    rng = np.random.default_rng(5)
    F1, F2 = rng.standard_normal((200, 4)), rng.standard_normal((120, 3))
    L = F1 @ rng.standard_normal((4, 3)) @ F2.T
    wrong = rng.random(L.shape) < 0.05
    M = L + rng.standard_normal(L.shape) + wrong * rng.choice([-1, 1], L.shape) * rng.uniform(4, 30, L.shape)
    return M, wrong, InductiveRobustPCA().fit(M, row_features=F1, col_features=F2)


def test_outliers_are_sorted_by_probability_and_then_by_score(noisy):
    M, wrong, model = noisy
    table = model.outliers()
    assert (np.diff(table["probability"]) <= 0).all() and table["probability"].min() > 0.5
    same = np.diff(table["probability"]) == 0
    assert (np.diff(table["score"])[same] <= 0).all()
    assert_array_equal(table["observed"], M[table["row"], table["column"]])
    assert_allclose(table["expected"] + table["difference"], table["observed"], atol=1e-12)
    far = wrong[table["row"], table["column"]][table["score"] > 8]
    assert far.all() and (table["probability"][table["score"] > 8] > 0.99).all()
    size = np.abs(table["difference"]) / table["score"]  # of the uncertainty
    assert size.min() > 0.7 and size.max() < 1.5


@pytest.mark.parametrize("fdr", [0.01, 0.05, 0.2])
def test_as_many_false_alarms_as_asked(noisy, fdr):
    _, wrong, model = noisy
    table = model.outliers(fdr=fdr)
    assert np.mean(1 - table["probability"]) <= fdr
    false = ~wrong[table["row"], table["column"]]
    assert false.mean() <= fdr + 3 * np.sqrt(fdr / len(table))
    assert len(table) > 0.75 * wrong.sum()  # not bought by reporting little: a tenth is within 6 standard deviations
    assert len(model.outliers(fdr=1e-9)) < len(table)
    assert_array_equal(model.outliers(most=7, fdr=fdr), table[:7])


def test_probability_is_that_of_the_calibration(noisy):
    _, _, model = noisy
    result, table = model.result_, model.outliers()
    z = table["difference"] / result.scale.unit_at(table["difference"], table["row"], table["column"])
    assert_array_equal(table["probability"], result.calibration(z))
    assert_allclose(table["score"], np.abs(table["difference"]) / table["std"])


def test_without_a_noise_model_there_is_no_probability(problem):
    model = InductiveRobustPCA(2, solver="irpca_iht").fit(problem.M, row_features=problem.F1, col_features=problem.F2)
    table = model.outliers()
    assert len(table) and np.isnan(table["probability"]).all()
    assert (np.diff(table["score"]) <= 0).all()
    assert_allclose(table["score"], np.abs(table["difference"]) / model.zeta_)
    with pytest.raises(ValueError, match="fdr and probability need a model of the noise"):
        model.outliers(fdr=0.05)
    with pytest.raises(ValueError, match="share of false alarms"):
        model.outliers(fdr=2)


def test_no_outliers():
    problem = problem_of(corruption=0)
    model = fitted(problem)
    assert model.sparse_.nnz == 0 and len(model.outliers()) == 0
    assert "clearest outliers" not in model.summary()


@REAL
def test_summary_names_the_rows_and_columns_it_is_about():
    data = load_life_expectancy()
    model = InductiveRobustPCA(2, col_features=data.col_features()).fit(data.frame())
    text = model.summary()
    assert text.startswith(model.result_.summary())
    assert len(text.splitlines()) == len(model.result_.summary().splitlines()) + 6
    for cell in model.outliers(most=5).itertuples():
        assert f"  {cell.row}, {cell.column}: {cell.observed:.4g} observed, {cell.expected:.4g} expected" in text
    table = model.outliers()
    assert ((table["row"] == "Rwanda") & (table["column"] == 1994) & (table["observed"] == 6)).any()
    plain = InductiveRobustPCA(2, col_features=data.col_features()).fit(data.M)
    row, column = model.outliers(most=1)[["row", "column"]].iloc[0]
    assert f"  {data.countries.index(row)}, {list(data.years).index(column)}: " in plain.summary()


# Frames in, labels out


def test_labels_are_kept(problem):
    M, F1, F2 = frames(problem)
    old, new = M.index[:-NEW], M.index[-NEW:]
    model = InductiveRobustPCA(2).fit(M.loc[old], row_features=F1.loc[old], col_features=F2)
    close(model.W_, fitted(problem).W_)
    assert list(model.feature_names_in_) == list(M.columns)
    for arguments, index, columns in [
        ({}, old, M.columns),
        ({"row_features": F1.loc[new]}, new, M.columns),
        ({"col_features": F2.iloc[::2]}, old, M.columns[::2]),
        ({"row_features": F1.loc[new], "col_features": F2.iloc[:3]}, new, M.columns[:3]),
        ({"row_features": F1.loc[new].to_numpy()}, pd.RangeIndex(NEW), M.columns),
    ]:
        predicted = model.predict(**arguments)
        assert isinstance(predicted, pd.DataFrame)
        assert predicted.index.equals(index) and predicted.columns.equals(columns)
    expected = pd.DataFrame(problem.L, M.index, M.columns)
    close(model.predict(F1.loc[new]).to_numpy(), expected.loc[new].to_numpy())


def test_labels_of_features_alone(problem):
    model = fitted(problem)
    _, F1, _ = frames(problem)
    assert isinstance(model.predict(), np.ndarray)
    assert model.predict(row_features=F1).index.equals(F1.index)
    assert isinstance(model.predict(row_features=F1.to_numpy()), np.ndarray)


@REAL
def test_labels_that_are_no_strings():
    data = load_life_expectancy()
    M = data.frame()
    model = InductiveRobustPCA(2, col_features=data.col_features()).fit(M)
    assert not hasattr(model, "feature_names_in_")  # scikit-learn knows strings only
    assert model.predict().columns.equals(M.columns) and model.predict().index.equals(M.index)
    assert set(model.outliers()["column"]) <= set(M.columns)


@pytest.mark.parametrize("side", ["row_features", "col_features"])
def test_features_in_another_order_are_refused(problem, side):
    M, F1, F2 = frames(problem)
    of_M = r"M\.index" if side == "row_features" else r"M\.columns"
    given = {"row_features": F1, "col_features": F2}
    model = InductiveRobustPCA(2)
    with pytest.raises(ValueError, match=rf"index of {side} does not match.*another order: pass {side}\.loc\[{of_M}"):
        model.fit(M, **given | {side: given[side].iloc[::-1]})
    renamed = given[side].rename(lambda label: label.upper())
    with pytest.raises(ValueError, match=rf"'[US]?.* against .*pass {side}\.set_axis\({of_M}"):
        model.fit(M, **given | {side: renamed})
    model.fit(M, **given | {side: given[side].iloc[::-1].to_numpy()[::-1]})  # arrays have no labels
    assert model.rank_ == 2


def test_labels_of_new_rows_are_matched_too(problem):
    M, F1, F2 = frames(problem)
    model = InductiveRobustPCA(2).fit(M, row_features=F1, col_features=F2)
    for method in (model.transform, model.decompose, model.score):
        with pytest.raises(ValueError, match="index of row_features does not match the rows of M"):
            method(M.iloc[:5], row_features=F1.iloc[1:6])
    with pytest.raises(ValueError, match=r"the columns of row_features are 'age 4', .* in fit 'age 0', "):
        model.predict(row_features=F1.iloc[:, ::-1])


# Kinds of M


@pytest.mark.parametrize("sides", SIDES)
def test_float32_stays_float32(sides):
    problem = problem_of(dtype=np.float32)
    assert problem.M.dtype == np.float32
    model = fitted(problem, sides, tol=1e-6)
    M = problem.M[-NEW:]
    scores = model.transform(M)
    made = [model.components_, model.singular_values_, model.sparse_, scores, model.inverse_transform(scores)]
    made += [model.decompose(M).S, model.outliers()["observed"], model.outliers()["expected"]]
    if sides != "none":
        made.append(model.predict())
    assert {array.dtype for array in made} == {np.dtype(np.float32)}
    close(model.inverse_transform(scores), problem.L[-NEW:], 1e-5)


@cache
def small_integers(kind):
    """M, its L, and the fit to M as a plain array."""
    rng = np.random.default_rng(0)
    L = np.outer(rng.integers(1, 4, 80), rng.integers(1, 3, 60))
    M = np.where(rng.random(L.shape) < 0.1, 30, L)
    if kind == "bool":
        L = np.ones((80, 60))
        M = ~np.eye(80, 60, dtype=bool)
    return M, L, InductiveRobustPCA(1, solver="altproj").fit(M.astype(float))


@pytest.mark.parametrize("kind", ["list", "F", "read-only", "strided", "int", "bool", "frame", "object"])
def test_kinds_of_M(kind):
    M, L, expected = small_integers("bool" if kind == "bool" else "int")
    close(expected.low_rank_.dense(), L.astype(float))
    given = {
        "list": lambda: M.tolist(),
        "F": lambda: np.asfortranarray(M, dtype=float),
        "read-only": lambda: M.astype(float),
        "strided": lambda: np.repeat(M.astype(float), 2, axis=1)[:, ::2],
        "int": lambda: M,
        "bool": lambda: M,
        "frame": lambda: pd.DataFrame(M).astype({0: np.float32, 1: "Int64", 2: float}),
        "object": lambda: M.astype(object),
    }[kind]()
    if kind == "read-only":
        given.flags.writeable = False
    model = InductiveRobustPCA(1, solver="altproj").fit(given)
    assert model.components_.dtype == np.float64
    close(model.low_rank_.dense(), expected.low_rank_.dense(), 1e-12)
    assert_array_equal(model.sparse_.toarray() != 0, M != L)
    close(model.transform(given), expected.transform(M.astype(float)), 1e-12)


def test_a_memory_mapped_file_is_not_copied(tmp_path, monkeypatch):
    problem = make_problem(4000, 1500, 5, 4, rank=2, corruption=0.05, dtype=np.float32)
    np.save(tmp_path / "M.npy", problem.M)
    M = np.load(tmp_path / "M.npy", mmap_mode="r")
    seen = []
    for name in ("solve", "choose"):
        original = getattr(irpca.estimator, name)

        def spy(given, *arguments, original=original, **options):
            seen.append(given)
            return original(given, *arguments, **options)

        monkeypatch.setattr(f"irpca.estimator.{name}", spy)
    model = InductiveRobustPCA(2, col_features=problem.F2)
    model.fit(M[:300], row_features=problem.F1[:300])  # compiles
    tracemalloc.start()
    model.fit(M, row_features=problem.F1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    model.transform(M[:300])
    model.decompose(M[:300], row_features=problem.F1[:300])
    assert len(seen) == 4  # two fits, and two lots of new rows
    assert all(np.shares_memory(given, M) and given.dtype == np.float32 for given in seen)
    assert peak < 0.6 * M.nbytes
    close(model.low_rank_.dense(), problem.L, 1e-4)


# What is refused, in the words of the caller


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"row_features": np.ones((5, 90))},
            r"row_features has 5 rows but M has 90 rows; did you .*row_features\.T",
        ),
        ({"row_features": np.ones((50, 5))}, r"row_features has 50 rows but M has 90 rows$"),
        (
            {"col_features": np.ones((4, 60))},
            r"col_features has 4 rows but M has 60 columns; .*col_features\.T",
        ),
        ({"col_features": np.ones((90, 4))}, r"col_features needs 60 rows.*to the constructor"),
        ({"row_features": np.ones(90)}, r"row_features must have two dimensions.*row_features\.reshape"),
        ({"row_features": np.full((90, 2), np.inf)}, "row_features holds NaN or infinite"),
        (
            {"col_features": csr_array(np.ones((60, 2)))},
            r"col_features is a sparse matrix.*col_features\.toarray",
        ),
        ({"col_features": np.full((60, 2), "a")}, "col_features has dtype .* encode text"),
        ({"M": np.ones(60)}, "Expected 2D array"),
        ({"M": np.ones((1, 60))}, "1 sample"),
        ({"M": np.ones((90, 1))}, "1 feature"),
        ({"M": np.full((90, 60), np.nan)}, "every cell of M is missing"),
        ({"extra_rank": -1}, "extra_rank=-1 is out of range"),
        ({"extra_rank": "some"}, "extra_rank must be an integer or 'auto', got 'some'"),
        ({"extra_rank": 2, "solver": "pcp"}, "solver='pcp' knows no free part"),
        ({"M": np.full((90, 60), 1j)}, "Complex data not supported"),
        ({"M": np.ma.masked_array(np.ones((90, 60)), mask=True)}, "every cell of M is missing"),
        ({"rank": 5}, "rank=5 is out of range"),
        ({"rank": "many"}, "rank must be a positive integer or 'auto', got 'many'"),
        ({"solver": "magic"}, "solver='magic' is unknown"),
        ({"engine": "steam"}, "engine='steam' is unknown"),
        ({"engine": irpca.engines.MemoryEngine(np.ones((90, 60)))}, "engine must be a name here"),
        ({"max_iter": 0}, "max_iter must be at least 1"),
        ({"tol": -1}, "tol must not be negative"),
        ({"solver": "irpca_iht", "rank": "auto"}, "needs the rank"),
    ],
)
def test_bad_input(problem, change, message):
    data = {"M": problem.M[:-NEW], "row_features": problem.F1[:-NEW], "col_features": problem.F2}
    options = {name: value for name, value in change.items() if name not in data}
    data |= {name: value for name, value in change.items() if name in data}
    model = InductiveRobustPCA(**{"rank": 2, **options})
    with pytest.raises(ValueError, match=message):
        model.fit(data.pop("M"), **data)


def test_unknown_options_are_refused(problem):
    with pytest.raises(TypeError, match="takes no option mu; it takes"):
        InductiveRobustPCA(solver_options={"mu": 1}).fit(problem.M)


def test_features_for_another_matrix_are_refused_by_solve(problem):
    F1 = irpca.features.Features.of(problem.F1[:-NEW], 90)
    assert irpca.solve(problem.M[:-NEW], F1, problem.F2, rank=2).converged
    with pytest.raises(ValueError, match="these Features are of a 90 × 60 matrix, M is 100 × 60"):
        irpca.solve(problem.M, F1, problem.F2, rank=2)


# Fits that did not end well


def test_iterations_that_run_out():
    problem = problem_of(noise=1e-3)  # an exact fit needs no iterations
    with pytest.warns(ConvergenceWarning, match=r"^MAX_ITER: the expected values were still changing .*raise max_iter"):
        model = fitted(problem, "none", max_iter=1)
    assert model.status_ is Status.MAX_ITER and not model.converged_ and model.history_.stage.count("") == 1
    assert model.transform(problem.M[-NEW:]).shape == (NEW, 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rank", "tails"), [("auto", 0), (2, 3)])
def test_noise_without_structure_is_not_explained(rank, tails):
    M = np.random.default_rng(0).standard_normal((60, 50))
    M *= np.exp(tails * np.random.default_rng(1).standard_normal(M.shape))
    F1, F2 = (
        np.random.default_rng(2).standard_normal((60, 4)),
        np.random.default_rng(3).standard_normal((50, 4)),
    )
    model = InductiveRobustPCA(rank).fit(M, row_features=F1, col_features=F2)
    assert model.converged_ and model.rank_ == (0 if rank == "auto" else rank)
    assert model.result_.explained < 0.01
    (doubt,) = [doubt for doubt in model.result_.doubts if doubt.kind in ("little-explained", "no-pattern")]
    assert doubt.text in model.summary()
    assert model.result_.usable == ("do not use" if rank == "auto" else "use with care")


@pytest.mark.parametrize(
    ("sides", "iterations"), [*((sides, 1) for sides in ("both", "rows", "columns", "none")), ("none", 2)]
)
def test_ctrl_c_leaves_a_usable_model(problem, sides, iterations):
    def interrupt(state, history):
        if len(history) == iterations:
            raise KeyboardInterrupt

    model = InductiveRobustPCA(2, callbacks=interrupt)
    features = {"row_features": problem.F1[:-NEW] if sides in ("both", "rows") else None}
    features["col_features"] = problem.F2 if sides in ("both", "columns") else None
    with pytest.raises(KeyboardInterrupt):  # so that a search ends, too
        model.fit(problem.M[:-NEW], **features)
    assert model.status_ is Status.INTERRUPTED and not model.converged_ and len(model.history_) == iterations
    assert np.isfinite(model.low_rank_.dense()).all() and np.isfinite(model.components_).all()
    scores = model.transform(problem.M[-NEW:])
    close(model.inverse_transform(scores), problem.L[-NEW:], 0.1)  # the corruption trimmed even so
    assert np.isfinite(model.score(problem.M[-NEW:]))
    assert model.decompose(problem.M[-NEW:]).rank == 2
    assert "interrupted by Ctrl-C" in model.summary().splitlines()[0]


def test_a_warning_turned_into_an_error_finds_the_model_complete():
    problem = problem_of(noise=1e-3)
    model = InductiveRobustPCA(2, max_iter=1)
    with pytest.raises(ConvergenceWarning):  # warnings are errors in these tests
        model.fit(problem.M)
    assert model.transform(problem.M).shape == (100, 2) and model.summary()


def test_a_model_without_S(problem, monkeypatch):
    def diverge(*arguments, **options):
        return dataclasses.replace(irpca.solve(*arguments, **options), S=None, status=Status.DIVERGED)

    monkeypatch.setattr("irpca.estimator.solve", diverge)
    with pytest.warns(ConvergenceWarning, match="^DIVERGED"):
        model = fit(problem)
    assert model.sparse_ is None and "DIVERGED" in model.summary()
    with pytest.raises(ValueError, match=r"there are no outliers\. DIVERGED: the numbers grew"):
        model.outliers()


# What users of other packages ran into (numbers as in PEERS.md, section 5)


@pytest.mark.parametrize(("sides", "scale"), [("both", 1e-6), ("rows", 1e6), ("columns", 1e-6), ("none", 1e6)])
def test_7_the_scale_of_M_does_not_matter(sides, scale):
    problem = problem_of(noise=1e-5)
    rank = 2 if sides == "none" else "auto"
    scaled = dataclasses.replace(problem, M=scale * problem.M)
    one, other = fitted(problem, sides, rank), fitted(scaled, sides, rank)
    assert_array_equal(one.sparse_.toarray() != 0, other.sparse_.toarray() != 0)
    assert one.rank_ == other.rank_ and one.noise_ == pytest.approx(other.noise_ / scale, rel=1e-5)
    close(other.low_rank_.dense() / scale, one.low_rank_.dense())


@pytest.mark.parametrize("sides", SIDES)
def test_12_a_decomposition_that_takes_nothing_apart_says_so(sides):
    problem = problem_of(corruption=0)
    rows, columns = SIDES[sides]
    most = min(5 if rows else 90, 4 if columns else 60)
    clean = fitted(problem, sides)
    (doubt,) = clean.result_.doubts
    assert doubt.kind == "empty" and doubt.text in clean.summary()
    if most == 4:  # with 60 directions for 60 columns it does not converge, which is advice enough
        full = fitted(problem_of(rank=4), sides, 4)
        (doubt,) = full.result_.doubts
        assert doubt.kind == "full-rank" and "4" in doubt.text
    assert fitted(problem_of(), sides).result_.doubts == ()


def test_features_that_the_solver_does_not_use_predict_nothing():
    problem = make_problem(80, 60, 5, 4, rank=2, corruption=0.05, features="conditioned")
    model = InductiveRobustPCA(rank=2, solver="altproj")
    scores = model.fit_transform(problem.M, row_features=problem.F1, col_features=problem.F2)
    assert np.linalg.norm(model.inverse_transform(scores) - problem.L) <= 1e-6 * np.linalg.norm(problem.L)
    assert model.W_ is None
    assert any("does not use features" in doubt.text for doubt in model.result_.doubts)
    assert not hasattr(model, "predict")
    with pytest.raises(ValueError, match="or its solver ignores them"):
        model.transform(problem.M, row_features=problem.F1)


@pytest.mark.parametrize("rank", [1, "auto"])
def test_all_ones_and_a_single_two(rank):
    M = np.ones((40, 30))
    M[3, 4] = 2
    model = InductiveRobustPCA(rank).fit(M)
    assert_allclose(model.low_rank_.dense(), 1, rtol=1e-12)
    (outlier,) = model.outliers()
    assert (outlier["row"], outlier["column"]) == (3, 4) and outlier["difference"] == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of wrong ranks
@pytest.mark.parametrize(("sides", "noise"), [("both", 1e-4), ("none", 0.0)])
def test_the_true_rank_scores_best(sides, noise):
    problem = make_problem(300, 60, 8, 8, rank=3, corruption=0.15, noise=noise, features="conditioned", random_state=1)
    old, new = {}, {}
    if sides == "both":
        old = {"row_features": problem.F1[:150], "col_features": problem.F2}
        new = {"row_features": problem.F1[150:]}
    models = [InductiveRobustPCA(rank, extra_rank=0).fit(problem.M[:150], **old) for rank in (2, 3, 5)]
    scores = [model.score(problem.M[150:], **new) for model in models]
    assert scores[1] > max(scores) - 0.01  # components too many cost little, one too few much
    assert scores[1] > scores[0] + 1


# What is said of new rows that cannot be judged


def test_columns_that_the_fitted_table_did_not_have(problem):
    names = [f"c{j}" for j in range(problem.M.shape[1])]
    model = InductiveRobustPCA(2, solver="pca").fit(pd.DataFrame(problem.M, columns=names))
    new = pd.DataFrame(problem.M[:3], columns=names)
    with pytest.raises(ValueError, match=r"not have the columns of the fitted table, 'c0', .*: leave out 'more'$"):
        model.transform(new.assign(more=1.0))
    with pytest.raises(ValueError, match=r"columns of the fitted table, 'c0', .*: 'c1' missing; add them, as NaN"):
        model.transform(new.drop(columns="c1"))


def test_rows_are_compared_with_their_features_only_where_these_are_known():
    kinds = pd.DataFrame({"kind": np.array(["a", "b", "c"])[np.arange(24) % 3]})
    M = np.outer(np.arange(24) % 3 + 1.0, np.arange(1.0, 9))
    model = InductiveRobustPCA(1).fit(M, row_features=kinds)
    with pytest.raises(ValueError, match=r"give row_features, too; without them, outliers\(M\) says what is wrong"):
        model.outlier_rows(M[:3])
    words = "row_features of 1 are missing or were not in the fit: leave these rows out"
    with pytest.warns(FeatureWarning, match="levels that the fit did not have"), pytest.raises(ValueError, match=words):
        model.outlier_rows(M[:3], row_features=pd.DataFrame({"kind": ["a", "z", "b"]}))


def test_lines_of_a_fit_without_outliers(problem):
    model = InductiveRobustPCA(2, solver="pca").fit(problem.M)
    model.sparse_, model.status_ = None, Status.DIVERGED
    with pytest.raises(ValueError, match=r"there are no outliers\. DIVERGED: the numbers grew without bound: check"):
        model.outlier_columns()
