"""Every figure and every study, as ``--quick`` runs them: that they work and are right, never how fast anything is."""

import shutil
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import irpca
from irpca.solvers import SOLVERS
from lab import rows, tables
from lab.experiments import harness, ledger, methods, peers, problems, ratings, reproduce, study, traffic
from lab.experiments import table as pages
from lab.experiments.__main__ import main
from lab.experiments.registry import EXPERIMENTS
from lab.tests import made_up

pytestmark = pytest.mark.usefixtures("short_fits")

SOME = "irpca,irpca-auto,iht-whitened,altproj,pca"
STUDIES = ("calibration", "dominance", "holes", "imperfect", "kept_right", "peers", "random_tables", "real_tables")
STUDIES += ("seeds", "sensitivity", "timing", "traffic")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_figure(name, tmp_path, monkeypatch, capsys):
    some = [] if name == "fig1a" else ["--methods", SOME]
    assert main([name, "--quick", "--out", str(tmp_path), *some]) == 0
    found = ledger.records(ledger.Ledger(tmp_path / f"{name}.csv").rows)
    experiment = EXPERIMENTS[name].small()
    everyone = {method.name for method in experiment.methods}
    assert {row["method"] for row in found} == (everyone & set(SOME.split(",")) if some else everyone)
    ours = [row for row in found if row["method"] == "irpca"]
    assert len(ours) == len(experiment.cases) and max(row["error"] for row in ours) < 1e-9
    assert all(row["seconds_recovery"] <= row["seconds"] for row in ours)
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
    monkeypatch.setattr(irpca, "solve", None)  # nothing is run twice
    capsys.readouterr()
    assert main([name, "--quick", "--out", str(tmp_path), *some]) == 0
    assert capsys.readouterr().out.startswith("0 new rows")


def test_every_solver_takes_part():
    assert {method.solver for method in methods.METHODS.values()} == set(SOLVERS) - {
        "bayes"
    }  # irpca, if there is noise


def test_evaluation_is_not_on_the_clock(monkeypatch):
    instance = problems.make(problems.square(100, 5, 2, 0.1), 0)
    rules = harness.Rules(10.0)
    harness.measure(methods.EVERYONE["iht-whitened"], instance, 0, rules)
    judge = harness.Evaluator.judge
    monkeypatch.setattr(harness.Evaluator, "judge", lambda self, state: time.sleep(0.1) or judge(self, state))
    row = harness.measure(methods.EVERYONE["iht-whitened"], instance, 0, rules)
    assert row["iterations"] >= 5 and row["seconds"] < 0.1 * row["iterations"]
    assert row["seconds_recovery"] <= row["seconds"] and row["error"] <= harness.RECOVERY


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(traffic, "load_i94_traffic", made_up.traffic)
    module, out = import_module(f"lab.experiments.{name}"), tmp_path / f"{name}.csv"
    run = module.main if hasattr(module, "main") else module.STUDY.main
    found = run(["--quick", "--out", str(out)])
    assert len(found) == len(rows.read(out)) > 0
    assert not [row["status"] for row in found if str(row.get("status")).startswith("ERROR")]
    said = capsys.readouterr().out
    run(["--quick", "--out", str(out), "--report"])
    assert capsys.readouterr().out == said
    if check := CHECKS.get(name):
        check(found)


def holes_are_filled(found):
    assert max(row["error"] for row in found) <= 1e-10
    assert {row["status"] for row in found} == {"CONVERGED"}


def the_free_part_is_found(found):
    auto = {row["kind"]: row for row in found if row["method"] == "auto" and row["noise"] == 0}
    assert (auto["outside"]["extra_rank"], auto["perfect"]["extra_rank"]) == (3, 0)
    assert max(row["error"] for row in auto.values()) <= 1e-6


def the_default_loses_nothing(found):
    assert max(row[name] for row in found for name in ("irpca", "irpca-auto")) < 1e-12


def spoilt_hours_are_found(found):
    assert min(row["recall"] for row in found) > 0.95
    assert all(row["robust"] < row["least_squares"] for row in found)


def who_is_not_installed_is_listed(found):
    assert {row["method"] for row in found} == set(peers.PEERS) - {"pca"} or len(found) > 10
    ours = [row for row in found if row["method"] == "irpca" and row["kind"] == "drawn"]
    assert ours and max(row["error"] for row in ours) < 1e-6
    for row in found:
        assert row["status"] == "done" or find_spec(peers.PEERS[row["method"]].package.split()[0]) is None


CHECKS = {
    "holes": holes_are_filled,
    "imperfect": the_free_part_is_found,
    "dominance": the_default_loses_nothing,
    "traffic": spoilt_hours_are_found,
    "peers": who_is_not_installed_is_listed,
}


def test_ratings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ratings, "load_movielens_100k", made_up.ratings)
    monkeypatch.setattr(ratings, "QUICK", ("clean", "attack", "cold-both"))
    ratings.main(["--quick", "--out", str(tmp_path)])
    found = rows.read(tmp_path / "ratings.csv")
    assert {row["scenario"] for row in found} == set(ratings.QUICK)
    assert all(0.3 < float(row["rmse"]) < 1.5 for row in found)
    finds = {row["way"]: float(row["auc"]) for row in rows.read(tmp_path / "ratings_found.csv")}
    assert finds["users: not as features say"] > 0.95
    said = capsys.readouterr().out
    monkeypatch.setattr(ratings, "load_movielens_100k", None)  # nothing is measured twice
    ratings.main(["--table", "--out", str(tmp_path)])
    assert capsys.readouterr().out == said and "Bars" in said


def count(case):
    return {"twice": 2 * case["seed"]}


def some_cases(quick):
    return [{"seed": seed} for seed in range(3)]


STUDY = study.Study("count", some_cases, count, ("twice",), lambda found: f"{len(found)} counted")


def test_a_study_goes_on_where_it_stopped_and_keeps_other_versions(tmp_path):
    out = tmp_path / "count.csv"
    out.write_text("version,seed,twice\nold,0,7\ncurrent,0,9\ncurrent,1")  # the last line was being written
    found = STUDY.main(["--out", str(out), "--resume"])
    assert [(row["version"], row["seed"], row["twice"]) for row in found] == [
        ("current", 0, 9), ("current", 1, 2), ("current", 2, 4), ("old", 0, 7),
    ]  # fmt: skip
    found = STUDY.main(["--out", str(out), "--seeds", "2"])
    assert [row["twice"] for row in found] == [0, 2, 7]
    with pytest.raises(SystemExit, match="2"):
        STUDY.main(["--quick", "--out", str(study.RESULTS / "count.csv")])


def test_processes_share_a_study_of_another_version(tmp_path):
    words = ["--against", str(Path(irpca.__file__).parents[1]), "--only-against", "--jobs", "2"]
    found = import_module("lab.experiments.random_tables").main(["--quick", "--out", str(tmp_path / "r.csv"), *words])
    assert {row["version"] for row in found} == {"0.1"} and len(found) == 6


def test_the_pages_hold_what_was_measured(tmp_path):
    assert pages.main(None, check=True) == 0
    for name in ("fig1a", "phase", "scaling", "peers"):
        shutil.copy(study.RESULTS / f"{name}.csv", tmp_path)
    assert pages.main(tmp_path, check=True) == 1  # there is no page yet
    assert pages.main(tmp_path, check=False) == pages.main(tmp_path, check=True) == 0


def test_tables():
    text = tables.text_table(["", "n", "word"], [["a", 0.12345, "x"], ["bb", "–", "long"]])
    assert text.splitlines() == ["        n  word", "--  -----  ----", "a   0.123  x", "bb      –  long"]
    assert tables.markdown_table(["a", "b"], [["1", "2"]], "---:") == "| a | b |\n| --- | ---: |\n| 1 | 2 |"


def test_make_reproduce_keeps_what_a_stage_prints(tmp_path, monkeypatch, capsys):
    for stage in reproduce.STAGES:
        assert find_spec(stage.words.split()[0]), stage
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path)
    good = reproduce.Stage("good", "this")
    bad = reproduce.Stage("bad", "calendar --no-such-option")
    absent = reproduce.Stage("absent", "this", lacking=lambda: "there is no moon")
    bad.kept.write_text("older\n")
    monkeypatch.setattr(reproduce, "STAGES", (good, bad, absent))
    assert reproduce.main([]) == 1
    said = capsys.readouterr().out
    assert "1 stages failed: bad" in said and "absent: not run, there is no moon" in said
    assert "irpca at " in good.origin() and "Beautiful is better than ugly." in good.kept.read_text()
    assert bad.kept.read_text() == "older\n"


def test_completed_ratings_have_the_features_of_the_paper():
    instance = problems.make(problems.Case(90, 70, 6, 7, 3, 0.1, 1.0, "stars", "rescaled"), 0)
    L = instance.L.dense()
    assert np.linalg.matrix_rank(L) == 3
    assert np.linalg.norm(instance.F1 @ (instance.F1.T @ L) - L) < 1e-10 * np.linalg.norm(L)
    assert np.abs(L).max() == pytest.approx(10 * 3 / np.sqrt(90 * 70))
    assert np.linalg.norm(instance.M - L - instance.S.toarray()) < 1e-12
