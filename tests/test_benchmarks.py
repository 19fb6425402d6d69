"""``python -m benchmarks`` on small problems: what it reports and that it is right, never how fast anything is."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import irpca

ROOT = Path(__file__).parent.parent
DEFAULT = ("square", "noisy", "tall", "growth", "field", "rivals", "algorithm-1", "first-call")
SOLVES = ("solve, rank and noise given", "solve, rank given", 'solve, rank="auto"')
LITERAL, ENGINE, WHITENED = (f"Algorithm 1, {kind}" for kind in ("literal", "engine", "whitened"))


@pytest.fixture(scope="module")
def load():
    """Import a module of benchmarks/, which is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield lambda name: import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def quick(load):
    """What a case finds at its tiny sizes, as it comes back from JSON; each is run once."""
    found = {}

    def run(name):
        if name not in found:
            main = load("__main__")
            found[name] = json.loads(json.dumps(main.rounded(main.run(load("registry").CASES[name], quick=True))))
        return found[name]

    return run


def worst(found, name, key):
    return max(record[key] for record in found["contenders"][name]["rounds"])


def ranks(found, name):
    return {record["rank"] for record in found["contenders"][name]["rounds"]}


def bars_of(load, found, name):
    return {bar.work: bar for bar in load("registry").CASES[name].bars(found)}


@pytest.mark.parametrize("name", DEFAULT)
def test_every_case_says_what_it_ran_and_where(load, quick, name):
    found, case = quick(name), load("registry").CASES[name]
    assert not case.asked
    assert found["sizes"] == json.loads(json.dumps(case.quick))
    assert case.sizes.keys() == case.quick.keys()
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["versions"]["numpy"] == np.__version__
    assert found["machine"]["commit"] is None or len(found["machine"]["commit"]) == 40
    report = case.report(found)
    assert sorted(row[0] for row in report.rows) == sorted(found["contenders"])
    assert {len(row) for row in report.rows} == {len(report.header)}
    for row in found["contenders"].values():
        assert len(row["rounds"]) == case.quick["repeats"]
        if name != "first-call":
            assert 0 < row["fastest"] <= row["seconds"] <= row["slowest"]
            assert all(record["cpu_seconds"] >= 0 and record["from_disk"] >= 0 for record in row["rounds"])


@pytest.mark.parametrize("name", ["square", "noisy"])
def test_against_the_oracle(load, quick, name):
    found = quick(name)
    assert set(found["contenders"]) == {"bare read", "oracle read", *SOLVES}
    assert found["M_bytes"] == 4 * 240 * 240
    assert found["contenders"]["oracle read"]["ratio"] == 1
    assert worst(found, "oracle read", "error") < 1e-12
    assert worst(found, "oracle read", "reads") == worst(found, "bare read", "reads") == 1
    for solve in SOLVES:
        assert ranks(found, solve) == {3}
        assert worst(found, solve, "reads") > 1
        assert worst(found, solve, "S_bytes") == pytest.approx(8 * 0.1 * 240 * 240, rel=0.1)
        if name == "square":
            assert worst(found, solve, "error") < 1e-6
            assert worst(found, solve, "S_error") < 1e-6
            assert worst(found, solve, "false") == worst(found, solve, "missed") == 0
        else:
            assert worst(found, solve, "error") <= 1.05 * found["known_support_error"]
            assert worst(found, solve, "S_error") < 0.15  # entries of S hold their noise
            assert worst(found, solve, "false") + worst(found, solve, "missed") <= 10  # of 57,600 entries
    bars = bars_of(load, found, name)
    assert bars["reads of M, rank and noise found"].bar == ("≤ 2" if name == "square" else "≤ 4")
    assert ("oracle read, against the bare read" in bars) == (name == "square")
    if name == "square" and load("memory").STATUS.exists():
        assert 0 < found["contenders"][SOLVES[1]]["extra_bytes"] < 1e9
        assert bars["memory beside M and S, solve, rank given"].bar == "≤ 10 % of M"


def test_the_memory_of_S_is_not_held_against_a_solve(load, quick):
    rounds = [{"seconds": 2.0, "reads": 1.5, "S_bytes": 300, "error": 1e-9, "false": 1, "missed": 2}]
    row = {"seconds": 2.0, "ratio": 2.0, "extra_bytes": 395, "rounds": rounds}
    found = {"noise": 0.0, "known_support_error": None, "M_bytes": 1000}
    found["contenders"] = dict.fromkeys(("bare read", "oracle read", *SOLVES), row)
    bars = bars_of(load, found, "square")
    memory = bars["memory beside M and S, solve, rank given"]
    assert (memory.measured, memory.reached) == ("9.5 % of M", True)
    assert memory.errors == "L 1.0e-09, 1 false and 2 missed in S"
    slow = bars["solve, rank given, against the oracle read"]
    assert (slow.bar, slow.measured, slow.reached) == ("≤ 1.8×", "2×", False)
    assert bars['solve, rank="auto", against the oracle read'].reached is None


def test_a_tall_matrix_with_features_of_its_rows(load, quick):
    found = quick("tall")
    solve = "solve, rank given"
    assert set(found["contenders"]) == {"bare read", "oracle read", solve}
    assert worst(found, solve, "error") < 1e-5
    assert worst(found, solve, "false") == worst(found, solve, "missed") == 0
    if load("memory").STATUS.exists():
        assert bars_of(load, found, "tall")[f"memory beyond M, {solve}"].reached


def test_growth(load, quick):
    found = quick("growth")
    assert [row["n"] for row in found["contenders"].values()] == [300, 400, 600]
    assert found["contenders"]["n = 300"]["ratio"] == 1
    for name in found["contenders"]:
        assert worst(found, name, "error") < 1e-6
        assert worst(found, name, "S_bytes") == 0
    assert worst(found, "n = 600", "reads") < worst(found, "n = 300", "reads") < 1  # the block does not grow with M
    (bar,) = load("registry").CASES["growth"].bars(found)
    assert "n = 600" in bar.work and "page" in bar.work


def test_growth_keeps_to_the_room_on_the_disk(load, monkeypatch):
    growth = load("growth")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1.5 * 4 * 1600**2))
    sizes = {"smallest": 200, "between": [1200], "largest": 5000, "d": 6, "rank": 2, "corruption": 0.2, "repeats": 1}
    found = {"sizes": sizes, **growth.measure(**sizes)}
    assert [row["n"] for row in found["contenders"].values()] == [200, 1000]
    assert growth.report(found).remarks == ["the disk had no room for n = 5,000"]


def test_the_field_is_compared_in_one_run(load, quick):
    found = quick("field")
    rows = found["contenders"]
    assert {name.partition(",")[0] for name in rows} == {"oracle read", *irpca.solvers.SOLVERS}
    assert rows["irpca"]["ratio"] == 1
    for name in ("irpca", "irpca_iht, whitened", "pcpf", "altproj", "accaltproj"):
        assert worst(found, name, "error") <= 1e-6
        assert worst(found, name, "missed") == 0
    assert rows["pca"]["iterations"] == [None]
    told = {row[0]: row for row in load("field").report(found).rows}
    assert "not recovered" in " ".join(told["pca"])


def test_rivals_are_run_to_the_same_error(load, quick):
    found = quick("rivals")
    assert set(found["contenders"]) == {"irpca", 'irpca, rank="auto"', "pcpf", "accaltproj", "ircur"}
    for name, row in found["contenders"].items():
        assert worst(found, name, "error") <= 1e-7
        assert worst(found, name, "S_bytes") == 0
        assert None not in row["iterations"]
    bars = bars_of(load, found, "rivals")
    assert [bar.bar for bar in bars.values()] == ["≥ 100×", "≥ 100×", "≥ 20×"]


def test_transcriptions_take_part_where_they_are_asked_for(load):
    field = load("field")
    found = field.measure(**{**load("registry").CASES["transcriptions"].quick, "transcriptions": True})
    for name in ("pcpf, transcribed", "pcp, transcribed", "altproj, transcribed"):
        assert worst(found, name, "error") <= 1e-6
        assert worst(found, name, "missed") == 0


def test_algorithm_1(quick):
    found = quick("algorithm-1")
    assert set(found["contenders"]) == {"oracle read", "solve, rank given", ENGINE, WHITENED, LITERAL}
    for name in ("oracle read", "solve, rank given", WHITENED):
        assert worst(found, name, "error") < 1e-8
        assert worst(found, name, "false") == worst(found, name, "missed") == 0
    # The same iterates, right or wrong. S is refreshed by the engine and not by the literal one.
    assert worst(found, ENGINE, "error") == pytest.approx(worst(found, LITERAL, "error"), rel=1e-3)
    assert worst(found, LITERAL, "residual") <= 1e-3
    assert found["iterations"] < 32


def test_first_calls_are_those_of_fresh_processes(load, quick):
    found = quick("first-call")
    assert list(found["contenders"]) == ["float32, cache empty", "float32, cache filled"]
    for name in found["contenders"]:
        assert worst(found, name, "error") < 1e-5
        assert worst(found, name, "wrong") == 0
    files = [worst(found, name, "files") for name in found["contenders"]]
    assert files[0] == files[1]  # what the first process compiled serves the second
    assert len(found["imports"]) == 1
    with pytest.raises(RuntimeError, match="complex64"):
        load("first_call").fresh(20, 2, 1, "complex64")


@pytest.mark.parametrize("shape", [(200, 200), (150, 90)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_problems_are_those_of_the_paper(load, tmp_path, monkeypatch, shape, dtype):
    problems = load("problems")
    monkeypatch.setattr(problems, "PIECE", 4000)  # many pieces
    task = problems.make(tmp_path, *shape, d=6, rank=2, corruption=0.3, dtype=dtype)
    twin = irpca.datasets.make_problem(*shape, d1=6, d2=6, rank=2, dtype=dtype)
    np.testing.assert_array_equal(task.F1, twin.F1)
    np.testing.assert_allclose(task.L.dense(), twin.L, atol=1e-6 * np.abs(twin.L).max())
    eps = 8 * np.finfo(dtype).eps
    S = task.S.toarray()
    np.testing.assert_allclose(task.M, task.L.dense() + S, atol=eps * (np.abs(twin.L).max() + np.abs(S).max()))
    assert task.M.dtype == dtype
    sizes, unit = np.abs(task.S.data), 2 / np.sqrt(task.M.size)
    assert 5 * unit * (1 - eps) <= sizes.min() and sizes.max() <= 10 * unit * (1 + eps)
    assert sizes.mean() == pytest.approx(7.5 * unit, rel=0.02)
    assert task.S.nnz / task.M.size == pytest.approx(0.3, abs=0.02)
    assert (task.S.data > 0).mean() == pytest.approx(0.5, abs=0.05)
    counts = np.bincount(task.S.indices, minlength=shape[1])
    assert counts.std() == pytest.approx(np.sqrt(0.3 * 0.7 * shape[0]), rel=0.3)  # independent of each other

    mapped = problems.Task.load(tmp_path, mapped=True)
    assert isinstance(mapped.M, np.memmap) and mapped.S is None
    np.testing.assert_array_equal(mapped.M, task.M)

    noisy = problems.make(tmp_path / "noisy", *shape, d=6, rank=2, corruption=0.3, dtype=dtype, noisy=True)
    assert (noisy.M - task.M).std() == pytest.approx(noisy.noise, rel=0.05)
    assert noisy.noise == pytest.approx(5 * unit / 8)
    hidden = problems.make(tmp_path / "hidden", *shape, d=6, rank=2, corruption=0.3, one_sided=True, keep_S=False)
    assert hidden.F2 is None and hidden.S is None


def test_least_squares_with_known_support(load, tmp_path):
    problems = load("problems")
    task = problems.make(tmp_path, 120, 90, d=5, rank=2, corruption=0.2, noisy=True)
    L = problems.with_known_support(task, rounds=30)
    # Stationary: what is left on the clean entries is orthogonal to the tangent space of rank r, within the features.
    left = np.where(task.S.toarray() != 0, 0.0, task.M - L.dense())
    Q1, Q2 = (np.linalg.qr(F)[0] for F in (task.F1, task.F2))
    assert np.linalg.norm(L.left.T @ left @ Q2) < 1e-8 * np.linalg.norm(left)
    assert np.linalg.norm(Q1.T @ left @ L.right) < 1e-8 * np.linalg.norm(left)


def test_wrong_answers_show(load, tmp_path):
    contenders = load("contenders")
    task = load("problems").make(tmp_path, 40, 40, d=4, rank=2, corruption=0.1)
    found = contenders.check(task, contenders.oracle_read(task, 0))
    assert (found["false"], found["missed"]) == (0, 0)
    assert max(found["error"], found["S_error"]) < 1e-13

    S = task.S.toarray()
    S[tuple(np.argwhere(S)[0])] = 0.0  # one forgotten
    S[tuple(np.argwhere(S == 0)[-2:].T)] = 1.0  # two made up
    L = irpca.LowRank(task.L.left, 1.5 * task.L.core, task.L.right)
    for form in (np.asarray, csr_array):
        for low_rank in (L, L.dense()):
            found = contenders.check(task, contenders.Answer(low_rank, form(S), 2))
            assert (found["false"], found["missed"]) == (2, 1)
            assert found["error"] == pytest.approx(0.5, rel=1e-12)
            apart = np.linalg.norm(S - task.S.toarray()) / np.linalg.norm(task.S.toarray())
            assert found["S_error"] == pytest.approx(apart, rel=1e-12)


def test_runs_are_interleaved_after_an_untimed_round(load):
    calls = []
    contenders = {name: lambda repeat, name=name: calls.append((name, repeat)) or name for name in "ABC"}
    records = load("runner").interleave(contenders, 2, lambda name, answer: {"same": name == answer})
    assert calls == [(name, repeat) for repeat in (0, 0, 1) for name in "ABC"]
    assert all(record["same"] for rounds in records.values() for record in rounds)


def test_ratios_are_taken_round_by_round(load):
    slow, fast = ([{"seconds": s, "cpu_seconds": 1.0} for s in seconds] for seconds in ((2, 30, 8), (1, 10, 2)))
    found = load("runner").times(slow, fast)
    assert found["ratio"] == 3  # the ratio of the medians is 4
    assert (found["fastest"], found["seconds"], found["slowest"]) == (2, 8, 30)


ALLOCATING = """
import numpy as np

class Task:
    load = staticmethod(lambda folder: 8 << 20 if folder.name == "large" else 8)

CONTENDERS = {"64 MiB": lambda task, seed: np.ones(task)}
"""


def test_peak_memory_counts_what_a_contender_allocates(load, tmp_path, monkeypatch):
    memory = load("memory")
    (tmp_path / "allocating.py").write_text(ALLOCATING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = (tmp_path / "large", tmp_path / "small")
    if not memory.STATUS.exists():
        assert memory.peak_extra(*words, "64 MiB", "allocating") is None
        return
    assert memory.peak_extra(*words, "64 MiB", "allocating") == pytest.approx(64 << 20, rel=0.1)
    with pytest.raises(RuntimeError, match="KeyError: 'unknown'"):
        memory.peak_extra(*words, "unknown", "allocating")


def test_the_command(load, tmp_path, capsys, monkeypatch):
    main, path = load("__main__").main, tmp_path / "new" / "some.json"
    assert main(["growth", "--quick", "--repeats", "1", "--largest", "500", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "\nn = 500 " in printed and "n = 600" not in printed
    assert "bar" not in printed  # tiny sizes say nothing about them
    assert main(["algorithm-1", "--quick", "--json", str(path)]) == 0
    cases = json.loads(path.read_text())["cases"]
    assert list(cases) == ["growth", "algorithm-1"]  # the older one stays
    assert cases["growth"]["sizes"]["repeats"] == 1

    monkeypatch.setattr(irpca, "solve", None)
    assert main(["table", "--json", str(path), "--check"]) == 1
    assert main(["table", "--json", str(path)]) == 0
    assert main(["table", "--json", str(path), "--check"]) == 0
    page = path.with_suffix(".md")
    assert "| n = 500 |" in page.read_text() and f"| {LITERAL} |" in page.read_text()
    page.write_text(page.read_text().replace("n = 500", "n = 900"))
    assert main(["table", "--json", str(path), "--check"]) == 1
    with pytest.raises(SystemExit, match="there is no"):
        main(["table", "--json", str(tmp_path / "nothing.json")])


@pytest.mark.timeout(120)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="elsewhere a process is not asked to end")
def test_a_run_that_is_ended_leaves_no_files(tmp_path):
    words = [sys.executable, "-m", "benchmarks", "growth", "--quick", "--repeats", "1000000"]
    process = subprocess.Popen(words, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        while process.poll() is None and len(list(tmp_path.rglob("M.npy"))) < 3:
            time.sleep(0.05)
        while process.poll() is None:  # what a handler raises is lost while numba compiles: callbacks of LLVM drop it
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(3)
    finally:
        process.kill()  # if it is still there
    assert process.wait() == 143
    assert not list(tmp_path.iterdir())


def test_the_page_lists_every_bar(load):
    cases = load("registry").CASES
    kept = json.loads(load("table").RESULTS.read_text())["cases"]
    text = load("table").render({"cases": {name: kept[name] for name in DEFAULT}})
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in cells if row[0] in DEFAULT]
    bars = [bar for name in DEFAULT for bar in cases[name].bars(kept[name])]
    said = {"yes": True, "**no**": False, "–": None}
    assert [(row[1], said[row[4]]) for row in rows] == [(bar.work, bar.reached) for bar in bars]
    for name in DEFAULT:
        assert f"**{name}**" in text


def test_the_page_in_the_docs_is_what_the_kept_results_say(load):
    assert load("__main__").main(["table", "--check"]) == 0
    kept = json.loads(load("table").RESULTS.read_text())["cases"]
    assert set(kept) == set(DEFAULT)
    for name, found in kept.items():
        assert found["sizes"].keys() == load("registry").CASES[name].sizes.keys()


def test_options(load, capsys):
    options = load("__main__").options
    assert tuple(options([]).cases) == DEFAULT
    assert options(["tall", "--quick"]).cases == ["tall"]
    refused = {
        "--repeats": ["--repeats", "0"],
        "--largest": ["--largest", "0"],
        "choose from": ["wide"],
        "alone": ["table", "tall"],
        "where the real results are": ["--quick", "--json", str(load("table").RESULTS)],
    }
    for complaint, words in refused.items():
        with pytest.raises(SystemExit):
            options(words)
        assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_tables_are_judged(load, seed):
    random_tables = load("random_tables")
    M, _, _, L, corrupted, Q1, Q2, rank, _ = random_tables.table(seed)
    assert np.linalg.matrix_rank(L) == rank
    known = random_tables.oracle(M, L, corrupted, Q1, Q2, rank)
    assert np.linalg.norm(known - L) < np.linalg.norm(M - L)
    assert random_tables.verdict(seed) == "right"


def test_texts_tell_when_they_are_made(load):
    """Each text of a line on its own; none of a docstring, of a default or of a format."""
    source = """def told(x, word="a default text"):
        "Some docstring."
        return f"{x:>3} is {'a small number' if x < 5 else 'a large number'}"
    """
    texts, made = load("texts").Texts("m.py"), []
    names = {"__text__": lambda place, text: made.append(texts.places[place]) or text}
    exec(compile(texts.visit(ast.parse(source)), "m.py", "exec"), names)
    assert names["told"](1) == "  1 is a small number"
    assert list(texts.places.values()) == ["a small number", "a large number"] and made == ["a small number"]
