"""``python -m experiments --quick``: what it writes and that it is right, never how fast anything is."""

import io
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import irpca
from irpca.solvers import SOLVERS

ROOT = Path(__file__).parent.parent
NAMES = ("fig1a", "fig1b", "fig1c", "fig1d", "fig2", "phase", "scaling")
SOME = "irpca", "irpca-auto", "iht-whitened", "iht-paper", "altproj", "pca"
ENDS = {"RECOVERED", "BUDGET", "CONVERGED", "SATURATED", "DIVERGED"}


@pytest.fixture(scope="module")
def load():
    """Import a module of experiments/, which is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield lambda name: import_module(f"experiments.{name}")


@pytest.fixture(scope="module")
def quick(load, tmp_path_factory):
    """The folder of a quick run, which is made once: of all methods in the first experiment, of some in others."""
    folder = tmp_path_factory.mktemp("quick")

    def run(name):
        if not (folder / f"{name}.csv").exists():
            assert load("__main__").main([name, "--quick", "--out", str(folder), *chosen(name)]) == 0
        return folder

    return run


def chosen(name):
    return [] if name == NAMES[0] else ["--methods", ",".join(SOME)]


@pytest.fixture
def small(load):
    return load("problems").square(100, 5, 2, 0.1)


def records_of(load, path):
    return load("ledger").records(load("ledger").Ledger(path).rows)


def measured(load, name, case, **rules):
    method = load("methods").EVERYONE[name]
    return load("harness").measure(method, load("problems").make(case, 0), 0, load("harness").Rules(10.0, **rules))


def test_every_solver_takes_part(load):
    measured = set(SOLVERS) - {"bayes"}  # the default, where there is noise
    assert {method.solver for method in load("methods").METHODS.values()} == measured
    for method in load("methods").METHODS.values():
        assert method.features == SOLVERS[method.solver].features
        assert method.rank or SOLVERS[method.solver].rank != "needed"


@pytest.mark.parametrize("name", NAMES)
def test_quick_run(load, quick, name, monkeypatch, capsys):
    folder = quick(name)
    experiment = load("registry").EXPERIMENTS[name].small()
    path, picture = folder / f"{name}.csv", folder / f"{name}.png"
    assert path.read_text().splitlines()[0] == ",".join(load("ledger").COLUMNS)
    records = records_of(load, path)
    ran = [record["method"] for record in records]
    every = {method.name for method in experiment.methods}
    assert set(ran) == (every if name == NAMES[0] else every & set(SOME))
    assert ran.count("irpca") == len(experiment.cases)

    for record in records:
        assert (record["experiment"], record["seed"], record["numpy"]) == (name, 0, np.__version__)
        assert record["cores"] >= 1
        assert record["status"] in ENDS or record["status"].startswith("ERROR: ")
        for criterion in ("residual", "recovery", "sparse"):
            if np.isfinite(record[f"seconds_{criterion}"]):
                assert 0 < record[f"seconds_{criterion}"] <= record["seconds"]
                assert record[f"iterations_{criterion}"] <= record["iterations"]
                assert record[f"reads_{criterion}"] <= record["reads"]
        if record["method"] == "irpca":
            assert np.isfinite(record["seconds_recovery"])
            assert max(record["error"], record["residual"], record["s_error"]) < 1e-9
            assert (record["precision"], record["recall"]) == (1, 1)
            assert record["density"] == pytest.approx(record["corruption"], rel=0.25)
        if record["method"] == "pca":
            assert record["error"] > 1e-3
            assert record["density"] == 0

    assert picture.stat().st_size < 200_000
    assert (imread(picture)[..., :3].min(axis=2) < 0.9).mean() > 0.01  # inked

    # Nothing is run twice, and the figure needs the CSV alone.
    before = path.read_bytes()
    monkeypatch.setattr(irpca, "solve", None)
    picture.unlink()
    capsys.readouterr()
    assert load("__main__").main([name, "--quick", "--out", str(folder), *chosen(name)]) == 0
    assert capsys.readouterr().out.startswith("0 new rows")
    assert path.read_bytes() == before
    assert picture.exists()


def test_drawing_solves_nothing(load, quick, monkeypatch, tmp_path):
    path = tmp_path / "fig1d.csv"
    lines = (quick("fig1d") / "fig1d.csv").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]))
    monkeypatch.setattr(irpca, "solve", None)
    assert load("__main__").main(["fig1d", "--draw", "--out", str(tmp_path)]) == 0
    assert path.read_text() == "".join(lines[:5])
    assert (tmp_path / "fig1d.png").exists()
    with pytest.raises(SystemExit, match="no rows to draw"):
        load("__main__").main(["fig1c", "--draw", "--out", str(tmp_path)])


def test_a_run_goes_on_where_it_stopped(load, quick, tmp_path, capsys):
    lines = (quick("fig1d") / "fig1d.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if ",irpca" in line or ",iht" in line]
    path = tmp_path / "fig1d.csv"
    path.write_text(lines[0] + "".join(kept[:2]) + kept[2][:40])  # the third was being written
    words = ["fig1d", "--quick", "--out", str(tmp_path), "--methods", "irpca,irpca-auto,iht-whitened,iht-paper"]
    assert load("__main__").main(words) == 0
    assert "6 new rows, 8 in" in capsys.readouterr().out
    written = path.read_text().splitlines(keepends=True)
    assert written[:3] == [lines[0], *kept[:2]]
    keys = [[record[name] for name in load("ledger").KEY] for record in records_of(load, path)]
    assert len(keys) == len(set(map(tuple, keys))) == 8


def test_the_ledger(load, small, tmp_path):
    ledger, path = load("ledger"), tmp_path / "new" / "rows.csv"
    key = {"experiment": "e", **asdict(small), "method": "irpca", "seed": 0, "settings": 1}
    book = ledger.Ledger(path)
    assert key not in book
    book.append({**key, "status": 'ERROR: "one", two', "seconds": 1 / 3, "error": float("nan")})
    assert key in book
    assert {**key, "settings": 2} not in book
    with pytest.raises(KeyError, match="colour"):
        book.append({**key, "colour": "blue"})
    again = ledger.Ledger(path)
    assert again.rows == book.rows
    assert key in again
    (record,) = ledger.records(again.rows)
    assert record["status"] == 'ERROR: "one", two'
    assert record["seconds"] == pytest.approx(1 / 3, rel=1e-4)
    assert np.isnan(record["error"])

    path.write_text("experiment,n1")  # a header that was being written
    book = ledger.Ledger(path)
    book.append(key)
    assert ledger.Ledger(path).rows == book.rows
    path.write_text("experiment,n1\n")
    with pytest.raises(ValueError, match="other columns"):
        ledger.Ledger(path)


def test_evaluation_is_not_on_the_clock(load, small, monkeypatch):
    plain = measured(load, "iht-whitened", small)
    judge = load("harness").Evaluator.judge
    monkeypatch.setattr(load("harness").Evaluator, "judge", lambda self, state: time.sleep(0.2) or judge(self, state))
    started = time.perf_counter()
    slow = measured(load, "iht-whitened", small)
    assert time.perf_counter() - started > 0.2 * slow["iterations"]
    assert slow["iterations"] >= 5
    assert slow["seconds_residual"] <= slow["seconds"] < 0.2
    assert {key: slow[key] for key in ("iterations", "reads", "error")} == {
        key: plain[key] for key in ("iterations", "reads", "error")
    }


def test_the_first_iterate_counts_and_the_last_read_is_added(load, small):
    harness, instance = load("harness"), load("problems").make(small, 0)
    evaluator = harness.Evaluator(instance, harness.Rules(10.0, to_own_end=True))
    nothing, history = irpca.LowRank.zero(instance.M.shape), irpca.History()
    for L, seconds in ((nothing, 1.0), (instance.L, 2.0), (nothing, 3.0), (instance.L, 4.0)):
        state = irpca.result.State(L, instance.floor, step=1.0)
        history.append(state, seconds, reads=10 * seconds)
        assert not evaluator(state, history)
        assert evaluator.errors["recovery"] == pytest.approx(float(L is nothing), abs=1e-12)
    # With a threshold at rounding, S takes what L leaves: the paper's criterion holds for L = 0, too.
    assert (evaluator.reached["residual"].iterations, evaluator.reached["residual"].errors["recovery"]) == (1, 1.0)
    assert (evaluator.reached["recovery"].iterations, evaluator.reached["recovery"].reads) == (2, 20)
    assert evaluator.reached["recovery"].seconds == pytest.approx(2, abs=0.5)

    row = measured(load, "iht-whitened", small)
    assert row["iterations_residual"] < row["iterations_recovery"] == row["iterations"]
    for criterion in ("residual", "recovery"):  # one read an iteration, and one for S
        assert row[f"reads_{criterion}"] == row[f"iterations_{criterion}"] + 1
    assert row["seconds_residual"] < row["seconds_recovery"] == pytest.approx(row["seconds"], rel=1e-9)


def test_the_residual_is_the_papers(load, small):
    harness, instance = load("harness"), load("problems").make(small, 0)
    result = irpca.solve(instance.M, instance.F1, instance.F2, rank=2, solver="irpca_iht", max_iter=4)
    state = irpca.result.State(result.L, result.zeta, step=1.0)
    left = instance.M - result.L.dense() - result.S
    errors = harness.Evaluator(instance, harness.Rules(1.0, sparse=True)).judge(state)
    assert errors["residual"] == pytest.approx(np.linalg.norm(left) / np.linalg.norm(instance.M), rel=1e-9)
    S = instance.S.toarray()
    assert errors["sparse"] == pytest.approx(np.linalg.norm(result.S - S) / np.linalg.norm(S), rel=1e-9)
    L = instance.L.dense()
    assert errors["recovery"] == pytest.approx(np.linalg.norm(result.L.dense() - L) / np.linalg.norm(L), rel=1e-9)
    plain = harness.Evaluator(instance, harness.Rules(1.0)).judge(state)
    assert plain == pytest.approx({key: errors[key] for key in plain}, rel=1e-12)


def test_the_papers_criterion_is_met_by_a_wrong_answer(load):
    case = load("problems").square(300, 20, 5, 0.05)
    row = measured(load, "iht-paper", case)
    assert "seconds_residual" in row
    assert "seconds_recovery" not in row
    assert row["error_residual"] > 0.01
    assert row["status"] == "SATURATED"
    assert "seconds_recovery" in measured(load, "iht-whitened", case)


def test_a_run_ends_with_its_budget_or_at_its_own_end(load, small):
    harness = load("harness")
    method, instance = load("methods").METHODS["rpca_gd"], load("problems").make(small, 0)
    row = harness.measure(method, instance, 0, harness.Rules(1e-9))
    assert (row["status"], row["iterations"]) == ("BUDGET", 1)
    row = measured(load, "iht-whitened", small, to_own_end=True)
    assert row["status"] == "CONVERGED"
    assert row["iterations"] > row["iterations_recovery"]


def test_refusals_are_results_where_they_are_expected(load, small, monkeypatch):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(irpca, "solve", refuse)
    error = ValueError("too much,\n  really")
    assert measured(load, "irpca", small, refusals=True) == {"status": "ERROR: ValueError: too much, really"}
    with pytest.raises(ValueError, match="too much"):
        measured(load, "irpca", small)
    error = TypeError("a mistake of ours")
    with pytest.raises(TypeError):
        measured(load, "irpca", small, refusals=True)


def test_the_oracle_reads_once(load, small):
    row = measured(load, "oracle", small)
    assert (row["reads"], row["error"], row["recall"], row["precision"]) == (1, 0, 1, 1)
    assert row["seconds_recovery"] == row["seconds"] > 0


def fake_runs(load, monkeypatch, experiment, outcome, tmp_path, methods=("irpca", "pcp")):
    """Run without solving; ``outcome(task)`` says what was measured. Returns what was run, in its order."""
    done = []

    def perform(task):
        done.append(task)
        return task, outcome(task), 0.01

    monkeypatch.setattr(load("running"), "perform", perform)
    book = load("ledger").Ledger(tmp_path / "fake.csv")
    methods = [load("methods").METHODS[name] for name in methods]
    assert load("running").run(experiment, book, methods) == len(done)
    return done


def test_seeds_are_interleaved(load, monkeypatch, tmp_path):
    experiment = replace(load("registry").EXPERIMENTS["fig1b"].small(), seeds=2)
    done = fake_runs(load, monkeypatch, experiment, lambda task: {"status": "RECOVERED"}, tmp_path)
    assert [(task.case, task.seed, task.method) for task in done] == [
        (case, seed, method) for case in experiment.cases for seed in (0, 1) for method in ("irpca", "pcp")
    ]
    assert fake_runs(load, monkeypatch, experiment, lambda task: {"status": "RECOVERED"}, tmp_path) == []


def test_more_corruption_is_not_tried_after_two_failures(load, monkeypatch, tmp_path):
    experiment = replace(load("registry").EXPERIMENTS["fig1a"], seeds=2)
    limits = {"irpca": 0.9, "pcp": 0.15}

    def outcome(task):
        right = task.case.corruption < limits[task.method]
        return {"status": "RECOVERED", "seconds_recovery": 1.0} if right else {"status": "CONVERGED"}

    done = Counter((t.method, t.case.corruption) for t in fake_runs(load, monkeypatch, experiment, outcome, tmp_path))
    levels = [case.corruption for case in experiment.cases]
    assert [level for level in levels if done["irpca", level] == 2] == levels
    assert [level for level in levels if done["pcp", level] == 2] == [0.05, 0.1, 0.2, 0.3]
    assert sum(done.values()) == 2 * len(levels) + 8


def test_phase_judges_the_end(load, monkeypatch, tmp_path):
    experiment = replace(load("registry").EXPERIMENTS["phase"], seeds=1)
    done = fake_runs(load, monkeypatch, experiment, lambda task: {"status": "BUDGET", "error": 0.5}, tmp_path)
    assert {task.case.corruption for task in done} == {0.05, 0.1}
    assert len(done) == 2 * 2 * 9  # where the two sweeps cross they share a run
    (tmp_path / "fake.csv").unlink()
    done = fake_runs(load, monkeypatch, experiment, lambda task: {"status": "CONVERGED", "error": 1e-4}, tmp_path)
    assert len(done) == 2 * len(experiment.cases) == 2 * 10 * 9


def test_larger_sizes_are_not_tried_beyond_the_budget(load, monkeypatch, tmp_path):
    experiment = replace(load("registry").EXPERIMENTS["scaling"], seeds=2)

    def outcome(task):
        over = task.case.n1 >= 4000 or task.case.rank >= 10
        return {"status": "BUDGET" if over and task.method == "pcp" else "RECOVERED"}

    done = fake_runs(load, monkeypatch, experiment, outcome, tmp_path)
    sizes = {(t.case.n1, t.case.d1, t.case.rank) for t in done if t.method == "pcp"}
    assert {n for n, d, r in sizes if (d, r) == (50, 5)} == {500, 1000, 2000, 4000}
    assert {r for n, d, r in sizes if (n, d) == (2000, 50)} == {2, 5, 10}
    assert {d for n, d, r in sizes if (n, r) == (2000, 5)} == {10, 20, 50, 100, 200}
    assert len({t.case for t in done if t.method == "irpca"}) == 13


def texts(figure, kind):
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_gid() == kind]


def curve(axes, method):
    (line,) = [line for line in axes.lines if line.get_gid() == method]
    return line.get_ydata()


def test_failures_are_drawn(load, small):
    def record(method, level, seed, seconds, error_residual=0.0):
        case = asdict(replace(small, corruption=level))
        reached = {"seconds_residual": 2.0, "seconds_recovery": seconds, "error": 0.1, "error_residual": error_residual}
        machine = {"cpu": "abacus", "cores": 3.0, "commit": "abc123", "numpy": "2.0"}
        return {**case, **machine, **reached, "method": method, "seed": seed, "status": "x"}

    nan = float("nan")
    records = [record("irpca", level, seed, 1.0 + seed) for level in (0.1, 0.2, 0.3) for seed in range(5)]
    records += [record("pcp", 0.1, seed, nan if seed < 2 else 4.0) for seed in range(5)]
    records += [record("pcp", 0.2, seed, nan if seed < 3 else 4.0) for seed in range(5)]
    records += [record("altproj", level, seed, nan, 0.5) for level in (0.1, 0.2) for seed in range(5)]
    figure = load("registry").EXPERIMENTS["fig1a"].draw(records)
    assert Counter(texts(figure, "failed")) == {"×2": 1, "×3": 1, "×": 2}
    assert Counter(texts(figure, "wrong")) == {"○": 2}
    assert len(texts(figure, "not run")) == 2 * 2  # at 0.3, by two methods, in two strips
    recovery = figure.axes[4]
    assert curve(recovery, "irpca") == pytest.approx([3.0, 3.0, 3.0])
    assert curve(recovery, "pcp") == pytest.approx([4.0, nan], nan_ok=True)
    assert curve(recovery, "altproj") == pytest.approx([nan, nan], nan_ok=True)
    title = figure.get_suptitle()
    for told in ("sparsity", "n = 100", "d = 5", "5 seeds", "abacus, 3 cores", "abc123"):
        assert told in title
    assert "z/n" not in title


def test_phase_maps(load):
    phase = load("phase")
    records = [{"corruption": 0.1, "rank": 2.0, "error": error} for error in (1e-9, 1.0, float("nan"))]
    shares = phase.share_recovered(records, "rank", [2.0, 3.0], [0.1, 0.2])
    assert shares == pytest.approx(np.array([[1 / 3, np.nan], [np.nan, np.nan]]), nan_ok=True)


def test_the_table(load, quick, tmp_path, capsys, monkeypatch):
    main = load("__main__").main
    for name in ("fig1a", "phase", "scaling"):
        (tmp_path / f"{name}.csv").write_text((quick(name) / f"{name}.csv").read_text())
    (tmp_path / "peers.csv").write_text((ROOT / "experiments" / "results" / "peers.csv").read_text())
    monkeypatch.setattr(irpca, "solve", None)
    capsys.readouterr()
    assert main(["table", "--out", str(tmp_path), "--check"]) == 1
    assert main(["table", "--out", str(tmp_path)]) == 0
    assert main(["table", "--out", str(tmp_path), "--check"]) == 0
    page = tmp_path / "methods-table.md"
    assert page.read_text() in capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    header, *rows = rows
    assert [row[0] for row in rows] == [method.label for method in load("methods").METHODS.values()]
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert found["irpca"]["ratio"] == found["irpca"]["ratio at n = 100"] == "1"
    assert found["irpca"]["stops recovering at"] == "> 50%"
    assert found["PCA"]["stops recovering at"] == "10%"
    assert found["PCA"]["seconds"] == "–"
    assert float(found["IRPCA-IHT, whitened"]["reads of M"]) == 9

    page.write_text(page.read_text().replace("> 50%", "> 90%"))
    assert main(["table", "--out", str(tmp_path), "--check"]) == 1
    with pytest.raises(SystemExit, match="run python -m experiments fig1a first"):
        main(["table", "--out", str(tmp_path / "empty")])


def test_the_table_in_the_docs_is_what_the_kept_results_say(load):
    assert load("__main__").main(["table", "--check"]) == 0


def test_a_file_that_is_spoilt_is_named(load, quick, tmp_path, capsys):
    main = load("__main__").main
    path = tmp_path / "fig1a.csv"
    text = (quick("fig1a") / "fig1a.csv").read_text()
    path.write_text(text.replace(",0.1,", ",a lot,", 1))
    with pytest.raises(SystemExit, match=r"fig1a.csv, line \d+, cannot be read .*a lot"):
        main(["fig1a", "--draw", "--out", str(tmp_path)])
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit, match=r"fig1a.csv is not text"):
        main(["fig1a", "--draw", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        main(["fig1a", "--quick", "--out", str(path)])
    assert "is no folder to write to" in capsys.readouterr().err


def test_where_a_method_stops_recovering(load):
    breaks_down = load("table").breaks_down
    runs = [{"corruption": level, "error": error} for level in (0.1, 0.2) for error in (1e-9, 1e-9, 1.0)]
    assert breaks_down(runs) == "> 20%"
    assert breaks_down([*runs, *[{"corruption": 0.3, "error": e} for e in (1e-9, 1.0, 1.0)]]) == "30%"
    assert breaks_down([]) == "–"


@pytest.mark.parametrize("scale", ["printed", "rescaled"])
def test_completed_ratings(load, scale):
    problems = load("problems")
    case = problems.Case(60, 50, 5, 6, 3, 0.2, 1.0, "stars", scale)
    one, two = problems.make(case, 0), problems.make(case, 1)
    unit = 3 / np.sqrt(60 * 50)
    L, S = one.L.dense(), one.S.toarray()
    np.testing.assert_allclose(one.M, L + S, atol=1e-12)
    assert (5 * unit <= np.abs(one.S.data)).all() and (np.abs(one.S.data) <= 10 * unit).all()
    assert 0.3 < (one.S.data > 0).mean() < 0.7
    assert one.S.nnz / S.size == pytest.approx(0.2, abs=0.03)
    for F, span in ((one.F1, L), (one.F2, L.T)):
        np.testing.assert_allclose(F.T @ F, np.eye(F.shape[1]), atol=1e-12)
        assert np.linalg.norm(span - F @ (F.T @ span)) < 1e-12 * np.linalg.norm(L)
    assert np.linalg.norm(one.F1.T @ L @ one.F2, 2) == pytest.approx(one.W_norm, rel=1e-12)
    if scale == "rescaled":
        assert np.abs(L).max() == pytest.approx(10 * unit, rel=1e-12)
    else:
        assert np.abs(L).mean() == pytest.approx(3, abs=0.5)  # stars
    assert two.L.dense() == pytest.approx(L, abs=1e-12)  # one completion, new features and outliers
    assert not np.allclose(two.F1, one.F1)
    assert not np.array_equal(two.S.toarray() != 0, S != 0)


def test_what_methods_are_told(load):
    problems = load("problems")
    case = problems.square(80, 6, 3, 0.1)
    instance = problems.make(case, 4)
    problem = irpca.datasets.make_problem(80, 80, 6, 6, 3, 0.1, random_state=4)
    assert instance.L.dense() == pytest.approx(problem.L, abs=1e-12)
    methods = load("methods").METHODS
    assert methods["iht-paper"].options(instance)["c_W"] == pytest.approx(np.linalg.norm(problem.W, 2), rel=1e-12)
    share = max(problem.corrupted.sum(axis=0).max(), problem.corrupted.sum(axis=1).max()) / 80
    mean = problem.corrupted.mean()
    assert share / 2 < mean < share / 1.5  # else one of the two would not be seen
    assert methods["scaledgd"].options(instance) == {"corruption": pytest.approx(mean, rel=1e-12)}
    assert methods["rpca_gd"].options(instance) == {"corruption": pytest.approx(share / 1.5, rel=1e-12)}


def test_workers_keep_to_their_own_cores(load, tmp_path):
    cores = len(os.sched_getaffinity(0))
    shares = load("running").core_shares(cores)
    assert [len(share) for share in shares] == [1] * cores
    assert len(set().union(*shares)) == cores
    with pytest.raises(ValueError, match=f"{cores + 1} workers on {cores} cores"):
        load("running").core_shares(cores + 1)

    workers = min(2, cores)
    words = ["fig1d", "--quick", "--out", str(tmp_path), "--methods", "irpca,iht-paper", "--workers", str(workers)]
    environment = {**os.environ, "IRPCA_COMMIT": "copied"}
    command = [sys.executable, "-W", "error", "-m", "experiments", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = records_of(load, tmp_path / "fig1d.csv")
    assert len(records) == 4
    assert {record["cores"] for record in records} == {cores // workers}
    assert {record["commit"] for record in records} == {"copied"}
    assert len(done.stderr.splitlines()) == 4  # no terminal: a line per run


def test_options(load, capsys):
    options = load("__main__").options
    chosen = options(["fig1a", "--quick", "--methods", "pcp,irpca"])
    assert chosen.out.is_dir() and not chosen.out.is_relative_to(ROOT)
    assert chosen.methods == ["pcp", "irpca"]
    chosen.out.rmdir()
    refused = {
        "choose from": ["fig1a", "--methods", "magic"],
        "--seeds": ["fig1a", "--seeds", "0"],
        "--budget": ["fig1a", "--budget", "0"],
        "workers on": ["fig1a", "--workers", "9999"],
        "where the real results are": ["fig1a", "--quick", "--out", str(ROOT / "experiments" / "results")],
        "invalid choice": ["fig3"],
    }
    for complaint, words in refused.items():
        with pytest.raises(SystemExit):
            options(words)
        assert complaint in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(load):
    Progress = load("progress").Progress
    told = io.StringIO()
    progress = Progress("fig1a", Counter(fast=3, slow=2), stream=told)
    assert progress.remaining() is None
    progress.ran("fast", 1.0, "fast, seed 0: RECOVERED")
    assert progress.remaining() == pytest.approx(2 * 1 + 2 * 1)  # nothing is known of the slow one
    progress.ran("slow", 100.0, "slow, seed 0: BUDGET")
    assert progress.remaining() == pytest.approx(2 * 1 + 100)
    progress.skipped("slow")
    assert progress.remaining() == pytest.approx(2)
    first, second = told.getvalue().splitlines()
    assert first.endswith("fig1a 1/5  fast, seed 0: RECOVERED  4 s to go")
    assert second.endswith("fig1a 2/5  slow, seed 0: BUDGET  2 min to go")

    shown = Terminal()
    progress = Progress("phase", Counter(fast=2), workers=2, stream=shown)
    progress.ran("fast", 3.0, "done")
    assert shown.getvalue().startswith("\r")
    assert f"{'█' * 12}{'░' * 12} 1/2  done  2 s to go" in shown.getvalue()
    progress.close()
    assert shown.getvalue().endswith("\n")


@pytest.fixture(scope="module")
def trial(load, tmp_path_factory):
    """The rows of a quick run of an experiment that is held against a bar, which is made once."""
    folder, rows = tmp_path_factory.mktemp("trials"), {}

    def run(name):
        if name not in rows:
            rows[name] = load(name).run(folder, quick=True)
        return rows[name]

    return run


def test_holes(load, trial):
    rows = trial("holes")
    assert [row["part"] for row in rows] == ["forms"] * 4 + ["sweep"] * 2 + ["pattern"] * 2 + ["sides"] * 3
    assert max(row["error"] for row in rows) <= load("holes").RECOVERED
    assert {row["status"] for row in rows} == {"CONVERGED"}
    assert {row["observed"] / row["n1"] ** 2 for row in rows} == {0.2, 0.5}
    forms = rows[:4]
    assert {row["form"] for row in forms} == {"NaN", "mask", "sparse", "long table"}
    assert max(row["difference"] for row in forms) < 1e-13


def test_imperfect_features(load, trial):
    imperfect = load("imperfect")
    found = {(row["kind"], row["noise"], row["method"]): row for row in trial("imperfect")}
    for kind, extra in (("outside", 3), ("perfect", 0)):
        exact, noisy = found[kind, 0, "auto"], found[kind, 0.05, "auto"]
        assert exact["extra_rank"] == noisy["extra_rank"] == extra
        assert exact["error"] <= imperfect.EXACT
        assert noisy["error"] <= imperfect.EFFICIENT * found[kind, 0.05, "oracle"]["error"]
        best = min(found[kind, 0.05, method]["error"] for method in ("features only", "no features"))
        assert noisy["error"] <= 1.01 * best
    assert found["outside", 0, "features only"]["error"] > 0.5
    assert all(found["paper", 0, method]["error"] < imperfect.EXACT for method in imperfect.SECRET)


def test_dominance(load, tmp_path, capsys):
    dominance = load("dominance")
    rows = dominance.STUDY.main(["--quick", "--out", str(tmp_path / "dominance.csv")])
    assert [row["features"] for row in rows] == ["both"] * 4 + ["columns"] * 2 + ["none"] * 2
    assert max(row[name] for row in rows for name in ("irpca", "irpca-auto")) < 1e-12
    for row in rows:
        needing = [np.isnan(row[name]) for name in ("trimmed", "trimmed-auto", "iht-whitened", "iht-paper", "pcpf")]
        assert all(needing) if row["features"] == "none" else not any(needing)
    assert rows[0]["pcp"] < dominance.RECOVERED < rows[1]["pcp"]  # of 20 and of 60 % wrong cells
    assert "0 losses in 8 problems" in capsys.readouterr().out


def test_every_robust_solver_is_held_against_the_default(load):
    contenders = load("dominance").CONTENDERS.values()
    assert {method.solver for method in contenders} == set(SOLVERS) - {"pca", "bayes"}
    assert {method.solver for method in contenders if not method.rank} == {
        name for name, solver in SOLVERS.items() if solver.rank != "needed" and name != "bayes"
    }


def test_the_problems_of_dominance(load):
    dominance = load("dominance")
    for side, kind, low, high in (
        ("both", "away from 0", 0.5, 3),
        ("rows", "one-sided", 0.5, 5),
        ("none", "big", 50, 50),
    ):
        case = {"n": 80, "features": side, "d": 6, "rank": 3, "kind": kind, "share": 0.3, "seed": 1}
        problem = dominance.make(case)
        L, S = problem.L.dense(), problem.S.toarray()
        np.testing.assert_allclose(problem.M, L + S, atol=1e-12)
        assert np.abs(L).mean() == pytest.approx(1, rel=1e-12) and np.linalg.matrix_rank(L) == 3
        assert low <= np.abs(problem.S.data).min() and np.abs(problem.S.data).max() <= high
        assert (problem.S.data.min() > 0) == (kind == "one-sided")
        assert problem.mean_share == pytest.approx(0.3, abs=0.03)
        assert (problem.F1 is not None, problem.F2 is not None) == (side != "none", side == "both")
        Q1, Q2 = (np.eye(80) if F is None else F for F in (problem.F1, problem.F2))
        W = np.linalg.pinv(Q1) @ L @ np.linalg.pinv(Q2).T
        assert np.linalg.norm(Q1 @ W @ Q2.T - L) < 1e-10 * np.linalg.norm(L)
        assert problem.W_norm == pytest.approx(np.linalg.norm(W, 2), rel=1e-9)


def test_losses(load):
    dominance = load("dominance")
    setting = {"version": "v", "n": 60, "features": "both", "d": 6, "rank": 2, "kind": "big", "share": 0.2}
    good, bad = dominance.RECOVERED / 2, 2 * dominance.RECOVERED

    def row(seed, **errors):
        return setting | dict.fromkeys(dominance.CONTENDERS, bad) | {"seed": seed, "refused": np.nan} | errors

    rows = [
        row(0, irpca=good, pcp=good, altproj=good),  # pcp finds the rank: a loss of the default that must
        row(1, **{"irpca-auto": good}, pcp=good, altproj=good, ircur=good),
        row(2, irpca=np.inf, **{"irpca-auto": np.nan}, rpca_gd=good, pcpf=good),  # refused, not measured
        row(3, altproj=np.nan, pcpf=np.inf),  # nobody
        row(4, irpca=good, **{"irpca-auto": good}),  # the default alone
    ]
    found = [(row["seed"], default, others) for row, default, others in dominance.losses(rows)]
    assert found == [
        (0, "irpca-auto", ["pcp"]),
        (1, "irpca", ["altproj", "ircur"]),
        (2, "irpca", ["rpca_gd"]),
        (2, "irpca-auto", ["pcpf"]),
    ]
    *told, last = dominance.report(rows).splitlines()
    assert last == "4 losses in 5 problems"
    line = told[2].split()
    assert line[:4] == ["60", "both", "6", "2"] and "2/5" in line and "pcp 2/5, altproj 2/5, rpca_gd 1/5" in told[2]
    assert told[-1] == "n 60, features both, d 6, rank 2, kind big, share 0.2, seed 1"  # only if the rank is not told


def test_what_the_oracle_finds_is_least_squares(load):
    imperfect, n, noise = load("imperfect"), 200, 0.1
    instance = imperfect.make("unequal", n, 0.2, noise, 0)
    size = np.linalg.norm(instance.L)
    shares = np.linalg.svd(instance.U @ instance.V.T, compute_uv=False)[:4] ** 2 / size**2
    assert shares == pytest.approx([0.3, 0.15, 0.05, 0], abs=0.02)  # half of L, in these parts
    found, kept = imperfect.oracle(instance), ~instance.corrupted
    unknowns = 5 * (20 + 20 - 5) + 3 * (2 * n - 3)
    # Least squares leaves so much of the noise, and takes as much of it for L, whatever the design is.
    deviation = noise * size / n
    left = np.linalg.norm((instance.M - found)[kept])
    assert left == pytest.approx(deviation * np.sqrt(kept.sum() - unknowns), rel=0.02)
    assert instance.error(found) * size == pytest.approx(deviation * np.sqrt(unknowns / kept.mean()), rel=0.1)
    assert np.linalg.svd(found, compute_uv=False)[8] < 1e-10 * size


def test_spoilt_traffic(load, trial, monkeypatch):
    data = os.environ.get("IRPCA_DATA")  # a study that ran before may have set it, to a folder that is not there
    if not data or not os.path.isdir(os.path.join(data, "i94-traffic")):
        pytest.skip("IRPCA_DATA is not set")
    monkeypatch.delitem(load("traffic").MODELS, "default")
    monkeypatch.delitem(load("traffic").MODELS, "two free")
    rows = {row["model"]: row for row in trial("traffic")}
    features = rows["features"]
    assert features["robust"] <= load("traffic").BAR * features["clean"]
    assert features["least_squares"] > 1.5 * features["robust"]
    assert features["recall_large"] > 0.98 and features["precision_new"] > 0.95
    assert features["flagged"] == pytest.approx(0.11, abs=0.02)


def test_a_trial_goes_on_where_it_stopped(load, tmp_path, monkeypatch, capsys):
    trials = load("trials")
    asked = []

    def measure(case):
        asked.append(case["seed"])
        return {"status": "CONVERGED", "error": 1 / 3}

    def cases(quick):
        return [{"part": "a", "share": 0.1, "seed": seed} for seed in range(1 if quick else 3)]

    def report(rows):
        return f"worst {trials.worst(rows, 'error')} of {len(rows)}"

    trial = trials.Trial("fake", cases, measure, ("status", "error"), report)
    with pytest.raises(SystemExit, match="leave out --draw"):
        trial.run(tmp_path, draw=True)
    assert len(trial.run(tmp_path, seeds=2)) == 2
    assert asked == [0, 0, 1]  # the quick case first, for nothing but to compile
    asked.clear()
    rows = trial.run(tmp_path)
    assert asked == [0, 2]
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert capsys.readouterr().out.endswith("worst 0.33333 of 3\n")
    asked.clear()
    assert trial.run(tmp_path) == rows
    assert trial.run(tmp_path, draw=True) == rows
    assert asked == []
    assert rows[0]["commit"]


def test_trials_are_run_by_name(load, tmp_path, monkeypatch):
    told = {}
    main = load("__main__")
    fake = type("Fake", (), {"run": lambda self, folder, **options: told.update(folder=folder, **options)})()
    monkeypatch.setitem(main.TRIALS, "holes", fake)
    assert main.main(["holes", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert told == {"folder": tmp_path, "quick": True, "seeds": 2, "draw": False}


def test_the_numbers_behind_a_figure(load):
    case = dict.fromkeys(load("ledger").CASE, 1.0) | {"n1": 100.0}
    runs = [
        case | {"method": method, "corruption": share, "seconds_recovery": seconds, "seconds": 9.0, "error": error}
        for method, share, seconds, error in [
            ("pcp", 0.2, 3.0, 0.0),
            ("pcp", 0.2, float("nan"), 1e-4),
            ("irpca", 0.2, 0.5, 0.0),
            ("irpca", 0.2, 0.7, 0.0),
            ("irpca", 0.1, float("nan"), 1.0),
        ]
    ]
    summary = load("table").summary
    told, header, _, first, second = summary(runs).splitlines()
    assert told.startswith("seconds to ‖L − L*‖ ≤ 1e-6")
    assert header.split() == ["corruption", "irpca", "pcp"]
    assert first.split() == ["0.1", "0/1", "–"]  # nobody got there; not run
    assert second.split() == ["0.2", "0.6", "3", "1/2"]
    *_, last = summary(runs, to_own_end=True).splitlines()
    assert last.split() == ["0.2", "9", "9"]  # 1e-4 is right there
