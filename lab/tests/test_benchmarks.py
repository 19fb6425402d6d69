"""Every benchmark at its tiny sizes: that it works and its answers are right, never how fast anything is."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

import irpca
from lab.benchmarks import cluster_cost, contenders, memory, problems, runner, stores
from lab.benchmarks.__main__ import LATEST, PAGE, main
from lab.benchmarks.pages import render
from lab.benchmarks.registry import CASES

DEFAULT = [name for name, case in CASES.items() if not case.asked]
EXACT = {"square": "solve, rank given", "tall": "solve, rank given", "rivals": "irpca", "field": "irpca"}


@pytest.mark.parametrize("name", [*DEFAULT, "out-of-core"])
def test_a_case(name, tmp_path, capsys):
    path = tmp_path / "found.json"
    assert main([name, "--quick", "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    found, case = content["cases"][name], CASES[name]
    assert case.sizes.keys() == case.quick.keys()
    assert found["machine"]["versions"]["numpy"] == np.__version__
    report = case.report(found)
    assert {len(row) for row in report.rows} == {len(report.header)}
    assert f"{name}: {report.title}" in capsys.readouterr().out
    if name in EXACT:
        for record in found["contenders"][EXACT[name]]["rounds"]:
            assert record["error"] < 1e-5 and not record["false"] and not record["missed"]
    if name == "noisy":
        for record in found["contenders"]['solve, rank="auto"']["rounds"]:
            assert record["error"] <= 1.05 * found["known_support_error"]
    if name == "out-of-core":
        assert found["error"] < 1e-6 and found["precision"] == found["recall"] == 1
    else:
        assert main(["table", "--json", str(path)]) == main(["table", "--check", "--json", str(path)]) == 0
        assert f"**{name}**: {report.title}." in path.with_suffix(".md").read_text()


def test_the_pages_hold_what_was_measured(capsys):
    assert main(["table", "--check"]) == 0
    assert PAGE.read_text() == render(CASES, json.loads(LATEST.read_text()), "python -m lab.benchmarks")
    page = cluster_cost.page(json.loads(cluster_cost.KEPT.read_text()), 100)
    assert cluster_cost.PAGE.read_text() == page


def test_problems_are_those_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setattr(problems, "PIECE", 4000)  # many pieces
    task = problems.make(tmp_path, 150, 90, d=6, rank=2, corruption=0.3)
    twin = irpca.datasets.make_problem(150, 90, d1=6, d2=6, rank=2)
    np.testing.assert_array_equal(task.F1, twin.F1)
    np.testing.assert_allclose(task.L.dense(), twin.L, atol=1e-6 * np.abs(twin.L).max())
    np.testing.assert_allclose(task.M, task.L.dense() + task.S.toarray(), atol=1e-12)
    sizes, unit = np.abs(task.S.data), 2 / np.sqrt(task.M.size)
    assert 4.99 * unit <= sizes.min() and sizes.max() <= 10.01 * unit
    assert task.S.nnz / task.M.size == pytest.approx(0.3, abs=0.02)
    noisy = problems.make(tmp_path / "noisy", 150, 90, d=6, rank=2, corruption=0.3, noisy=True)
    assert (noisy.M - task.M).std() == pytest.approx(noisy.noise, rel=0.05)


def test_a_store_is_what_its_recipe_says(tmp_path):
    recipe = stores.Recipe(130, 90, 6, 5, rank=2, corruption=0.1, chunk=50)
    M = stores.make(tmp_path / "some.zarr", recipe)
    off = np.abs(M[:] - recipe.known[2].dense())
    corrupted = np.zeros(M.shape, bool)
    for place in recipe.places():
        piece = corrupted[recipe.slices(place)]
        piece.flat[recipe.support(place)] = True
    assert corrupted.mean() == pytest.approx(0.1, abs=0.02)
    assert off[~corrupted].max() < 1e-6 * np.abs(M[:]).max() < off[corrupted].min()
    with pytest.raises(ValueError, match="another problem"):
        stores.make(tmp_path / "some.zarr", replace(recipe, seed=1))


def test_wrong_answers_show(tmp_path):
    task = problems.make(tmp_path, 40, 40, d=4, rank=2, corruption=0.1)
    found = contenders.check(task, contenders.oracle_read(task, 0))
    assert (found["false"], found["missed"]) == (0, 0) and max(found["error"], found["S_error"]) < 1e-13
    S = task.S.toarray()
    S[tuple(np.argwhere(S)[0])] = 0.0  # one forgotten
    S[tuple(np.argwhere(S == 0)[-2:].T)] = 1.0  # two made up
    L = irpca.LowRank(task.L.left, 1.5 * task.L.core, task.L.right)
    found = contenders.check(task, contenders.Answer(L, csr_array(S), 2))
    assert (found["false"], found["missed"]) == (2, 1) and found["error"] == pytest.approx(0.5, rel=1e-12)


def test_runs_are_interleaved_and_ratios_taken_round_by_round():
    calls = []
    runs = {name: lambda repeat, name=name: calls.append((name, repeat)) for name in "ABC"}
    runner.interleave(runs, 2, lambda name, answer: {})
    assert calls == [(name, repeat) for repeat in (0, 0, 1) for name in "ABC"]
    slow, fast = ([{"seconds": s, "cpu_seconds": 1.0} for s in seconds] for seconds in ((2, 30, 8), (1, 10, 2)))
    assert runner.times(slow, fast)["ratio"] == 3  # the ratio of the medians is 4


ALLOCATING = """
import numpy as np

class Task:
    load = staticmethod(lambda folder: 8 << 20 if folder.name == "large" else 8)

CONTENDERS = {"64 MiB": lambda task, seed: np.ones(task)}
"""


@pytest.mark.skipif(not memory.STATUS.exists(), reason="Linux only")
def test_peak_memory_counts_what_a_contender_allocates(tmp_path, monkeypatch):
    (tmp_path / "allocating.py").write_text(ALLOCATING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    extra = memory.peak_extra(tmp_path / "large", tmp_path / "small", "64 MiB", "allocating")
    assert extra == pytest.approx(64 << 20, rel=0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "choose from"),
        (["--repeats", "0"], "at least 1"),
        (["--quick", "--json", str(LATEST)], "real results"),
    ],
)
def test_words_that_make_no_sense(words, said, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err
