"""``python -m benchmarks`` on a small problem: what it reports and that it is right, never how fast anything is."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import irpca

ROOT = Path(__file__).parent.parent
SOLVES = ("solve, rank given", 'solve, rank="auto"')
LITERAL, ENGINE, WHITENED = (f"Algorithm 1, {kind}" for kind in ("literal", "engine", "whitened"))


@pytest.fixture
def load(monkeypatch):
    """Import a module of benchmarks/, which is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: import_module(f"benchmarks.{name}")


def worst(case, name, key):
    return max(record[key] for record in case["contenders"][name]["rounds"])


@pytest.mark.timeout(300)  # eleven processes for the memory, each of which may have to compile the kernels
def test_quick_run(tmp_path):
    path = tmp_path / "quick.json"
    words = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads(path.read_text())

    assert written["settings"] == {"n": 500, "d": 20, "rank": 5, "corruption": 0.1, "repeats": 2}
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["versions"]["numpy"] == np.__version__
    commit = written["machine"]["commit"]
    assert commit is None or len(commit) == 40
    exact, noisy = written["cases"]
    assert (exact["noisy"], noisy["noisy"]) == (False, True)
    assert set(exact["contenders"]) == {"oracle read", *SOLVES, ENGINE, WHITENED, LITERAL, "bare read"}
    assert set(noisy["contenders"]) == {"oracle read", *SOLVES, "bare read"}
    for case in (exact, noisy):
        for name, row in case["contenders"].items():
            assert f"\n{name} " in done.stdout
            assert len(row["rounds"]) == 2
            assert 0 < row["fastest"] <= row["seconds"] <= row["slowest"]
            assert row["extra_bytes"] is None or 0 <= row["extra_bytes"] < 1e9
        assert case["contenders"]["oracle read"]["ratio"] == 1
        assert case["contenders"]["bare read"]["ratio_to_bare"] == 1

    for name in ("oracle read", *SOLVES):
        assert worst(exact, name, "error") < 1e-13
        assert worst(exact, name, "false") == worst(exact, name, "missed") == 0
        assert {record["rank"] for record in exact["contenders"][name]["rounds"]} == {5}
    assert worst(exact, WHITENED, "error") < 1e-8
    assert worst(exact, WHITENED, "false") == worst(exact, WHITENED, "missed") == 0
    # The same iterates, right or wrong. S is refreshed by the engine and not by the literal one.
    assert worst(exact, ENGINE, "error") == pytest.approx(worst(exact, LITERAL, "error"), rel=1e-6)
    assert worst(exact, LITERAL, "residual") <= 1e-3
    for name in SOLVES:
        assert worst(noisy, name, "error") <= 1.05 * noisy["error_with_known_support"]
        assert worst(noisy, name, "false") + worst(noisy, name, "missed") <= 25  # of 250,000 entries
        assert {record["rank"] for record in noisy["contenders"][name]["rounds"]} == {5}


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


def test_wrong_answers_show(load):
    benchmark = load("against_oracle")
    problem, task = benchmark.make_task(40, 4, 2, 0.1, noisy=False)
    right = benchmark.oracle_read(task, 0)
    found = benchmark.check(problem, right)
    assert (found["false"], found["missed"]) == (0, 0)
    assert found["error"] < 1e-14

    S = problem.S.copy()
    S[tuple(np.argwhere(S)[0])] = 0.0  # one forgotten
    S[tuple(np.argwhere(S == 0)[-2:].T)] = 1.0  # two made up
    L = 1.5 * problem.L
    for form in (np.asarray, csr_array):
        found = benchmark.check(problem, benchmark.Answer(L, form(S), 2))
        assert (found["false"], found["missed"]) == (2, 1)
        assert found["error"] == pytest.approx(0.5, rel=1e-12)
        residual = np.linalg.norm(problem.M - L - S) / np.linalg.norm(problem.M)
        assert found["residual"] == pytest.approx(residual, rel=1e-12)


ALLOCATING = """
import numpy as np

class Task:
    load = staticmethod(lambda folder: 8 << 20)

def small_task():
    return 8

CONTENDERS = {"64 MiB": lambda task, seed: np.ones(task)}
"""


def test_peak_memory_counts_what_a_contender_allocates(load, tmp_path, monkeypatch):
    memory = load("memory")
    (tmp_path / "allocating.py").write_text(ALLOCATING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if not memory.STATUS.exists():
        assert memory.peak_extra("allocating", tmp_path, "64 MiB") is None
        return
    assert memory.peak_extra("allocating", tmp_path, "64 MiB") == pytest.approx(64 << 20, rel=0.1)
    with pytest.raises(RuntimeError, match="KeyError: 'unknown'"):
        memory.peak_extra("allocating", tmp_path, "unknown")


def test_options(load, capsys):
    options = load("__main__").options
    quick = options(["--quick", "--n", "300"])
    assert (quick.n, quick.d, quick.rank, quick.corruption, quick.repeats, quick.json) == (300, 20, 5, 0.1, 2, None)
    assert (options([]).n, options([]).d, options([]).repeats) == (4000, 40, 5)
    for words in (["--repeats", "0"], ["--corruption", "1"]):
        with pytest.raises(SystemExit):
            options(words)
        assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_tables_are_judged(load, seed):
    random_tables = load("random_tables")
    M, _, _, L, corrupted, Q1, Q2, rank, _ = random_tables.table(seed)
    assert np.linalg.matrix_rank(L) == rank
    known = random_tables.oracle(M, L, corrupted, Q1, Q2, rank)
    assert np.linalg.norm(known - L) < np.linalg.norm(M - L)
    assert random_tables.verdict(seed) == "right"


def test_the_field_is_compared_in_one_run(load, tmp_path, capsys):
    field = load("field")
    words = ["--n", "150", "--d", "8", "--rank", "2", "--repeats", "1", "--transcriptions"]
    field.main([*words, "--json", str(tmp_path / "field.json")])
    rows = json.loads((tmp_path / "field.json").read_text())["solvers"]
    printed = capsys.readouterr().out
    assert {name.partition(",")[0] for name in rows} == {"oracle read", *irpca.solvers.SOLVERS}
    assert {"pcpf, transcribed", "pcp, transcribed", "altproj, transcribed"} <= set(rows)
    assert rows["irpca"]["ratio"] == 1
    for name, row in rows.items():
        assert f"\n{name} " in printed
        record = row["rounds"][0]
        if name in ("irpca", "irpca_iht, whitened", "pcpf", "altproj", "accaltproj", "pcpf, transcribed"):
            assert record["error"] <= 1e-6
            assert record["missed"] == 0
    assert rows["pca"]["iterations"] == [None]
    assert "not recovered" in printed
