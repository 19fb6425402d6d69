"""What is not what it should be is refused by name; all of these were found by ``lab.soak.fuzz``."""

import datetime
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.utils.parallel import Parallel

import irpca
from irpca import InductiveRobustPCA, LongTable, diagnostics, plots, report
from irpca.arguments import flag, naming, number, path, text, whole
from irpca.callbacks import TimeBudget
from irpca.datasets import make_problem
from irpca.persistence import save
from irpca.selection import cross_validate

RNG = np.random.default_rng(8)
F1, F2 = RNG.standard_normal((12, 3)), RNG.standard_normal((9, 2))
M = F1[:, :2] @ F2.T
NAMED = pd.DataFrame(M, [f"r{i}" for i in range(12)], [f"c{j}" for j in range(9)])
LISTED = pd.DataFrame({"user": ["a", "a", "b"], "item": ["x", "y", "x"], "rating": [1.0, 2, 3]})


@pytest.fixture(scope="module")
def model():
    return InductiveRobustPCA(rank=2).fit(M, row_features=F1, col_features=F2)


@pytest.mark.parametrize(
    ("name", "call"),
    {
        "engine": lambda: irpca.solve(M, engine=7),
        "solver": lambda: irpca.solve(M, solver=["irpca"]),
        "max_iter": lambda: irpca.solve(M, max_iter=pd.NaT),
        "tol": lambda: irpca.solve(M, tol="1"),
        "sparse": lambda: irpca.solve(M, sparse=np.array([True, False])),
        "callbacks": lambda: irpca.solve(M, callbacks=object()),
        "random_state": lambda: irpca.solve(M, random_state=-1),
        "outliers_to": lambda: irpca.solve(M, outliers_to=datetime.date(2024, 1, 1)),
        "resume": lambda: irpca.solve(M, resume=[]),
        "noise": lambda: irpca.solve(M, noise=pd.NaT),
        "F1": lambda: irpca.solve(M, [[1], [2, 3]]),
        "M": lambda: InductiveRobustPCA().fit([1.0, 2.0]),
        "solver of a frame": lambda: InductiveRobustPCA(solver="x").fit(
            M, row_features=pd.DataFrame({"a": ["b"] * 12})
        ),
        "solver_options of numbers": lambda: InductiveRobustPCA(solver_options={1: 2}).fit(M),
        "solver_options": lambda: InductiveRobustPCA(solver_options=3).fit(M),
        "time_budget": lambda: InductiveRobustPCA(time_budget="1").fit(M),
        "verbose": lambda: InductiveRobustPCA(verbose=M).fit(M),
        "seconds": lambda: TimeBudget(pd.NA),
        "row_features of no columns": lambda: InductiveRobustPCA().fit(M, row_features={}),
        "col_features of no columns": lambda: InductiveRobustPCA(col_features={}).fit(M),
        "row_features of text labels": lambda: InductiveRobustPCA().fit(NAMED, row_features="index"),
        "col_features of text labels": lambda: InductiveRobustPCA(col_features="index").fit(NAMED),
        "col_features of a search": lambda: cross_validate(InductiveRobustPCA(rank=1), M, col_features={}),
        "M of dates": lambda: irpca.solve(M.astype("M8[s]")),
        "M of some dates": lambda: irpca.solve(NAMED.assign(when=pd.Timestamp("2024-02-27"))),
        "n1": lambda: make_problem(n1=1.5),
        "corruption": lambda: make_problem(corruption="x"),
        "dtype": lambda: make_problem(dtype="nothing"),
        "features": lambda: make_problem(features=[1]),
        "L_true": lambda: diagnostics.relative_error(M, csr_array(M)),
        "S": lambda: diagnostics.support_scores("", M),
        "F": lambda: diagnostics.incoherence(pd.DataFrame({"a": ["x", "y"]})),
        "F is complex": lambda: diagnostics.incoherence(pd.DataFrame({"a": [1j, 2], "b": [True, False]})),
        "F2": lambda: diagnostics.iteration_bound(F1, "nowhere", 1.0, 0.1),
        "result": lambda: diagnostics.check_assumptions(M, F1, F2, False),
        "rescale M": lambda: diagnostics.energy_outside(M * 1e200, F1, F2),
        "cv": lambda: cross_validate(InductiveRobustPCA(rank=1, solver="pca"), M, cv=2**63),
        "param_grid": lambda: cross_validate(InductiveRobustPCA(), M, param_grid={1: [1]}),
        "n_jobs": lambda: cross_validate(InductiveRobustPCA(), M, n_jobs=0),
        "row": lambda: LongTable.from_frame(LISTED, row={}),
        "values": lambda: LongTable([0, 1], [0, 1], [[0], [1, 2]]),
        "probability": lambda: plots.reliability(iter([0]), [True]),
        "model": lambda: report.write({}, "nowhere.html"),
        "path": lambda: irpca.load(1.5),
        "model of no fit": lambda: save(InductiveRobustPCA(), "nowhere.irpca"),
    }.items(),
)
def test_an_argument_of_another_kind_is_named(name, call):
    with pytest.raises((ValueError, TypeError), match=rf"(?<!\w){name.split(' of ')[0]}(?!\w)"):
        call()


@pytest.mark.parametrize(
    ("name", "call"),
    {
        "fdr": lambda model: model.outliers(fdr=datetime.date(2024, 1, 1)),
        "threshold": lambda model: model.outliers(threshold=Fraction(2)),
        "most": lambda model: model.outliers(most=1.5),
        "return_std": lambda model: model.expected(return_std=M),
        "return_marks": lambda model: model.repaired(return_marks=np.array([True, False])),
        "scores": lambda model: model.inverse_transform([1.0]),
        "sample_weight": lambda model: model.score(M, sample_weight=[1.5]),
        "row_features": lambda model: model.score(M, row_features=F1 * np.inf),
        "M": lambda model: model.transform(LongTable([0, 1, 1], [0, 1, 0], [1.0, 2, 3])),
        "path": lambda model: model.save(3),
        "title": lambda model: report.write(model, "r.html", title=3),
        "part": lambda model: plots.decomposition(model, {}),
        "against": lambda model: plots.convergence(model, against=np.array("x")),
        "order": lambda model: plots.cell_map(model, order=M),
        "columns": lambda model: plots.cell_map(model, columns=0),
        "M: Expected 2D array": lambda model: plots.cell_map(model, M=False),
    }.items(),
)
def test_an_argument_of_an_answer_is_named(name, call, model):
    with pytest.raises((ValueError, TypeError), match=rf"(?<!\w){name}(?!\w)"):
        call(model)


def test_the_table_may_be_named(model):
    """scikit-learn wraps transform for set_output, and its wrapper has no M."""
    np.testing.assert_array_equal(model.transform(M=M, row_features=F1), model.transform(M, row_features=F1))
    again = InductiveRobustPCA(rank=2).fit_transform(M=M, row_features=F1, col_features=F2)
    np.testing.assert_array_equal(again, InductiveRobustPCA(rank=2).fit_transform(M, row_features=F1, col_features=F2))


def test_no_callbacks_may_be_none():
    assert irpca.solve(M, F1, F2, callbacks=None).converged


def test_leverage_of_numbers_whose_squares_are_zero():
    wanted = diagnostics.leverage_scores(F1)
    np.testing.assert_allclose(diagnostics.leverage_scores(F1 * 1e-300), wanted, rtol=1e-10)


def test_limits():
    assert number(0, "share", least=0, below=1) == 0 and whole(5, "bins", least=1, most=5) == 5
    for value in (0, -1, np.nan, np.inf, "x", None, True, 1j, np.ones(2), Fraction(2)):
        with pytest.raises(ValueError, match="beta must be a number, positive and finite; got"):
            number(value, "beta", above=0)
    for value in (-0.1, 1, 1.5, 10**400):
        with pytest.raises(ValueError, match=f"share must be a number, at least 0 and below 1; got {str(value)[:9]}"):
            number(value, "share", least=0, below=1)
    for value in (0, 6, 2.0):
        with pytest.raises(ValueError, match=f"bins must be a whole number, at least 1 and at most 5; got {value}"):
            whole(value, "bins", least=1, most=5)


def test_what_passes_as_a_number_a_flag_a_text_or_a_path():
    assert number(np.float32(2), "x") == 2 and whole(np.int8(3), "x") == 3
    assert [flag(value, "x") for value in (True, np.True_, 1, 0, None)] == [True, True, True, False, False]
    assert text("a", "x") == "a" and path("a", "x") == "a"
    for check, value in ((number, True), (whole, 1.0), (flag, "yes"), (text, b"a"), (path, "")):
        with pytest.raises(ValueError, match=r"^x must be"):
            check(value, "x")


def test_a_message_that_names_the_argument_stays_as_it_is():
    with pytest.raises(TypeError, match=r"^M is odd$"), naming("M"):
        raise TypeError("M is odd")
    for error, kind in ((TypeError, TypeError), (ValueError, ValueError), (OverflowError, ValueError)):
        with pytest.raises(kind, match=r"^M: odd$"), naming("M"):
            raise error("odd")


def test_no_more_processes_than_there_are_fits(monkeypatch):
    """joblib starts as many as it is asked for: a thousand, of which two have something to do."""
    asked = []

    def recorded(n_jobs):
        asked.append(n_jobs)
        return Parallel(n_jobs=1)

    monkeypatch.setattr("irpca.selection.Parallel", recorded)
    cross_validate(InductiveRobustPCA(rank=1, solver="pca"), M, cv=2, n_jobs=1000)
    assert asked == [2]


def test_a_label_is_one():
    model = InductiveRobustPCA(rank=2).fit(NAMED, row_features=F1, col_features=F2)
    for label in (np.array([]), np.array(["c0"]), NAMED):
        with pytest.raises(ValueError, match=r"^column must be one label, got a "):
            plots.line(model, column=label)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"solver": "rpca_gd", "rank": 1, "corruption": 0.1}])
def test_numbers_whose_products_are_infinite_are_refused(options):
    with pytest.raises(ValueError, match=r"values of M reach 1e\+308, .* rescale M$"):
        irpca.solve(np.full((8, 6), 1e308), F1[:8], **options)


@pytest.fixture(scope="module")
def noisy():
    return InductiveRobustPCA(rank=2).fit(M + 0.1 * np.random.default_rng(9).standard_normal(M.shape))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("answer", ["decompose", "outliers", "repaired", "transform", "score"])
def test_new_rows_that_cannot_be_squared_are_refused(answer, model, noisy):
    one = M.copy()
    one[2, 3] = -1e300
    for fitted, large in ((model, M * 1e200), (noisy, M + 1e300), (noisy, csr_array(one))):
        with pytest.raises(ValueError, match=r"values of M reach \de\+\d+, .* rescale M$"):
            getattr(fitted, answer)(large)


@pytest.mark.filterwarnings("error")
def test_new_rows_may_be_small(model, noisy):
    for one in (model, noisy):
        assert np.isfinite(one.decompose(M * 1e-200).L.dense()).all()
