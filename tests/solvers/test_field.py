"""What holds for every method alike: one word is changed, and the same question gets the same kind of answer."""

from functools import cache

import numpy as np
import pytest
from solvers.field import conditioned, distance, gaussian, recovers

import irpca
from irpca import InductiveRobustPCA, Status
from irpca.datasets import Problem, make_problem
from irpca.engines import MemoryEngine, observed
from irpca.solvers import SOLVERS

FIELD = list(SOLVERS)
OPTIONS = {name: {} for name in FIELD} | {"rpca_gd": {"corruption": 0.05}, "scaledgd": {"corruption": 0.05}}
ROBUST = [name for name in FIELD if name != "pca"]
GET_OVER_HOLES = [name for name in ROBUST if name != "ircur"]

every_method = pytest.mark.parametrize("name", FIELD)
every_robust_method = pytest.mark.parametrize("name", ROBUST)


@pytest.fixture(scope="module")
def problem():
    """One that every method solves: Gaussian factors, the same few errors in every row and column."""
    return gaussian(120, 100, rank=2, corruption=0.05, even=True)


def run(name, problem, M=None, **more):
    """Solve with all that the method needs and nothing that it does not."""
    F = (problem.F1, problem.F2) if SOLVERS[name].features else ()
    rank = {} if SOLVERS[name].rank == "found" else {"rank": np.linalg.matrix_rank(problem.W)}
    return irpca.solve(problem.M if M is None else M, *F, solver=name, **(rank | OPTIONS[name] | more))


@pytest.fixture(scope="module")
def solved(problem):
    """What a method finds, and the engine that it asked; made once."""

    @cache
    def solve(name):
        engine = MemoryEngine(problem.M)
        return run(name, problem, engine=engine), engine

    return solve


# Answers


@every_method
def test_the_answer_and_what_is_told_of_it(problem, solved, name):
    result, engine = solved(name)
    if name in ROBUST:
        recovers(problem, result)
    R, S = problem.M - result.L.dense(), result.S.toarray()
    np.testing.assert_array_equal(S != 0, np.abs(R) > result.zeta)
    np.testing.assert_allclose(S[S != 0], R[S != 0], rtol=0, atol=1e-12 * np.abs(problem.M).max())
    assert result.corruption == pytest.approx((S != 0).mean(), rel=1e-12)
    history = result.history
    assert len(history) == len(history.step) == len(history.zeta)
    assert result.n_iter == history.stage.count("")  # others led to the first
    assert result.n_iter > 1 or name in ("irpca", "trimmed", "bayes")  # exact at once, with features of both sides
    assert result.reads <= engine.reads  # the checks look at some entries, too
    assert result.reads == pytest.approx(history.reads[-1] + 1)  # S is one more
    assert (np.diff(history.reads) >= 0).all() and history.reads[-1] > 0
    assert (np.diff(history.seconds) >= 0).all()
    assert history.step[-1] <= 1e-6
    assert not [doubt for doubt in result.doubts if doubt.kind == "unused-features"]


@every_robust_method
def test_finds_errors_of_all_sizes(problem, name):
    """Down to a thousandth of the entries of L: nobody may stop before those are found, however still L stands."""
    sizes = 10 ** np.random.default_rng(0).uniform(-3, 1, problem.S.shape)
    S = sizes * np.sign(problem.S)
    varied = Problem(problem.L + S, problem.F1, problem.F2, problem.W, problem.L, S, problem.N)
    recovers(varied, run(name, varied))


@every_robust_method
def test_single_precision(problem, name):
    result = run(name, problem, problem.M.astype(np.float32))
    recovers(problem, result, error=1e-5)
    assert result.S.dtype == np.float32


@every_method
def test_neither_engine_nor_units_nor_sides_matter(problem, solved, name):
    one, _ = solved(name)
    other = run(name, problem, engine="reference")
    assert (other.engine, other.status, other.n_iter, other.reads) == ("reference", one.status, one.n_iter, one.reads)
    assert distance(other.L.dense(), one.L.dense()) <= 1e-12
    scaled = run(name, problem, np.asfortranarray(1e6 * problem.M))
    assert distance(scaled.L.dense() / 1e6, one.L.dense()) <= 1e-12 and scaled.n_iter == one.n_iter
    sides = Problem(problem.M.T, problem.F2, problem.F1, problem.W.T, problem.L.T, problem.S.T, problem.N.T)
    turned = run(name, sides)
    assert distance(turned.L.dense().T, one.L.dense()) <= 1e-8  # random starts differ, and rows drawn
    for S in (other.S.toarray(), scaled.S.toarray(), turned.S.toarray().T):
        np.testing.assert_array_equal(S != 0, one.S.toarray() != 0)


@every_method
def test_the_random_state_decides(problem, name):
    one, same, other = (run(name, problem, random_state=seed) for seed in (1, np.random.default_rng(1), 2))
    again = run(name, problem, random_state=np.random.default_rng(1))
    np.testing.assert_array_equal(same.L.dense(), again.L.dense())
    assert (same.S != again.S).nnz == 0 and same.history.step == again.history.step
    assert distance(other.L.dense(), one.L.dense()) <= 1e-8


@pytest.mark.parametrize("make", [gaussian, conditioned])
def test_all_without_features_agree(make):
    """Convex and not, with and without a rank, from all of M or from a part: one problem, one answer."""
    problem = make(150, 120, rank=2, corruption=0.05)
    default = irpca.solve(problem.M, rank=2).L.dense()
    for name in ("pcp", "altproj", "accaltproj", "ircur"):
        assert distance(run(name, problem).L.dense(), default) <= 1e-7
    for name in ("rpca_gd", "scaledgd"):
        gradient = run(name, problem, corruption=0.12, max_iter=1000)
        assert distance(gradient.L.dense(), default) <= 1e-7


def test_all_with_features_agree():
    problem = make_problem(200, 160, 10, 8, rank=3, corruption=0.2)
    default = irpca.solve(problem.M, problem.F1, problem.F2).L.dense()
    for name in ("trimmed", "pcpf"):
        assert distance(irpca.solve(problem.M, problem.F1, problem.F2, solver=name).L.dense(), default) <= 1e-7


# How a run ends


@every_method
def test_without_S(solved, problem, name):
    result, full = run(name, problem, sparse=False), solved(name)[0]
    assert result.S is None
    assert result.reads == pytest.approx(full.reads - 1)
    np.testing.assert_array_equal(result.L.dense(), full.L.dense())
    assert np.isfinite(result.corruption)


@every_method
def test_it_ends_when_it_is_told_to(problem, name):
    """After one iteration, or when a callback says so; noise, so that few are done by then.

    With features of both sides two steps of least squares are enough for the default; for "trimmed" it is known then
    that there is no exact fit.
    """
    M = problem.M + 1e-3 * np.random.default_rng(0).standard_normal(problem.M.shape)
    result = run(name, problem, M, max_iter=1)
    ends = {"irpca": Status.CONVERGED, "bayes": Status.CONVERGED, "trimmed": Status.SATURATED}
    assert result.n_iter == 1 and result.status is ends.get(name, Status.MAX_ITER)
    assert np.isfinite(result.L.dense()).all() and result.L.shape == result.S.shape == problem.M.shape
    assert result.status.name in result.summary() and name in result.summary()
    seen = []

    def stop(state, history):
        seen.append(state)
        return len(seen) == 2

    result = run(name, problem, M, callbacks=stop)
    assert result.status is Status.STOPPED and len(result.history) == len(seen) == 2
    np.testing.assert_array_equal(result.L.dense(), seen[-1].L.dense())


@every_method
def test_small_matrices(name):
    """Spare columns of subspaces, drawn rows, counts per column: all of them meet their limits here."""
    for shape in ((2, 2), (3, 30), (30, 3)):
        p = gaussian(*shape, rank=1, corruption=0.1, d=2)
        result = run(name, p, **({} if SOLVERS[name].rank == "found" else {"rank": min(p.F1.shape[1], *shape)}))
        assert np.isfinite(result.L.dense()).all() and result.S.shape == shape


@every_method
def test_the_estimator(problem, solved, name):
    solver = SOLVERS[name]
    model = InductiveRobustPCA("auto" if solver.rank == "found" else 2, solver=name, solver_options=OPTIONS[name])
    F = {"row_features": problem.F1, "col_features": problem.F2} if solver.features else {}
    model.fit(problem.M, **F)
    np.testing.assert_array_equal(model.low_rank_.dense(), solved(name)[0].L.dense())
    assert model.converged_ and model.rank_ == 2 and model.components_.shape == (2, 100)
    assert name in model.summary()
    if name in ROBUST:
        scores = model.transform(problem.M[:7])
        assert distance(model.inverse_transform(scores), problem.L[:7]) <= 1e-6
    if solver.features:
        assert distance(problem.F1 @ model.W_ @ problem.F2.T, problem.L) <= 1e-8
    else:
        assert model.W_ is None


# What is refused, and what is told


@every_method
def test_what_every_method_refuses(problem, name):
    infinite = problem.M.copy()
    infinite[17, 3] = np.inf
    for M, told in (
        (np.zeros(problem.M.shape), "M is all zero: there is nothing to find"),
        (1e-120 * problem.M, "too large or too small to square in double precision; rescale M"),
        (1e120 * problem.M, "too large or too small to square in double precision; rescale M"),
        (infinite, "M holds infinite values; replace"),
    ):
        with pytest.raises(ValueError, match=told):
            run(name, problem, M)
    for rank in (0, 101, 2.0, True):
        with pytest.raises(ValueError, match="rank"):
            run(name, problem, rank=rank)
    with pytest.raises(TypeError, match=f"solver='{name}' takes no option sparsity; it takes"):
        run(name, problem, sparsity=0.1)
    if SOLVERS[name].rank == "needed":
        F = (problem.F1, problem.F2) if SOLVERS[name].features else ()
        most = problem.F1.shape[1] if F else 100
        with pytest.raises(ValueError, match=f"solver='{name}' needs the rank: pass rank=r with 1 <= r <= {most}"):
            irpca.solve(problem.M, *F, solver=name, **OPTIONS[name])


POSITIVE, BELOW_1 = "must be a number, positive and finite; got 0", "must be a number, positive and below 1; got 1"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("trimmed", {"F": ()}, "solver='trimmed' needs features of rows or columns; solver='irpca' does without"),
        ("irpca_iht", {"F": ()}, "needs features of rows or columns; solver='irpca' does without"),
        ("irpca_iht", {"variant": "printed"}, "variant='printed' is unknown; choose 'paper' or 'whitened'"),
        ("irpca_iht", {"decay": np.nan}, "decay must be a number, larger than 1 and finite; got nan"),
        ("irpca_iht", {"nu": -1e-9}, "nu must be a number, at least 0 and finite; got -1e-09"),
        ("irpca_iht", {"c_W": 0}, f"c_W {POSITIVE}"),
        ("pcpf", {"F": ()}, "needs features of rows or columns; solver='pcp' is the same without"),
        ("pcpf", {"program": "bleached"}, "program='bleached' is unknown; choose 'whitened' or 'raw'"),
        ("pcp", {"lam": 0}, f"lam {POSITIVE}"),
        ("pcp", {"growth": 0.9}, "growth must be a number, at least 1 and finite; got 0.9"),
        ("pcp", {"linf_bound": 0}, f"linf_bound {POSITIVE}"),
        ("altproj", {"beta": 0}, f"beta {POSITIVE}"),
        ("altproj", {"decay": 1}, f"decay {BELOW_1}"),
        ("accaltproj", {"beta": 0}, f"beta {POSITIVE}"),
        ("accaltproj", {"beta_init": 0}, f"beta_init {POSITIVE}"),
        ("accaltproj", {"decay": 1}, f"decay {BELOW_1}"),
        ("ircur", {"sampling": 0}, f"sampling {POSITIVE}"),
        ("ircur", {"decay": 1}, f"decay {BELOW_1}"),
        ("rpca_gd", {"corruption": None}, "solver='rpca_gd' needs the share of outliers: pass corruption=…"),
        ("rpca_gd", {"corruption": 1.0}, "corruption must be a number, at least 0 and below 1; got 1.0"),
        ("rpca_gd", {"inflation": 0.9}, "inflation must be a number, at least 1 and finite; got 0.9"),
        ("rpca_gd", {"step_size": 0}, f"step_size {POSITIVE}"),
        ("scaledgd", {"corruption": None}, "solver='scaledgd' needs the share of outliers: pass corruption=…"),
    ],
)
def test_what_a_method_refuses(problem, name, options, told):
    given = {"rank": "auto" if SOLVERS[name].rank == "found" else 2} | OPTIONS[name] | options
    F = given.pop("F", (problem.F1, problem.F2)) if SOLVERS[name].features else ()
    with pytest.raises(ValueError) as error:
        irpca.solve(problem.M, *F, solver=name, **given)
    assert told in str(error.value)


@pytest.mark.parametrize(("name", "error"), [("pcp", 1e-6), ("altproj", 1e-8), ("accaltproj", 1e-8)])
def test_recovers_from_errors_a_thousand_times_as_large(name, error):
    """Residuals are measured beside L: beside M, which the errors make large, all would look small."""
    problem = conditioned(200, 160, corruption=0.05, outlier_scale=1e3)
    recovers(problem, run(name, problem), error)


def test_an_unknown_solver():
    with pytest.raises(ValueError, match=r"solver='rpca' is unknown; choose one of 'irpca', .*'pcpf', 'pcp', .*'pca'"):
        irpca.solve(np.eye(3), solver="rpca")


@pytest.mark.parametrize("name", [name for name in FIELD if not SOLVERS[name].features])
def test_features_that_are_not_used_are_told(problem, solved, name):
    given = irpca.solve(
        problem.M, problem.F1, rank=2 if SOLVERS[name].rank == "needed" else "auto", solver=name, **OPTIONS[name]
    )
    assert given.doubts[0].text == f"solver='{name}' does not use features: those given had no effect"
    assert given.W is None
    np.testing.assert_array_equal(given.L.dense(), solved(name)[0].L.dense())


@pytest.mark.parametrize("name", [name for name in FIELD if SOLVERS[name].rank == "found"])
def test_a_rank_that_is_not_used_is_told(problem, name):
    result = run(name, problem, rank=5)
    assert result.doubts[0].text == f"solver='{name}' takes no rank: it finds its own, and rank=5 was not used"
    recovers(problem, result)


@pytest.mark.parametrize("name", [name for name in ROBUST if SOLVERS[name].rank not in ("found", "needed")])
def test_the_rank_is_found_where_none_is_given(problem, name):
    recovers(problem, run(name, problem, rank="auto"))


# Holes


def holey(problem, share, seed=1):
    return np.where(np.random.default_rng(seed).random(problem.M.shape) < share, np.nan, problem.M)


@pytest.mark.parametrize("name", GET_OVER_HOLES)
def test_holes_do_not_matter_to_most(problem, name):
    M = holey(problem, 0.1)
    result, other = (run(name, problem, M, engine=engine) for engine in (observed(M), "reference"))
    assert result.n_observed == np.count_nonzero(~np.isnan(M)) < M.size
    assert result.status is Status.CONVERGED and result.rank == 2
    assert problem.relative_error(result.L) <= 1e-8
    np.testing.assert_array_equal(result.S.toarray() != 0, problem.corrupted & ~np.isnan(M))
    assert (result.status, result.n_iter, result.reads) == (other.status, other.n_iter, other.reads)
    assert distance(result.L.dense(), other.L.dense()) <= 1e-11


def test_pca_takes_holes_for_zeros(problem):
    """As its page says: it is there to be compared with."""
    M = holey(problem, 0.1)
    filled = irpca.solve(np.nan_to_num(M), rank=2, solver="pca")
    assert distance(run("pca", problem, M).L.dense(), filled.L.dense()) <= 1e-9


def test_ircur_refuses_holes(problem, monkeypatch):
    """Those too few to be seen at a glance, too: the engine meets them while it reads."""
    M = problem.M.copy()
    M[17, 3] = np.nan
    told = r"solver='ircur' needs complete rows and columns.*1 in all.*such as 'irpca'"
    for engine in ("auto", observed(M), "reference"):
        with pytest.raises(ValueError, match=told):
            run("ircur", problem, M, engine=engine)
    monkeypatch.setattr("irpca.engines.holes.seem_there", lambda M: False)
    with pytest.raises(ValueError, match=told):
        run("ircur", problem, M)


# Failure


@pytest.mark.parametrize("name", [name for name in ROBUST if not SOLVERS[name].features])
def test_nothing_fails_silently(name):
    """Of some the threshold falls until S holds everything, and L stands still then: no convergence in our words."""
    problem = conditioned(150, 120, corruption=0.6)
    result = run(name, problem)
    assert problem.relative_error(result.L) > 0.1
    assert not result.converged or result.doubts
    if name in ("altproj", "accaltproj", "ircur"):
        assert result.status is Status.SATURATED
        assert any("count as outliers (S)" in doubt.text for doubt in result.doubts)
