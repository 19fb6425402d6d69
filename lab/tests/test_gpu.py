"""The benchmark of the GPU engine at its tiny sizes, on a CPU where there is no GPU."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

torch = pytest.importorskip("torch")
from lab.benchmarks import gpu, gpu_cases, gpu_tasks  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def worst(found, name, key):
    return max(record[key] for record in found["contenders"][name]["rounds"])


@pytest.mark.parametrize("name", gpu_cases.CASES)
def test_a_section(name, tmp_path):
    path, case = tmp_path / "gpu.json", gpu_cases.CASES[name]
    assert gpu.main(["--quick", "--device", DEVICE, "--only", name, "--json", str(path)]) == 0
    found = json.loads(path.read_text())["cases"][name]
    assert case.sizes.keys() == case.quick.keys()
    assert [row[0] for row in case.report(found).rows] == list(found["contenders"]) and case.bars(found)
    assert gpu.main(["table", "--json", str(path)]) == gpu.main(["table", "--check", "--json", str(path)]) == 0
    if name in ("exact", "float64", "stream"):
        assert worst(found, "solve", "error") < (1e-10 if name == "float64" else 1e-5)
        assert worst(found, "solve", "false") == worst(found, "solve", "missed") == 0
    if name == "noise":
        assert worst(found, "solve", "error") < 2 * found["least_error"]
    if name == "peers":
        assert all(row["rounds"][0]["error"] <= 1e-5 for who, row in found["contenders"].items() if who != "sum of M")
    if name in ("exact", "noise", "float64", "table"):
        assert "corruption" in found["breakdown"]["questions"]


def test_a_section_that_fails_is_noted_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(bench, **sizes):
        raise RuntimeError("no memory")

    sum_of_M = gpu_cases.CASES["sum"]
    monkeypatch.setitem(gpu_cases.CASES, "sum", type(sum_of_M)("sum", fails, *list(vars(sum_of_M).values())[2:]))
    path = tmp_path / "gpu.json"
    words = ["--quick", "--device", DEVICE, "--only", "sum", "float64", "--json", str(path)]
    assert gpu.main(words) == 1
    found = json.loads(path.read_text())["cases"]
    assert found["sum"]["failure"] == "RuntimeError: no memory" and "contenders" in found["float64"]
    assert gpu.main(["table", "--json", str(path)]) == 0
    assert "**sum** failed: RuntimeError" in path.with_suffix(".md").read_text()


def test_a_problem_is_what_its_recipe_says(monkeypatch):
    monkeypatch.setattr(gpu_tasks, "BAND", 2000)  # several bands
    recipe = gpu_tasks.Recipe(90, 6, 2, corruption=0.1)
    task = gpu_tasks.make(recipe, "cpu")
    off = np.abs(task.M.numpy() - task.L.dense())
    corrupted = np.vstack([recipe.draws(k, rows, "cpu").numpy() < 0.1 for k, rows in recipe.bands()])
    assert off[~corrupted].max() < 1e-6 * np.abs(task.L.dense()).max()
    assert off[corrupted].min() > 0.999 * recipe.smallest and off[corrupted].max() < 2.001 * recipe.smallest
    assert task.wrong(csr_array(off > recipe.smallest / 2).astype(np.float32)) == (0, 0)


def test_the_page_holds_what_was_measured():
    assert gpu.main(["table", "--check"]) == 0
