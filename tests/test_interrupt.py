"""Fits that end early: by a time budget, or by Ctrl-C, alone and inside a search."""

import itertools
import random
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

import irpca
from irpca import InductiveRobustPCA, Status
from irpca.threads import single_threaded_blas


@pytest.fixture(scope="module")
def M():
    rng = np.random.default_rng(5)
    A = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 20)) + 0.1 * rng.standard_normal((40, 20))
    A[3, 4] += 50
    return pd.DataFrame(A, [f"r{i}" for i in range(40)], [f"c{j}" for j in range(20)])


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by one second whenever the loop looks at it."""
    seconds = itertools.count()
    monkeypatch.setattr(sys.modules["irpca.loop"], "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))


@pytest.fixture(scope="module")
def whole(M):
    return InductiveRobustPCA().fit(M)


def test_time_that_ends_while_fits_are_compared_leaves_a_usable_model(M, clock, tmp_path):
    model = InductiveRobustPCA(time_budget=1.5)
    with pytest.warns(ConvergenceWarning, match="STOPPED: stopped by a callback or the time budget"):
        model.fit(M)
    assert model.status_ is Status.STOPPED and not model.converged_
    assert len(model.history_) == 2 and all(stage.startswith("comparing fits") for stage in model.history_.stage)
    assert model.outliers()["row"][0] == "r3" and model.outliers()["column"][0] == "c4"
    expected, std = model.expected(return_std=True)
    assert np.isfinite(expected).all(axis=None) and (std > 0).all(axis=None)
    assert np.abs((expected - M).to_numpy()).mean() < 1
    assert model.repaired(M, force=True).shape == M.shape and model.transform(M).shape == (40, model.rank_)
    assert "STOPPED" in model.summary()
    model.save(tmp_path / "m.irpca")
    assert irpca.load(tmp_path / "m.irpca").status_ is Status.STOPPED


def test_time_enough_changes_nothing(M, whole):
    model = InductiveRobustPCA(time_budget=3600).fit(M)
    assert model.converged_
    np.testing.assert_array_equal(model.low_rank_.dense(), whole.low_rank_.dense())


def interrupt_at(stage):
    """Ctrl-C when this is being done for the first time."""

    def callback(state, history):
        if history.stage[-1].startswith(stage):
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("stage", ["comparing fits", "fitting all of the table"])
def test_ctrl_c_keeps_the_best_fit_and_goes_on_up(M, whole, stage):
    assert any(one.startswith(stage) for one in whole.history_.stage)
    model = InductiveRobustPCA(callbacks=interrupt_at(stage))
    with pytest.raises(KeyboardInterrupt):
        model.fit(M)
    assert model.status_ is Status.INTERRUPTED
    assert model.outliers()["row"][0] == "r3"
    assert np.isfinite(model.expected()).all(axis=None)
    assert np.isfinite(model.score(M)) and len(model.transform(M)) == len(M)


class Interrupting:
    """Ctrl-C in the fit of one candidate. A copy is the same one, as scikit-learn copies the parameters."""

    def __init__(self, at):
        self.at, self.fits = at, 0

    def __deepcopy__(self, memo):
        return self

    def __call__(self, state, history):
        self.fits += len(history) == 1
        if self.fits == self.at:
            raise KeyboardInterrupt


def test_ctrl_c_ends_a_search(M):
    callback = Interrupting(at=2)
    search = GridSearchCV(InductiveRobustPCA(callbacks=callback), {"rank": [1, 2, 3]}, cv=2, n_jobs=1)
    with pytest.raises(KeyboardInterrupt), pytest.warns(ConvergenceWarning):
        search.fit(M)
    assert callback.fits == 2  # of six
    assert not hasattr(search, "best_params_")


def test_a_search_with_a_time_budget_goes_on(M, clock):
    search = GridSearchCV(InductiveRobustPCA(time_budget=0.5), {"rank": [1, 3]}, cv=2, error_score="raise")
    with pytest.warns(ConvergenceWarning, match="STOPPED"):
        search.fit(M)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers of this kind here")
def test_ctrl_c_never_leaves_blas_held_to_one_thread():
    """At any step of entering and leaving; one in six did, of a loop that does nothing else."""

    @single_threaded_blas
    def passes():
        while True:
            with single_threaded_blas:
                pass

    with single_threaded_blas:  # the libraries are looked for once, in files that Ctrl-C would leave open
        pass
    chance, before = random.Random(0), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(300):
            with pytest.raises(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-4, 6e-4))
                    passes()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert single_threaded_blas.inside == 0
            assert single_threaded_blas.lock.acquire(timeout=5)
            single_threaded_blas.lock.release()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert single_threaded_blas.inside == 0 and single_threaded_blas.before is None


def test_a_function_leaves_as_many_inside_as_it_found():
    """Also if it returns: solve() keeps a model after Ctrl-C, which may have come while what it called was leaving."""

    @single_threaded_blas
    def interrupted_while_leaving():
        single_threaded_blas.__enter__()
        return "a model"

    assert interrupted_while_leaving() == "a model"
    assert single_threaded_blas.inside == 0
    with single_threaded_blas:
        interrupted_while_leaving()
        assert single_threaded_blas.inside == 1
