"""The estimator by itself; scikit-learn is in test_sklearn.py, tables with holes in test_estimator_holes.py."""

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
NEW = 10  # rows that a model has not seen


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


@pytest.fixture(scope="module")
def fitted(problem):
    """Models of the problem without noise, by the sides that have features: each is fitted once."""
    once = cache(lambda sides: fit(problem, sides))
    return lambda sides="both": copy.copy(once(sides))


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
def test_a_fit_is_that_of_solve(problem, fitted, sides):
    rows, columns = SIDES[sides]
    F1, F2 = problem.F1[:-NEW] if rows else None, problem.F2 if columns else None
    result = irpca.solve(problem.M[:-NEW], F1, F2, rank=2)
    model = fitted(sides)
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


@pytest.mark.parametrize("sides", ["both", "none"])
def test_components_are_orthonormal_sorted_and_of_fixed_sign(fitted, sides):
    model = fitted(sides)
    V = model.components_
    assert V.shape == (2, 60)
    assert_allclose(V @ V.T, np.eye(2), atol=1e-12)
    assert (V[np.arange(2), np.abs(V).argmax(axis=1)] > 0).all()
    L = model.low_rank_.dense()
    assert_allclose(model.singular_values_, np.linalg.svd(L, compute_uv=False)[:2], rtol=1e-10)
    close(L @ V.T @ V, L)
    assert_allclose(np.linalg.norm(L @ V.T, axis=0), model.singular_values_, rtol=1e-10)


def test_every_parameter_reaches_solve(problem, monkeypatch):
    seen = {}

    def spy(M, F1, F2, **options):
        seen.update(options)
        return irpca.solve(M, F1, F2, rank=2)

    monkeypatch.setattr("irpca.estimator.solve", spy)
    given = {
        "rank": 3,
        "solver": "irpca_iht",
        "engine": "reference",
        "tol": 1e-3,
        "max_iter": 7,
        "callbacks": [lambda state, history: False],
        "random_state": np.random.default_rng(0),
    }
    fit(problem, **given, solver_options={"nu": 0.5})
    assert seen == {**given, "nu": 0.5, "resume": None}


def test_fit_leaves_parameters_and_data_alone():
    problem = problem_of(noise=1e-4)
    M, F1, F2 = problem.M[:-NEW].copy(), problem.F1[:-NEW].copy(), problem.F2.copy()
    options = {"noise": 1e-4}
    model = InductiveRobustPCA("auto", col_features=F2, solver_options=options)
    with pytest.raises(ValueError, match="both to the constructor and to fit"):
        model.fit(M, row_features=F1, col_features=F2)
    before = dict(vars(model))
    model.fit(M, row_features=F1)
    assert {name: vars(model)[name] for name in before} == before  # the same objects
    assert options == {"noise": 1e-4} and model.rank_ == 2
    assert_array_equal(M, problem.M[:-NEW])
    assert_array_equal(F1, problem.F1[:-NEW])
    assert_array_equal(F2, problem.F2)


# Cold start


def test_predict_is_the_formula(problem, fitted):
    model, rng = fitted(), np.random.default_rng(0)
    F1, F2 = problem.F1[:-NEW], problem.F2
    A, B = rng.standard_normal((7, 5)), rng.standard_normal((3, 4))
    for row_features, col_features in ((None, None), (A, None), (None, B), (A, B)):
        left, right = F1 if row_features is None else A, F2 if col_features is None else B
        close(model.predict(row_features, col_features), left @ model.W_ @ right.T, 1e-12)
    close(model.predict(problem.F1[-NEW:]), problem.L[-NEW:])


def test_predict_with_features_of_one_side(problem, fitted):
    model = fitted("rows")
    close(model.predict(row_features=problem.F1[-NEW:]), problem.L[-NEW:])
    close(model.predict(), model.low_rank_.dense(), 1e-12)
    with pytest.raises(ValueError, match=r"col_features was given, but .* nothing about new columns$"):
        model.predict(col_features=problem.F2)
    model = fitted("columns")
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


# New rows


@pytest.mark.parametrize("sides", SIDES)
def test_new_rows_are_placed_and_taken_apart(problem, fitted, sides):
    model = fitted(sides)
    M, F1 = problem.M[-NEW:], problem.F1[-NEW:] if SIDES[sides][0] else None
    scores = model.transform(M)
    assert problem.corrupted[-NEW:].any()
    assert scores.shape == (NEW, 2)
    close(model.inverse_transform(scores), problem.L[-NEW:])
    close(model.transform(M[-1:]), scores[-1:])
    result = model.decompose(M, row_features=F1)
    close(result.L.dense(), problem.L[-NEW:])
    close(result.S.toarray(), problem.S[-NEW:])
    assert_array_equal(result.S.toarray() != 0, problem.corrupted[-NEW:])
    assert result.rank == 2 and result.converged and result.doubts == ()
    assert result.corruption == pytest.approx(problem.corrupted[-NEW:].mean())
    assert result.explained == pytest.approx(1)
    if sides == "none":
        assert result.W is None
    else:
        left = np.eye(NEW) if F1 is None else F1
        right = problem.F2 if SIDES[sides][1] else np.eye(60)
        close(left @ result.W @ right.T, problem.L[-NEW:])


@pytest.mark.parametrize("sides", ["both", "none"])
def test_fit_transform_is_fit_then_transform(problem, fitted, sides):
    rows, columns = SIDES[sides]
    M, F1 = problem.M[:-NEW], problem.F1[:-NEW] if rows else None
    model = InductiveRobustPCA(2)
    scores = model.fit_transform(M, row_features=F1, col_features=problem.F2 if columns else None)
    assert_array_equal(scores, fitted(sides).transform(M, row_features=F1))
    close(model.inverse_transform(scores), model.low_rank_.dense())


def test_answers_leave_the_model_alone(problem):
    model = fit(problem)
    before = {name: value.copy() for name, value in vars(model).items() if isinstance(value, np.ndarray)}
    L, S = model.low_rank_.dense(), model.sparse_.toarray()
    for answer in ("transform", "decompose", "score", "outliers", "repaired"):
        getattr(model, answer)(problem.M[-NEW:], row_features=problem.F1[-NEW:])
    for answer in ("outliers", "repaired", "expected", "interval", "predict", "summary"):
        getattr(model, answer)()
    for name, value in before.items():
        assert_array_equal(getattr(model, name), value)
    assert_array_equal(model.low_rank_.dense(), L)
    assert_array_equal(model.sparse_.toarray(), S)


def test_rounding_of_new_rows_is_no_gross_error(problem, fitted):
    model = fitted("columns")
    for M in (problem.M[-NEW:].astype(np.float32), 1e5 * problem.M[-NEW:]):
        result = model.decompose(M)
        assert_array_equal(result.S.toarray() != 0, problem.corrupted[-NEW:])
        assert result.S.dtype == M.dtype


def test_rows_that_do_not_belong_are_doubted(problem, fitted):
    result = fitted().decompose(problem.M[-NEW:], row_features=problem.F1[:NEW])
    (doubt,) = result.doubts
    assert doubt.kind == "unlike-fit"
    assert "may not hold for these rows" in doubt.text and doubt.text in result.summary()


def test_what_cannot_be_asked(fitted):
    model, spoilt = fitted(), np.full((3, 60), np.inf)
    for method, given, message in (
        (model.inverse_transform, np.ones((4, 3)), "scores has 3 columns, this model 2 components"),
        (model.predict, np.full((2, 5), np.nan), "row_features contains NaN"),
        (model.predict, np.ones(5), "Expected 2D array"),
        *((method, spoilt, "infinite") for method in (model.transform, model.decompose, model.score)),
        (model.score, spoilt[:, 1:], "59 features, but InductiveRobustPCA is expecting 60"),
    ):
        with pytest.raises(ValueError, match=message):
            method(given)
    for method in ("transform", "inverse_transform", "decompose", "score", "predict"):
        with pytest.raises(NotFittedError):
            getattr(InductiveRobustPCA(), method)(np.ones((3, 3)))
    for method in ("outliers", "summary", "get_feature_names_out"):
        with pytest.raises(NotFittedError):
            getattr(InductiveRobustPCA(), method)()


# Score


def test_score_is_robust_and_in_the_units_of_M():
    problem = problem_of(noise=1e-3, corruption=0.1)
    model = fit(problem)
    typical = 1e-3 * np.exp(-(np.euler_gamma + np.log(2)) / 2)  # geometric mean of |N(0, 1)|
    worse = problem.L[-NEW:] + problem.N[-NEW:] + 1e6 * (np.arange(60) % 12 == 0)
    for F1 in (problem.F1[-NEW:], None):
        clean = model.score(problem.L[-NEW:] + problem.N[-NEW:], row_features=F1)
        assert np.exp(-clean) == pytest.approx(typical, rel=0.1)
        assert clean - model.score(worse, row_features=F1) < 0.1 * np.log(1e6 / typical)


def test_no_entry_is_scored_by_itself(problem, fitted):
    model = fitted("none")
    M = problem.L[-NEW:].copy()
    exact = model.score(M)
    M[0, 0] += 1e-9  # far too small to be trimmed by a row's own threshold, were the row not exact
    assert (exact - model.score(M)) * M.size == pytest.approx(np.log(1e-9) + exact, abs=0.5)


def test_rows_are_weighted_and_batches_do_not_matter(problem, fitted, monkeypatch):
    model = fitted()
    M, weights = problem.M[-NEW:], np.arange(NEW)
    each = [model.score(M[[i]]) for i in range(NEW)]
    assert abs(np.mean(each) - np.average(each, weights=weights)) > 1e-2
    for rows_at_a_time in (NEW, 7):
        monkeypatch.setattr("irpca.estimator.CHUNK_ENTRIES", rows_at_a_time * 60)
        assert model.score(M) == pytest.approx(np.mean(each), abs=1e-5)
        assert model.score(M, sample_weight=weights) == pytest.approx(np.average(each, weights=weights), abs=1e-5)


# The table of gross errors


def test_outliers_as_an_array(problem, fitted):
    model = fitted()
    table = model.outliers()
    names = "row column observed expected difference std lower upper score probability kind"
    assert table.dtype.names == tuple(names.split())
    assert (table["probability"] == 1).all() and (np.diff(table["score"]) <= 0).all()  # there is no noise
    assert len(table) == model.sparse_.nnz == problem.corrupted[:-NEW].sum()
    row, column = table["row"], table["column"]
    assert_array_equal(table["difference"], model.sparse_.toarray()[row, column])
    assert_array_equal(table["observed"], problem.M[:-NEW][row, column])  # to the bit
    assert_allclose(table["expected"], model.low_rank_.dense()[row, column], rtol=1e-12, atol=1e-15)
    assert_array_equal(model.outliers(most=3), table[:3])
    assert len(model.outliers(most=0)) == 0
    with pytest.raises(ValueError, match="most must be a whole number, at least 0; got -1"):
        model.outliers(most=-1)


@pytest.fixture(scope="module")
def noisy():
    """Gaussian noise, and outliers of all sizes from 4 standard deviations on."""
    rng = np.random.default_rng(5)
    F1, F2 = rng.standard_normal((200, 4)), rng.standard_normal((120, 3))
    L = F1 @ rng.standard_normal((4, 3)) @ F2.T
    wrong = rng.random(L.shape) < 0.05
    M = L + rng.standard_normal(L.shape) + wrong * rng.choice([-1, 1], L.shape) * rng.uniform(4, 30, L.shape)
    return wrong, InductiveRobustPCA().fit(M, row_features=F1, col_features=F2)


@pytest.mark.parametrize("fdr", [0.01, 0.05, 0.2])
def test_as_many_false_alarms_as_asked(noisy, fdr):
    wrong, model = noisy
    table = model.outliers(fdr=fdr)
    assert np.mean(1 - table["probability"]) <= fdr
    false = ~wrong[table["row"], table["column"]]
    assert false.mean() <= fdr + 3 * np.sqrt(fdr / len(table))
    assert len(table) > 0.75 * wrong.sum()  # not bought by reporting little: a tenth is within 6 standard deviations
    assert len(model.outliers(fdr=1e-9)) < len(table)
    assert_array_equal(model.outliers(most=7, fdr=fdr), table[:7])


# Frames in, labels out


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of no concern here
def test_a_summary_names_the_rows_and_columns_also_if_they_are_no_strings():
    data = load_life_expectancy()
    M = data.frame()
    model = InductiveRobustPCA(2, col_features=data.col_features()).fit(M)
    text = model.summary()
    assert text.startswith(model.result_.summary())
    for cell in model.outliers(most=5).itertuples():
        assert f"  {cell.row}, {cell.column}: {cell.observed:.4g} observed, {cell.expected:.4g} expected" in text
    table = model.outliers()
    assert ((table["row"] == "Rwanda") & (table["column"] == 1994) & (table["observed"] == 6)).any()
    assert set(table["column"]) <= set(M.columns)
    assert not hasattr(model, "feature_names_in_")  # scikit-learn knows strings only
    assert model.predict().columns.equals(M.columns) and model.predict().index.equals(M.index)


def test_labels_are_kept(problem, fitted):
    M, F1, F2 = frames(problem)
    old, new = M.index[:-NEW], M.index[-NEW:]
    model = InductiveRobustPCA(2).fit(M.loc[old], row_features=F1.loc[old], col_features=F2)
    close(model.W_, fitted().W_)
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
    close(model.predict(F1.loc[new]).to_numpy(), problem.L[-NEW:])
    assert fitted().predict(row_features=F1).index.equals(F1.index)  # labels of features alone
    table = model.outliers(most=20)
    assert list(table.columns) == list(fitted().outliers().dtype.names) and len(table) == 20
    for cell in table.itertuples():
        assert cell.observed == M.loc[cell.row, cell.column]


def test_rows_are_compared_with_their_features_only_where_these_are_known():
    kinds = pd.DataFrame({"kind": np.array(["a", "b", "c"])[np.arange(24) % 3]})
    M = np.outer(np.arange(24) % 3 + 1.0, np.arange(1.0, 9))
    model = InductiveRobustPCA(1).fit(M, row_features=kinds)
    with pytest.raises(ValueError, match=r"give row_features, too; without them, outliers\(M\) says what is wrong"):
        model.outlier_rows(M[:3])
    words = "row_features of 1 are missing or were not in the fit: leave these rows out"
    with pytest.warns(FeatureWarning, match="levels that the fit did not have"), pytest.raises(ValueError, match=words):
        model.outlier_rows(M[:3], row_features=pd.DataFrame({"kind": ["a", "z", "b"]}))


# Kinds of M


@pytest.mark.parametrize("sides", ["both", "none"])
def test_float32_stays_float32(sides):
    problem = problem_of(dtype=np.float32)
    model = fit(problem, sides, tol=1e-6)
    M = problem.M[-NEW:]
    scores = model.transform(M)
    made = [model.components_, model.singular_values_, model.sparse_, scores, model.inverse_transform(scores)]
    made += [model.decompose(M).S, model.outliers()["observed"], model.outliers()["expected"]]
    if sides != "none":
        made.append(model.predict())
    assert {array.dtype for array in made} == {np.dtype(np.float32)}
    close(model.inverse_transform(scores), problem.L[-NEW:], 1e-5)


def test_kinds_of_M(problem, fitted):
    M, expected = problem.M[:-NEW], fitted()
    fixed = np.asfortranarray(M)
    fixed.flags.writeable = False
    strided = np.repeat(M, 2, axis=1)[:, ::2]
    for given in (M.tolist(), fixed, strided, M.astype(object), pd.DataFrame(M).astype({1: object, 2: "Float64"})):
        model = InductiveRobustPCA(2).fit(given, row_features=problem.F1[:-NEW].tolist(), col_features=problem.F2)
        assert model.components_.dtype == np.float64
        close(model.low_rank_.dense(), expected.low_rank_.dense(), 1e-12)
        close(model.transform(given), expected.transform(M), 1e-12)


def test_a_memory_mapped_file_is_not_copied(tmp_path):
    problem = make_problem(4000, 1500, 5, 4, rank=2, corruption=0.05, dtype=np.float32)
    np.save(tmp_path / "M.npy", problem.M)
    M = np.load(tmp_path / "M.npy", mmap_mode="r")
    model = InductiveRobustPCA(2, col_features=problem.F2)
    model.fit(M[:300], row_features=problem.F1[:300])  # compiles
    tracemalloc.start()
    model.fit(M, row_features=problem.F1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.6 * M.nbytes
    close(model.low_rank_.dense(), problem.L, 1e-4)


# What is refused, in the words of the caller; what solve() refuses is in test_loop.py


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"row_features": np.ones((5, 90))},
            r"row_features has 5 rows but M has 90 rows; did you .*row_features\.T",
        ),
        ({"col_features": np.ones((90, 4))}, r"col_features needs 60 rows.*to the constructor"),
        ({"row_features": np.ones(90)}, r"row_features must have two dimensions.*row_features\.reshape"),
        (
            {"col_features": csr_array(np.ones((60, 2)))},
            r"col_features is a sparse matrix.*col_features\.toarray",
        ),
        ({"M": np.ones(60)}, "Expected 2D array"),
        ({"M": np.ones((1, 60))}, "1 sample"),
        ({"M": np.ones((90, 1))}, "1 feature"),
        ({"M": np.full((90, 60), 1j)}, "Complex data not supported"),
        ({"M": np.ma.masked_array(np.ones((90, 60)), mask=True)}, "every cell of M is missing"),
        ({"extra_rank": -1}, "extra_rank=-1 is out of range"),
        ({"extra_rank": "some"}, "extra_rank must be an integer or 'auto', got 'some'"),
        ({"extra_rank": 2, "solver": "pcp"}, "solver='pcp' knows no free part"),
        ({"engine": irpca.engines.MemoryEngine(np.ones((90, 60)))}, "engine must be a name here"),
    ],
)
def test_bad_input(problem, change, message):
    data = {"M": problem.M[:-NEW], "row_features": problem.F1[:-NEW], "col_features": problem.F2}
    options = {name: value for name, value in change.items() if name not in data}
    data |= {name: value for name, value in change.items() if name in data}
    model = InductiveRobustPCA(**{"rank": 2, **options})
    with pytest.raises(ValueError, match=message):
        model.fit(data.pop("M"), **data)


# Fits that did not end well


def test_iterations_that_run_out():
    """The model is complete before it warns: warnings may be errors, as in these tests."""
    problem = problem_of(noise=1e-3)  # an exact fit needs no iterations
    model = InductiveRobustPCA(2, max_iter=1)
    with pytest.raises(ConvergenceWarning, match=r"^MAX_ITER: the expected values were still changing .*max_iter"):
        model.fit(problem.M)
    assert model.status_ is Status.MAX_ITER and not model.converged_ and model.history_.stage.count("") == 1
    assert model.transform(problem.M).shape == (100, 2) and model.summary()


def test_a_fit_that_is_not_to_be_used_warns_and_repairs_nothing():
    M = np.random.default_rng(0).standard_normal((300, 10))
    with pytest.warns(irpca.DoNotUseWarning, match="do not use this fit"):
        model = irpca.InductiveRobustPCA(rank=2).fit(M)
    assert model.result_.unseen.skill < 0.1 and model.result_.usable == "do not use"
    with pytest.raises(ValueError, match=r"cells are not replaced \(do not use: .*repaired\(force=True\)"):
        model.repaired()
    assert model.repaired(force=True).shape == M.shape


def test_a_model_without_S(problem, monkeypatch):
    def diverge(*arguments, **options):
        return dataclasses.replace(irpca.solve(*arguments, **options), S=None, status=Status.DIVERGED)

    monkeypatch.setattr("irpca.estimator.solve", diverge)
    with pytest.warns(ConvergenceWarning, match="^DIVERGED"):
        model = fit(problem)
    assert model.sparse_ is None and "DIVERGED" in model.summary()
    for method in (model.outliers, model.outlier_columns):
        with pytest.raises(ValueError, match=r"there are no outliers\. DIVERGED: the numbers grew without bound"):
            method()


# What users of other packages ran into


def test_features_that_the_solver_does_not_use_predict_nothing(problem):
    model = InductiveRobustPCA(rank=2, solver="altproj")
    scores = model.fit_transform(problem.M, row_features=problem.F1, col_features=problem.F2)
    assert np.linalg.norm(model.inverse_transform(scores) - problem.L) <= 1e-6 * np.linalg.norm(problem.L)
    assert model.W_ is None
    assert any("does not use features" in doubt.text for doubt in model.result_.doubts)
    assert not hasattr(model, "predict")
    with pytest.raises(ValueError, match="or its solver ignores them"):
        model.transform(problem.M, row_features=problem.F1)
