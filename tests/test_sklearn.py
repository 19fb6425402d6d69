"""The estimator inside scikit-learn: its own checks, pipelines, searches, routing."""

import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from irpca import InductiveRobustPCA
from irpca.datasets import make_problem

pytestmark = pytest.mark.usefixtures("short_fits")

# The checks use matrices of 20 × 3, in which nothing can be told from corruption; nor does a wrong rank come to rest.
TINY = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ROUTING = pytest.mark.parametrize("routing", [False, True], ids=["routing off", "routing on"])
n = 60


@pytest.fixture(scope="module")
def problem():
    """Square, which is where scikit-learn cuts the features of columns along with the rows."""
    return make_problem(n, n, d1=5, d2=4, rank=2, corruption=0.03, features="conditioned", random_state=1)


@pytest.fixture(scope="module")
def noisy():
    """For comparisons of scores: those of exact fits are logarithms of rounding errors."""
    return make_problem(n, n, d1=5, d2=4, rank=2, corruption=0.03, noise=1e-4, features="conditioned", random_state=1)


def checks():
    """All that scikit-learn has for us, less those for other array libraries: they skip themselves, and nothing may.

    They fit hundreds of times, and not one of them is about the solver: a quick one will do.
    """
    for estimator, check in estimator_checks_generator(InductiveRobustPCA(1, solver="altproj")):
        name = getattr(check, "func", check).__name__
        if "array_api" not in name:
            yield pytest.param(estimator, check, id=name)


@TINY
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::irpca.DoNotUseWarning")  # that is not the noise of the table
def test_clones_are_alike_and_unfitted(problem):
    model = InductiveRobustPCA(2, col_features=problem.F2, tol=1e-8, solver_options={"noise": 1e-4})
    model.fit(problem.M, row_features=problem.F1)
    copy = clone(model)
    assert not hasattr(copy, "components_")
    assert copy.rank == 2 and copy.tol == 1e-8 and copy.solver_options == {"noise": 1e-4}
    assert_array_equal(copy.fit(problem.M, row_features=problem.F1).components_, model.components_)


def test_names_and_frames_out(problem):
    model = InductiveRobustPCA(2).fit(problem.M)
    names = ["inductiverobustpca0", "inductiverobustpca1"]
    assert list(model.get_feature_names_out()) == names
    M = pd.DataFrame(problem.M, index=[f"row {i}" for i in range(n)]).rename(columns=str)
    model = InductiveRobustPCA(2).set_output(transform="pandas")
    scores = model.fit_transform(M)
    assert list(scores.columns) == names and scores.index.equals(M.index)
    assert_array_equal(scores, model.set_output(transform="default").transform(M))
    assert_allclose(model.inverse_transform(scores), model.low_rank_.dense(), atol=1e-3)


# Pipelines


def doubled(model):
    return make_pipeline(FunctionTransformer(lambda M: 2 * M), model)


def test_in_a_pipeline_with_routing(noisy):
    with sklearn.config_context(enable_metadata_routing=True):
        model = InductiveRobustPCA(2, col_features=noisy.F2)
        with pytest.raises(UnsetMetadataPassedError, match="row_features"):
            doubled(model).fit(noisy.M, row_features=noisy.F1)
        model.set_fit_request(row_features=True).set_transform_request(row_features=True)
        model.set_score_request(row_features=True)
        pipe = doubled(model).fit(noisy.M, row_features=noisy.F1)
        alone = InductiveRobustPCA(2, col_features=noisy.F2).fit(2 * noisy.M, row_features=noisy.F1)
        assert_array_equal(pipe[-1].W_, alone.W_)
        assert_array_equal(
            pipe.transform(noisy.M, row_features=noisy.F1),
            alone.transform(2 * noisy.M, row_features=noisy.F1),
        )
        assert_array_equal(
            pipe.fit_transform(noisy.M, row_features=noisy.F1),
            alone.transform(2 * noisy.M, row_features=noisy.F1),
        )
        assert pipe.score(noisy.M, row_features=noisy.F1) == alone.score(2 * noisy.M, row_features=noisy.F1)
        assert pipe.score(noisy.M, row_features=noisy.F1) != alone.score(2 * noisy.M)


def test_a_pipeline_scores_with_routing_and_without_features(problem):
    """scikit-learn passes sample_weight=None along, and refuses scores that do not take it."""
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = doubled(InductiveRobustPCA(2)).fit(problem.M)
        assert pipe.score(problem.M) == pipe[-1].score(2 * problem.M)


def test_only_features_and_weights_are_routed():
    """Not M, which scikit-learn would take for one more argument since it is not called X."""
    requests = InductiveRobustPCA().get_metadata_routing()
    for method, expected in {
        "fit": {"row_features", "col_features"},
        "transform": {"row_features"},
        "score": {"row_features", "sample_weight"},
        "inverse_transform": set(),
    }.items():
        assert set(getattr(requests, method).requests) == expected


# Searches, with as many rows as columns


@TINY
@ROUTING
def test_grid_search_in_a_pipeline(noisy, routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        model = InductiveRobustPCA(col_features=noisy.F2)
        name = "inductiverobustpca__row_features"
        if routing:
            model.set_fit_request(row_features=True).set_score_request(row_features=True)
            name = "row_features"
        found = GridSearchCV(doubled(model), {"inductiverobustpca__rank": [1, 2]}, cv=2, error_score="raise")
        found.fit(noisy.M, **{name: noisy.F1})
        assert found.best_params_ == {"inductiverobustpca__rank": 2}


@ROUTING
def test_cross_validation(problem, routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        model = InductiveRobustPCA(2, col_features=problem.F2)
        if routing:
            model.set_fit_request(row_features=True).set_score_request(row_features=True)
        done = cross_validate(
            model,
            problem.M,
            params={"row_features": problem.F1},
            cv=3,
            error_score="raise",
            return_estimator=True,
            return_indices=True,
        )
    for fold in range(3):
        train, test = done["indices"]["train"][fold], done["indices"]["test"][fold]
        alone = clone(model).fit(problem.M[train], row_features=problem.F1[train])
        assert_array_equal(done["estimator"][fold].W_, alone.W_)
        F1 = problem.F1[test] if routing else None
        assert done["test_score"][fold] == alone.score(problem.M[test], row_features=F1)


def test_column_features_cut_by_cross_validation_are_noticed(problem):
    with pytest.raises(ValueError, match=r"col_features needs 60 rows.*and has 40.*to the constructor"):
        cross_validate(
            InductiveRobustPCA(2),
            problem.M,
            params={"row_features": problem.F1, "col_features": problem.F2},
            cv=3,
            error_score="raise",
        )
