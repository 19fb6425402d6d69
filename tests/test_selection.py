"""Cross-validation over observed entries: what it finds, what it tells, and that it is the same for everyone."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

import irpca
from irpca import InductiveRobustPCA, LongTable
from irpca.features import FeatureWarning
from irpca.selection import NEVER, _folds, cross_validate

pytestmark = pytest.mark.usefixtures("short_fits")

NOISE = 0.1
QUICK = InductiveRobustPCA(2, solver="irpca_iht", solver_options={"nu": 3 * NOISE})


def problem_of(n1=100, n2=80, *, rank=2, extra=0, noise=NOISE, corruption=0.1, holes=0.2, seed=0):
    """Gross errors far larger than L, noise, and holes; ``extra`` directions that features know nothing of."""
    rng = np.random.default_rng(seed)
    F1, F2 = rng.standard_normal((n1, 6)), rng.standard_normal((n2, 5))
    W = rng.standard_normal((6, rank)) @ rng.standard_normal((rank, 5))
    L = F1 @ W @ F2.T / np.sqrt(30 * rank)
    L += rng.standard_normal((n1, extra)) @ rng.standard_normal((extra, n2)) / np.sqrt(max(extra, 1))
    M = L + noise * rng.standard_normal(L.shape)
    M[rng.random(L.shape) < corruption] += rng.choice([-20, 20])
    M[rng.random(L.shape) < holes] = np.nan
    return M, F1, F2


@pytest.fixture(scope="module")
def problem():
    return problem_of()


@pytest.fixture(scope="module")
def exact():
    """Solved in a moment by the default solver, too."""
    return problem_of(40, 30, noise=0.0)


def entries_of(M):
    rows, cols = np.nonzero(~np.isnan(M))
    return coo_array((M[rows, cols], (rows, cols)), shape=M.shape).tocsr(), rows, cols


def compare(problem, grid, model=None, **options):
    """With the quickest solver, unless told: most tests are about what is done with the fits."""
    M, F1, F2 = problem
    model = QUICK if model is None else model
    return cross_validate(model, M, row_features=F1, col_features=F2, param_grid=grid, **options)


@pytest.fixture(scope="module")
def found(problem):
    return compare(problem, {"rank": [1, 2, 3, 4]})


# What it finds


def test_the_true_number_of_free_directions():
    found = compare(problem_of(extra=3), {"extra_rank": [0, 3]}, InductiveRobustPCA(2), cv=2)
    assert found.best_params == {"extra_rank": 3}
    assert found.best_estimator.rank_ == 5


def test_an_option_of_the_solver():
    """Too small a noise takes noise for gross errors, too large a one gross errors for noise."""
    grid = {"solver_options__noise": [NOISE, 100 * NOISE]}
    found = compare(problem_of(corruption=0.3), grid, InductiveRobustPCA(extra_rank=0), cv=2)
    assert found.best_params == {"solver_options__noise": NOISE}
    assert found.best_estimator.solver_options == {"noise": NOISE}
    assert found.best_estimator.noise_ == NOISE


def test_scores_are_those_of_a_fit_without_the_fold():
    """The whole procedure by hand."""
    M, F1, F2 = problem = problem_of(40, 30)
    found = compare(problem, None, cv=3, random_state=5)
    entries, rows, cols = entries_of(M)
    folds = _folds(entries, 3, "entries", (True, True), np.random.default_rng(5))
    for fold in range(3):
        train, out = M.copy(), (rows[folds == fold], cols[folds == fold])
        train[out] = np.nan
        model = clone(QUICK).fit(train, row_features=F1, col_features=F2)
        errors = np.abs(M - model.low_rank_.dense())[out]
        assert found.log_error[0, fold] == pytest.approx(np.log(errors).mean(), abs=1e-9)
        assert found.median_error[0, fold] == pytest.approx(np.median(errors), rel=1e-9)
        assert found.rmse[0, fold] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)


# How it chooses


def test_within_one_standard_error_the_first_is_taken(monkeypatch, problem):
    """From scores that are made up: 3 is the lowest, 2 close to it, 1 not."""
    scores = {1: [-1.0, -1.2, -1.1], 2: [-1.96, -2.14, -2.05], 3: [-2.0, -2.2, -2.1]}

    def made_up(model, train, held_out, F1, F2):
        turn = len(asked) // len(scores)
        asked.append(model.rank)
        return irpca.selection._Outcome(scores[model.rank][turn], 1.0, 1.0, "CONVERGED", "", 0.0)

    monkeypatch.setattr("irpca.selection._outcome", made_up)
    for rule, chosen in ((True, 2), (False, 3)):
        asked = []
        found = compare(problem, {"rank": [1, 2, 3]}, cv=3, one_standard_error=rule)
        assert found.best_params == {"rank": chosen}
        assert asked == 3 * [1, 2, 3]
        assert_allclose(found.table["log_error"], [-1.1, -2.05, -2.1])
        assert_allclose(found.table["log_error_se"], [0.1 / np.sqrt(3), 0.09 / np.sqrt(3), 0.1 / np.sqrt(3)])
    asked = []
    assert compare(problem, {"rank": [3, 1, 2]}, cv=3).best_params == {"rank": 3}  # simple is what comes first
    asked = []
    found = compare(problem, {"rank": [1, 2, 3]}, cv=3)
    assert found.reason == (
        "the simplest setting within one standard error, 0.0577, of the lowest mean log error, -2.1000 with rank=3"
    )


def test_settings_that_differ_by_rounding_tie():
    """Without noise both are exact, and the first is taken, whatever the rule."""
    problem, model = problem_of(60, 50, noise=0.0), InductiveRobustPCA(extra_rank=0)
    for rule in (True, False):
        found = compare(problem, {"rank": [2, 3, 4]}, model, cv=3, one_standard_error=rule)
        assert found.best_params == {"rank": 2}
    assert found.log_error[0].max() < -20
    assert "rank=2: the " in found.summary() and "one standard error" not in found.reason


def test_the_order_of_settings(exact):
    found = compare(exact, {"rank": [2, 1], "tol": [1e-9, 1e-6]}, cv=2)
    assert [tuple(params.values()) for params in found.params] == [(2, 1e-9), (2, 1e-6), (1, 1e-9), (1, 1e-6)]
    grids = [{"rank": [1]}, {"tol": [1e-8], "solver_options": [{"nu": 0.4}]}]
    found = compare(exact, grids, cv=2)
    assert found.params == ({"rank": 1}, {"tol": 1e-8, "solver_options": {"nu": 0.4}})
    table = found.table
    assert table["rank"].tolist() == [1, 2] and table["tol"].tolist() == [1e-10, 1e-8]
    assert table["solver_options"].tolist() == [QUICK.solver_options, {"nu": 0.4}]


def test_without_a_grid_it_is_the_model_that_is_judged(exact):
    found = compare(exact, None, InductiveRobustPCA(2), cv=2)
    assert found.params == ({},) and found.best_params == {} and found.reason == "the only setting"
    assert found.log_error.shape == (1, 2) and found.table.dtype.names[0] == "log_error"
    assert "the model as it is" in found.summary() and "the model as it is" in repr(found)


# What it tells


def test_the_table_and_the_summary(found):
    table = found.table
    assert table["rank"].tolist() == [1, 2, 3, 4]
    assert table["status"].tolist() == ["CONVERGED"] * 4 and table["message"].tolist() == [""] * 4
    for name in ("log_error", "median_error", "rmse"):
        scores = getattr(found, name)
        assert scores.shape == (4, 5)
        assert_allclose(table[name], scores.mean(axis=1))
        assert_allclose(table[f"{name}_se"], scores.std(axis=1, ddof=1) / np.sqrt(5))
    assert list(pd.DataFrame(table).columns) == list(table.dtype.names)
    text = found.summary()
    assert "4 settings, 5 folds" in text and f"{found.n_held_out} held-out cells" in text
    assert "→ rank=2" in text and "  rank=1" in text
    assert f"chosen: rank=2: {found.reason}" in text


def test_the_curve(exact, found):
    values, mean, error = found.curve("rank")
    assert_array_equal(values, [1, 2, 3, 4])
    assert_array_equal(mean, found.table["log_error"])
    assert_array_equal(error, found.table["log_error_se"])
    with pytest.raises(ValueError, match="'tol' is not in the grid; it has 'rank'"):
        found.curve("tol")
    found = compare(exact, {"rank": [2, "auto"], "extra_rank": [0, 1]}, InductiveRobustPCA(), cv=2)
    values, mean, _ = found.curve("rank")
    assert values.tolist() == [2, "auto"]
    at = [k for k, params in enumerate(found.params) if params["extra_rank"] == found.best_params["extra_rank"]]
    assert_array_equal(mean, found.table["log_error"][at])


def test_the_best_is_fitted_to_all_of_M_once_and_can_be_kept(problem, found):
    M, F1, F2 = problem
    found = pickle.loads(pickle.dumps(found))
    best = found.best_estimator
    alone = clone(QUICK).fit(M, row_features=F1, col_features=F2)
    assert_array_equal(best.low_rank_.dense(), alone.low_rank_.dense())
    assert found.best_estimator is best


# What goes wrong


def test_settings_that_fail_are_told_and_not_chosen(problem):
    found = compare(problem, {"rank": [0, 9, 2, 1]}, cv=2)
    table = found.table
    assert np.isnan(table["log_error"][:2]).all() and np.isfinite(table["log_error"][2:]).all()
    assert table["status"].tolist() == ["FAILED", "FAILED", "CONVERGED", "CONVERGED"]
    assert "ValueError: rank=9 is out of range" in table["message"][1] and table["message"][2] == ""
    assert found.best_params == {"rank": 2}
    assert "rank=9 failed: ValueError: rank=9 is out of range" in found.summary()


def test_a_setting_that_fails_in_one_fold_or_is_not_finite_is_not_chosen(monkeypatch, problem):
    fit, calls = InductiveRobustPCA.fit, []

    def moody(self, *arguments, **options):
        calls.append(self.rank)
        if calls.count(2) == 2 and self.rank == 2:
            raise np.linalg.LinAlgError("SVD did not converge")
        fit(self, *arguments, **options)
        if self.rank == 3:
            L = self.low_rank_
            self.low_rank_ = irpca.LowRank(L.left, np.nan * L.core, L.right)
        return self

    monkeypatch.setattr(InductiveRobustPCA, "fit", moody)
    found = compare(problem, {"rank": [1, 2, 3]}, cv=3)
    assert found.best_params == {"rank": 1}
    assert "predictions are not finite" in found.messages[2]
    assert found.messages[1] == "in 1 of 3 folds, first in 1: LinAlgError: SVD did not converge"
    assert found.table["status"][1] == "CONVERGED 2, FAILED 1"
    assert np.isnan(found.log_error[1]).tolist() == [False, True, False]


def test_when_all_fail_the_first_message_is_raised(problem):
    with pytest.raises(ValueError, match=r"no setting could be fitted.*rank=8 failed: ValueError: rank=8 is out of"):
        compare(problem, {"rank": [8, 9]}, cv=2)
    F2 = problem[2]
    with pytest.raises(ValueError, match="col_features was given both to the constructor and to fit"):
        compare(problem, None, InductiveRobustPCA(2, col_features=F2), cv=2)


def test_fits_that_do_not_converge_count_and_are_told_without_a_warning(problem):
    """Only the best warns, when it is fitted."""
    M, F1, F2 = problem
    twice = np.column_stack([F1, F1[:, 0]])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = compare((M, twice, F2), {"max_iter": [1, 100]}, cv=2)
    assert told == []
    assert found.table["status"].tolist() == ["MAX_ITER", "CONVERGED"]
    assert np.isfinite(found.log_error).all()
    assert "max_iter=1 did not always converge: MAX_ITER" in found.summary()
    found = compare((M, twice, F2), {"max_iter": [1]}, cv=2)
    with pytest.warns(FeatureWarning), pytest.warns(ConvergenceWarning):
        _ = found.best_estimator


# Folds


def test_every_entry_is_held_out_once_and_every_row_in_all_folds(problem, found):
    entries, rows, _ = entries_of(problem[0])
    folds = _folds(entries, 5, "entries", (True, True), np.random.default_rng(0))
    assert found.n_held_out == found.n_observed == len(folds)
    sizes = np.bincount(folds)
    assert len(sizes) == 5 and np.ptp(sizes) <= 1
    for row in range(100):
        here = np.bincount(folds[rows == row], minlength=5)
        assert np.ptp(here) <= 1


def test_without_features_no_line_loses_all():
    """A row with a single entry, a column with two: features know of them, nothing else does."""
    M, F1, _ = problem_of(40, 30)
    M[3, 1:], M[3, 0] = np.nan, 1.0
    M[2:, 5] = np.nan
    M[0, 5] = M[1, 5] = 1.0
    entries, rows, cols = entries_of(M)
    rng = np.random.default_rng(0)
    assert (_folds(entries, 5, "entries", (True, True), rng) != NEVER).all()
    for _ in range(10):
        folds = _folds(entries, 5, "entries", (False, False), rng)
        assert folds[rows == 3] == [NEVER]
        for lines in (rows, cols):
            for fold in range(5):
                assert np.isin(lines, lines[folds != fold]).all()
    found = cross_validate(QUICK, M, row_features=F1, cv=2)
    assert found.n_held_out <= found.n_observed
    found = cross_validate(InductiveRobustPCA(2, solver="altproj"), M, cv=2)
    assert found.n_held_out < found.n_observed
    assert "the others are the only cells of their row or column" in found.summary()


@pytest.mark.parametrize("hold_out", ["rows", "columns"])
def test_whole_lines_are_predicted_by_their_features(problem, hold_out):
    entries, *lines = entries_of(problem[0])
    folds = _folds(entries, 5, hold_out, (True, True), np.random.default_rng(0))
    which = lines[("rows", "columns").index(hold_out)]
    assert all(len(set(folds[which == line])) == 1 for line in range(which.max() + 1))
    found = compare(problem, {"rank": [1, 2, 3]}, hold_out=hold_out)
    assert found.best_params == {"rank": 2}
    assert found.table["median_error"][1] < NOISE
    with pytest.raises(ValueError, match=f"hold_out='{hold_out}' needs {hold_out[:3]}_features"):
        cross_validate(InductiveRobustPCA(2), problem[0], hold_out=hold_out)


# The same for everyone


def same(one, other):
    for name in one.table.dtype.names:
        assert_array_equal(one.table[name], other.table[name])
    assert_array_equal(one.log_error, other.log_error)
    assert one.best_params == other.best_params


def test_all_kinds_of_M_give_the_same_table():
    M, F1, F2 = problem_of(50, 40)
    M[0, 0] = 0.0  # which a sparse array stores
    expected = compare((M, F1, F2), {"rank": [1, 2]}, cv=2)
    _, rows, cols = entries_of(M)
    frame = pd.DataFrame(M, [f"user {i}" for i in range(50)], [f"item {j}" for j in range(40)])
    for kind in (LongTable(rows[::-1], cols[::-1], M[rows, cols][::-1], M.shape), frame):
        found = compare((kind, F1, F2), {"rank": [1, 2]}, cv=2)
        same(found, expected)
    assert list(found.best_estimator.predict(F1[:1]).columns)[:2] == ["item 0", "item 1"]
    wrong = pd.DataFrame(F1, [f"item {i}" for i in range(50)])
    with pytest.raises(ValueError, match="the index of row_features does not match the rows of M"):
        compare((frame, wrong, F2), {"rank": [1, 2]})


def test_again_and_in_two_processes_it_is_the_same(problem, found):
    for n_jobs in (None, 2):
        same(compare(problem, {"rank": [1, 2, 3, 4]}, n_jobs=n_jobs), found)
    other = compare(problem, {"rank": [1, 2, 3, 4]}, random_state=1)
    assert (other.log_error != found.log_error).any() and other.best_params == found.best_params


def test_the_model_is_left_alone(problem):
    model = InductiveRobustPCA(1, solver="irpca_iht", solver_options={"nu": 3 * NOISE})
    before = dict(vars(model))
    found = compare(problem, {"rank": [2], "solver_options__nu": [0.4]}, model, cv=2)
    assert vars(model) == before and model.solver_options == {"nu": 3 * NOISE}
    assert found.best_estimator.solver_options == {"nu": 0.4}


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hold_out": "users"}, "hold_out='users' is unknown; choose 'entries', 'rows' or 'columns'"),
        ({"hold_out": "rows", "cv": 101}, "too few rows with observed entries for 101 folds"),
        ({"param_grid": {"rank": 3}}, r"param_grid: .* for parameter 'rank' needs to be a list .*, but got 3"),
        ({"param_grid": {"rank": []}}, "param_grid: .* for parameter 'rank' need to be a non-empty sequence"),
        ({"param_grid": "rank"}, r"param_grid: Parameter grid is not a dict \('rank'\)"),
        ({"param_grid": {1: [2]}}, "param_grid names parameters by text, got 1"),
        ({"param_grid": {"ranks": [1]}}, "Invalid parameter 'ranks'"),
    ],
)
def test_bad_options(problem, options, message):
    M, F1, F2 = problem
    with pytest.raises((TypeError, ValueError), match=message):
        cross_validate(InductiveRobustPCA(2), M, row_features=F1, col_features=F2, **options)


def test_bad_matrices(problem):
    M, F1, F2 = problem
    model = InductiveRobustPCA(2)
    with pytest.raises(ValueError, match="every cell of M is missing"):
        cross_validate(model, np.full((5, 4), np.nan))
    with pytest.raises(ValueError, match="infinite"):
        cross_validate(model, np.where(np.isnan(M), np.inf, M))
    few = LongTable([0, 1, 2], [0, 1, 2], [1.0, 2.0, 3.0], (100, 80))
    with pytest.raises(ValueError, match="cv=5 is more than the 3 observed entries"):
        cross_validate(model, few, row_features=F1, col_features=F2)
    with pytest.raises(ValueError, match="too few observed entries that can be held out for 2 folds"):
        cross_validate(model, few, cv=2)
    with pytest.raises(ValueError, match="model must be an InductiveRobustPCA, got PCA"):
        cross_validate(PCA(2), M)
