"""The benchmarks of tables larger than memory: what they make and say, never how fast anything is."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def load():
    """Import a module of benchmarks/, which is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield lambda name: import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def recipe(load):
    return load("stores").Recipe(130, 90, 6, 5, rank=2, corruption=0.1, chunk=50)


def test_a_store_is_what_its_recipe_says(load, recipe, tmp_path):
    stores, path = load("stores"), tmp_path / "some.zarr"
    M = stores.make(path, recipe)
    assert M.shape == (130, 90) and M.chunks == (50, 50) and M.dtype == np.float32
    F1, F2, L = recipe.known
    assert np.array_equal(np.load(tmp_path / "some_F1.npy"), F1) and np.array_equal(
        np.load(tmp_path / "some_F2.npy"), F2
    )
    off = np.abs(M[:] - L.dense())
    smallest = 5 * recipe.rank / np.sqrt(130 * 90)
    corrupted = np.zeros(M.shape, bool)
    for place in recipe.places():
        rows, cols = recipe.slices(place)
        piece = np.zeros(off[rows, cols].size, bool)
        piece[recipe.support(place)] = True
        corrupted[rows, cols] = piece.reshape(off[rows, cols].shape)
    assert corrupted.mean() == pytest.approx(0.1, abs=0.02)
    assert off[~corrupted].max() < 1e-6 * np.abs(M[:]).max()
    assert off[corrupted].min() > 0.999 * smallest and off[corrupted].max() < 2.001 * smallest
    assert np.linalg.matrix_rank(L.dense()) == 2


def test_a_store_is_made_once_and_another_is_refused(load, recipe, tmp_path):
    stores, path = load("stores"), tmp_path / "some.zarr"
    stores.make(path, recipe)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    stores.make(path, recipe)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    with pytest.raises(ValueError, match="another problem"):
        stores.make(path, replace(recipe, seed=1))


def test_out_of_core(load):
    main = load("__main__")
    case = load("registry").CASES["out-of-core"]
    found = json.loads(json.dumps(main.rounded(main.run(case, quick=True))))
    assert found["status"] == "CONVERGED" and found["rank"] == 2
    assert found["error"] < 1e-6
    assert found["precision"] == found["recall"] == 1
    assert found["S_entries"] == pytest.approx(0.02 * 1e6, rel=0.1)
    assert found["M_bytes"] == 4e6 and found["stored_bytes"] < 4e6
    report = case.report(found)
    assert {len(row) for row in report.rows} == {len(report.header)}
    assert [bar.bar for bar in case.bars(found)] == ["≤ 2", "≥ 0.7", "≤ 4 GB"]


def test_the_share_is_of_the_mean_of_both_sums(load):
    out = load("out_of_core")
    parts = {out.SUM: {"seconds": 9.0}, out.SOLVE: {"seconds": 25.0}, out.AGAIN: {"seconds": 11.0}}
    assert out.share({"parts": parts, "reads": 2.0}) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("chunks", "workers", "each", "task", "transfer", "seconds"),
    [
        (64, 1, 0, 0, 0, 64),
        (64, 2, 0, 0, 0, 32),
        (65, 2, 0, 0, 0, 33),
        (64, 100, 0, 0, 0, 1),
        (1, 3, 0, 0, 1, 1),
        (8, 8, 0, 0, 0.5, 1 + 7 * 0.5),  # seven answers are fetched
        (9, 9, 0, 0, 0.5, 1 + 7 * 0.5 + 0.5),
        (100, 100, 1, 0, 0, 101),  # the last one is handed out after 100 s
    ],
)
def test_a_schedule(load, chunks, workers, each, task, transfer, seconds):
    assert load("cluster_cost").simulate([1.0] * chunks, workers, each, task, transfer) == pytest.approx(seconds)


def test_cost_of_a_question(load):
    cost = load("cluster_cost")
    on = cost.Machine(1e-9, 1e-9, 0, 1e-11, 1e-7, 40, 2e-8, 6, 1e-3, 0.01, 1e9)
    M, core = cost.Dense(1000, 2000, 100), cost.questions(5, 20)["core"]
    spent = cost.cost(M, core, on, workers=4)
    assert spent["chunks"] == 200
    assert spent["flops"] == 2 * 25 * 2e6
    assert spent["bytes_sent"] == 100 * (1000 + 2000) * 4  # every worker has chunks of all lines
    assert spent["bytes_answered"] == 200 * 8 * 400
    assert spent["seconds_working"] == pytest.approx(2e6 * (4e-9 + 50e-11) / 4)
    assert cost.seconds(M, core, on, 4) > max(spent["seconds_working"], 0.9 * spent["seconds_scheduling"])
    long = cost.Listed(10_000, 100, 1e6, band=1e5)
    assert long.grid == (10, 1)
    rows, columns = (cost.cost(long, cost.questions(5, 20)[name], on, 4) for name in ("rows", "columns"))
    assert rows["bytes_back"] == 10_000 * 8 * 19 and columns["bytes_back"] == 100 * 8 * 19
    assert rows["bytes_sent"] == 36 * (10_000 + 4 * 100)  # a row is in one band


def test_the_page_in_the_docs_is_what_the_kept_results_say(load):
    cost = load("cluster_cost")
    assert cost.PAGE.read_text() == cost.page(json.loads(cost.RESULTS.read_text()), 100)
