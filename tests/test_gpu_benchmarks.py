"""The benchmark of the GPU engine, on a CPU and tiny problems: that it works and is right, never how fast it is."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import irpca
from irpca.engines import single_threaded_blas
from irpca.lowrank import relative_distance

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parent.parent
SECTIONS = ("sum", "pass", "exact", "noise", "float64", "table", "peers", "stream")


@pytest.fixture(scope="module")
def load():
    """Import a module of benchmarks/, which is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield lambda name: import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def tasks(load):
    return load("gpu_tasks")


@pytest.fixture(scope="module")
def recipe(tasks):
    return tasks.Recipe(90, 6, 2, corruption=0.1)


@pytest.fixture
def bands(tasks, monkeypatch):
    """Several bands in tiny problems."""
    monkeypatch.setattr(tasks, "BAND", 2000)


# The problems


def test_a_problem_is_what_its_recipe_says(tasks, recipe, bands):
    task = tasks.make(recipe, "cpu")
    assert len(list(recipe.bands())) == 5
    F1, F2, L = recipe.known
    assert F1.dtype == F2.dtype == np.float32 and np.linalg.matrix_rank(L.dense()) == 2
    off = np.abs(task.M.numpy() - L.dense())
    corrupted = np.vstack([recipe.draws(k, rows, "cpu").numpy() < 0.1 for k, rows in recipe.bands()])
    assert corrupted.mean() == pytest.approx(0.1, abs=0.02)
    assert off[~corrupted].max() < 1e-6 * np.abs(L.dense()).max()
    assert off[corrupted].min() > 0.999 * recipe.smallest and off[corrupted].max() < 2.001 * recipe.smallest
    assert (task.M.numpy() - L.dense())[corrupted].mean() == pytest.approx(0, abs=0.2 * recipe.smallest)
    assert recipe.size_of_L == pytest.approx(np.sqrt(np.mean(L.dense() ** 2)))
    assert torch.equal(task.M, tasks.make(recipe, "cpu", on_host=True).M)


def test_entries_of_S_that_are_wrong_are_counted(tasks, recipe, bands):
    task = tasks.make(recipe, "cpu")
    S = (np.abs(task.M.numpy() - task.L.dense()) > recipe.smallest / 2).astype(np.float32)
    assert task.wrong(csr_array(S)) == (0, 0)
    where = np.argwhere(S)
    S[tuple(where[5])] = S[tuple(where[-1])] = 0
    S[tuple(np.argwhere(S == 0)[0])] = 1
    false, missed = task.wrong(csr_array(S))
    assert missed - false in (1, 2) and 0 <= false <= 1
    on_device = csr_array(np.ones((90, 90)))
    on_device = SimpleNamespace(indptr=torch.tensor(on_device.indptr), indices=torch.tensor(on_device.indices))
    assert task.wrong(on_device) == (90 * 90 - len(where), 0)


def test_noise_is_added_in_place_to_the_problem_that_is_there(load, tasks, recipe):
    bench = load("gpu_clock").Bench("cpu")
    task = bench.problem(recipe)
    before = task.M.clone()
    noisy = bench.problem(recipe, noise=0.01)
    assert noisy is task and noisy.noise == 0.01
    assert float((noisy.M - before).std()) == pytest.approx(0.01, rel=0.05)
    assert torch.equal(bench.problem(recipe).M, before)  # made again
    bench.release()
    assert bench.task is None


def test_what_noise_alone_costs(load, tasks, recipe):
    task = tasks.make(recipe, "cpu")
    task.add_noise(1e-3)
    cost = load("gpu_cases").least_error(task)
    Q1, Q2 = (np.linalg.qr(F)[0] for F in (task.F1, task.F2))
    N = np.random.default_rng(0).standard_normal((50, 90, 90)) * 1e-3
    U, _, Vt = np.linalg.svd(Q1.T @ task.L.dense() @ Q2)
    P, R = U[:, :2] @ U[:, :2].T, Vt[:2].T @ Vt[:2]
    inner = Q1.T @ N @ Q2
    tangent = P @ inner + inner @ R - P @ inner @ R
    seen = np.sqrt(np.mean(np.sum(tangent**2, axis=(1, 2)))) / np.linalg.norm(task.L.dense())
    assert cost == pytest.approx(seen / 0.9**0.5, rel=0.05)


# The peers


@pytest.fixture(scope="module")
def hard(tasks):
    return tasks.make(tasks.Recipe(500, 32, 16, corruption=0.1, features="conditioned"), "cpu")


@pytest.mark.parametrize(("name", "most"), [("PCPF", 15), ("AccAltProj", 18)])
def test_peers_recover_L_as_published(load, hard, name, most):
    cases = load("gpu_cases")
    _, start = next(cases.ways_of(name, hard, "cpu"))
    with single_threaded_blas:
        count, error = cases.iterations_needed(hard, start(), 1e-5)
        assert count is not None and count <= most and error <= 1e-5
        assert cases.iterations_needed(hard, start(), 1e-5, most=3)[0] is None


def test_accaltproj_is_as_quick_as_that_of_the_package(load, hard):
    """The same parameters, another implementation: about as many iterations."""
    beta = 500**-0.5 / 2
    steps = load("gpu_peers").accaltproj(hard.M, 16, beta, 4 * beta, 0.7)
    errors = []

    def watch(state, history):
        errors.append(relative_distance(hard.L, state.L))
        return errors[-1] <= 1e-5

    given = {"rank": 16, "beta": beta, "beta_init": 4 * beta, "decay": 0.7, "sparse": False, "callbacks": watch}
    irpca.solve(hard.M.numpy(), solver="accaltproj", **given)
    with single_threaded_blas:
        count, _ = load("gpu_cases").iterations_needed(hard, steps, 1e-5)
    assert errors[-1] <= 1e-5 and len(errors) - 2 <= count <= len(errors)


def test_entries_are_trimmed_in_one_pass(load):
    R = torch.randn(50, 40)
    kept = torch.where(R.abs() < 0.7, R, 0)
    assert torch.equal(load("gpu_peers").trimmed_(R, 0.7), kept) and torch.equal(R, kept)


def test_an_orthonormal_basis_and_triplets(load):
    peers, draw = load("gpu_peers"), torch.Generator().manual_seed(0)
    B = torch.randn(200, 6, generator=draw, dtype=torch.float64) * torch.logspace(0, -4, 6, dtype=torch.float64)
    Q = peers.orthonormal(B)
    assert torch.allclose(Q.T @ Q, torch.eye(6, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(Q @ (Q.T @ B), B, atol=1e-12)
    A = B @ torch.randn(6, 80, generator=draw, dtype=torch.float64)
    U, s, V = peers.triplets(A, torch.randn(80, 6, generator=draw, dtype=torch.float64), 3, rounds=8)
    assert s == pytest.approx(torch.linalg.svdvals(A)[:3].numpy(), rel=1e-6)
    assert torch.allclose(A @ V, U * torch.from_numpy(s), atol=1e-6)
    assert peers.leading(A, 6)[0] == pytest.approx(float(torch.linalg.svdvals(A)[0]), rel=1e-2)


# Where time goes


def test_questions_are_timed_once(load):
    class Engine:
        def entries(self):
            return 1

        def draw(self):
            return self.entries() + self.entries()

    engine = Engine()
    with load("gpu_clock").questions_timed(engine, lambda: None) as spent:
        assert engine.draw() == 2 and engine.entries() == 1 and engine.entries() == 1
    assert {name: row["calls"] for name, row in spent.items()} == {"draw": 1, "entries": 2}
    assert vars(engine) == {} and engine.draw() == 2


def test_a_kernel_is_timed_within_a_pass(load):
    cases, bench = load("gpu_cases"), load("gpu_clock").Bench("cpu")

    class Engine:
        triton = SimpleNamespace(trimmed=lambda x: x + 1, width=8)

        def core(self, *asked):
            return self.triton.trimmed(self.triton.width) + self.triton.trimmed(1), None

    engine = Engine()
    clocked = load("gpu_clock").Clocked(engine.triton, "trimmed", bench)
    assert clocked.width == 8 and clocked.seconds == 0
    assert clocked.trimmed(2) == 3 and clocked.seconds > 0
    run = cases.kernel_alone(bench, engine, None, 0.0, None, None)
    _, seconds = run(0)
    assert seconds > 0 and isinstance(engine.triton, SimpleNamespace)
    engine.triton = None
    assert cases.kernel_alone(bench, engine, None, 0.0, None, None) is None


# The whole


def worst(found, name, key):
    return max(record[key] for record in found["contenders"][name]["rounds"])


def passes_are_right(found):
    for width in (8, 12):
        assert worst(found, f"core, d = {width}", "error") < 1e-5


def decomposition_is_right(found, error):
    assert worst(found, "solve", "error") < error
    assert worst(found, "solve", "false") == worst(found, "solve", "missed") == 0


def noise_costs_little(found):
    assert worst(found, "solve", "error") < 2 * found["least_error"]


def contenders_agree(found):
    for name in found["contenders"]:
        assert worst(found, name, "error") == pytest.approx(worst(found, "GPU", "error"), rel=0.05)


def peers_are_right(found):
    for name, row in found["contenders"].items():
        assert name == "sum of M" or row["rounds"][0]["error"] <= 1e-5


RIGHT = {
    "pass": passes_are_right,
    "exact": partial(decomposition_is_right, error=1e-5),
    "noise": noise_costs_little,
    "float64": partial(decomposition_is_right, error=1e-10),
    "table": contenders_agree,
    "peers": peers_are_right,
    "stream": partial(decomposition_is_right, error=1e-5),
}


def test_every_section_has_a_test(load):
    assert tuple(load("gpu_cases").CASES) == SECTIONS


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_runs_on_a_cpu_and_its_answers_are_right(load, name, tmp_path):
    """At its tiny sizes, and as it comes back from JSON."""
    path, case = tmp_path / "gpu.json", load("gpu_cases").CASES[name]
    assert load("gpu").main(["--quick", "--device", "cpu", "--only", name, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())["cases"]
    found = cases[name]
    assert list(cases) == [name] and "error" not in found
    assert found["sizes"] == json.loads(json.dumps(load("__main__").rounded(case.quick)))
    assert case.sizes.keys() == case.quick.keys()
    assert found["machine"]["versions"]["torch"] == torch.__version__
    for row in found["contenders"].values():
        assert len(row["rounds"]) == case.quick["repeats"]
        assert 0 < row["fastest"] <= row["seconds"] <= row["slowest"]
    report = case.report(found)
    assert [row[0] for row in report.rows] == list(found["contenders"])
    assert {len(row) for row in report.rows} == {len(report.header)}
    assert case.bars(found)
    assert str(ROOT) not in path.read_text()
    assert f"**{name}**: " in load("gpu").render({"cases": cases})
    if name in RIGHT:
        RIGHT[name](found)
    if name in ("exact", "noise", "float64", "table"):
        spent = found["breakdown"]
        assert "corruption" in spent["questions"] and spent["host_seconds"] > 0 and spent["history"]


def test_a_section_that_fails_is_noted_and_the_others_go_on(load, tmp_path, monkeypatch, capsys):
    gpu, registered, path = load("gpu"), load("gpu_cases").CASES, tmp_path / "gpu.json"

    def fails(bench, **sizes):
        raise RuntimeError(f"no memory\nat {ROOT}/some/where " + 400 * "x")

    broken = type(registered["sum"])("sum", fails, *list(vars(registered["sum"]).values())[2:])
    monkeypatch.setitem(registered, "sum", broken)
    words = ["--quick", "--device", "cpu", "--only", "sum", "float64", "--json", str(path)]
    assert gpu.main(words) == 1
    found = json.loads(path.read_text())["cases"]
    assert found["sum"]["error"].startswith("RuntimeError: no memory at ./some/where") and len(found) == 2
    assert len(found["sum"]["error"]) < 310 and "contenders" in found["float64"]
    assert "sum: FAILED" in capsys.readouterr().out
    page = gpu.render({"cases": found})
    assert "**sum** failed: RuntimeError" in page and "**float64**: 300 × 300 float64" in page


def test_the_page_is_written_and_compared(load, tmp_path, capsys):
    gpu, results = load("gpu"), tmp_path / "gpu.json"
    assert gpu.main(["--quick", "--device", "cpu", "--only", "sum", "--json", str(results)]) == 0
    capsys.readouterr()
    assert gpu.main(["table", "--json", str(results)]) == 0
    page = results.with_suffix(".md")
    assert page.read_text() == capsys.readouterr().out == gpu.render(json.loads(results.read_text()))
    assert "**sum**: " in page.read_text()
    assert gpu.main(["table", "--check", "--json", str(results)]) == 0
    page.write_text("another")
    assert gpu.main(["table", "--check", "--json", str(results)]) == 1


def solved(ratio, error, false):
    """A made-up record of a decomposition."""
    rounds = [{"seconds": 0.06, "cpu_seconds": 0.1, "error": error, "false": false, "missed": 0}]
    return {"contenders": {"solve": {"ratio": ratio, "rounds": rounds}}, "least_error": 1e-6}


@pytest.mark.parametrize(
    ("name", "found", "reached"),
    [
        ("exact", solved(5, 1e-7, 0), [True, True, True, True]),
        ("exact", solved(11, 2e-5, 1), [True, False, False, False]),
        ("exact", solved(13, 1e-7, 0), [False, False, True, True]),
        ("noise", solved(29, 1e-4, 3), [True, None]),
        ("noise", solved(31, 1e-4, 3), [False, None]),
        ("float64", solved(31, 1e-9, 0), [None, False, True]),
    ],
)
def test_bars_of_a_decomposition(load, name, found, reached):
    assert [bar.reached for bar in load("gpu_cases").CASES[name].bars(found)] == reached


def test_bars_of_a_pass_are_those_of_the_kernel_where_it_was_timed(load):
    bars = load("gpu_cases").CASES["pass"].bars
    rows = {f"core, d = {d}": {"ratio": 2.2, "rounds": [{"error": 1e-7}]} for d in (32, 64)}
    found = {"sizes": {"widths": [32, 64]}, "contenders": rows}
    assert [bar.reached for bar in bars(found)] == [False, True]
    rows["kernel alone, d = 32"] = {"device_ratio": 1.5}
    assert [(bar.measured, bar.reached) for bar in bars(found)] == [("1.5×", True), ("2.2×", None), ("2.2×", True)]


def test_bars_of_the_table_and_the_peers(load):
    cases = load("gpu_cases").CASES
    rounds = [{"error": 1e-6}]
    rows = {
        name: {"ratio": ratio, "rounds": rounds} for name, ratio in (("GPU", 1), ("2 threads", 90), ("16 threads", 19))
    }
    assert [bar.reached for bar in cases["table"].bars({"contenders": rows})] == [None, False]
    names = ["irpca", *(f"{name}, {kind}" for name in ("PCPF", "AccAltProj") for kind in ("as published", "tuned"))]
    ratios = (1, 60, 30, 40, 30)
    rows = {name: {"ratio": ratio, "rounds": rounds} for name, ratio in zip(names, ratios, strict=True)}
    assert [bar.reached for bar in cases["peers"].bars({"contenders": rows})] == [True, None, False, None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quick", "--json", "benchmarks/results/gpu.json"], "where the real results are"),
        (["--device", "cpu"], "goes with --quick"),
        (["--only", "everything"], "invalid choice"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_words_that_make_no_sense(load, monkeypatch, capsys, words, said):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="2"):
        load("gpu").options(words)
    assert said in capsys.readouterr().err


def test_the_page_in_the_docs_is_what_the_kept_results_say(load):
    gpu = load("gpu")
    assert gpu.PAGE.exists() == gpu.RESULTS.exists()  # both, or neither until it has been measured
    if gpu.RESULTS.exists():
        assert gpu.PAGE.read_text() == gpu.render(json.loads(gpu.RESULTS.read_text()))
