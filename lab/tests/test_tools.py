"""Mutation, texts, installs, examples, and a few of each stage of the soak."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lab.soak.__main__ as soak
from lab import mutation, texts
from lab.installs import __main__ as installs
from lab.machine import ROOT
from lab.soak import fuzz, interrupts, invariances, limits, memory, models, processes
from lab.soak.tally import Tally


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("3", ["4", "2", "6", "1"]),
        ("0.5", ["1.0", "0.25"]),
        ("True", []),
        ("a <= b < c", ["a < b < c", "a > b < c", "a <= b <= c", "a <= b >= c"]),
        ("a and b", ["a or b"]),
        ("a / b", ["a * b"]),
        ("not a", ["a"]),
        ("np.minimum", ["np.maximum"]),
    ],
)
def test_what_may_stand_in_the_place_of_an_expression(code, changes):
    assert [ast.unparse(new) for new in mutation.variants(ast.parse(code, mode="eval").body)] == changes


def test_mutants_differ_in_one_place_and_name_tests_that_are_there():
    for file in (*mutation.TESTS, mutation.CONSTANTS):
        plain = ast.unparse(ast.parse(mutation.source(file))).splitlines()
        for mutant in mutation.sampled(list(mutation.mutants(file)), 3, 0):
            lines = mutation.changed(mutant).splitlines()
            assert sum(a != b for a, b in zip(plain, lines, strict=True)) == 1
    for test in {test for tests in mutation.TESTS.values() for test in tests}:
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / path).read_text()


def test_a_mutant_is_killed_and_the_file_restored():
    """In a process of its own: mutants are judged in a copy of the tree, where the changed file is put back."""
    code = """if True:
        from lab import mutation
        mutation.TESTS = {"wording.py": ("tests/test_wording.py",)}
        mutant, *_ = mutation.mutants("wording.py")
        texts = iter(["raise ImportError", mutation.source("wording.py")])
        mutation.changed = lambda one: next(texts)
        print(*(row.fate for row in mutation.judge([mutant, mutant])))
    """
    before = mutation.source("wording.py")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["killed survived"], done.stderr
    assert (ROOT / mutation.PACKAGE / "wording.py").read_text() == before


def test_texts_tell_when_they_are_made():
    """Each text of a line on its own; none of a docstring, of a default or of a format."""
    source = """def told(x, word="a default text"):
        "Some docstring."
        return f"{x:>3} is {'a small number' if x < 5 else 'a large number'}"
    """
    found, made = texts.Texts("m.py"), []
    names = {"__text__": lambda place, text: made.append(found.places[place]) or text}
    exec(compile(found.visit(ast.parse(source)), "m.py", "exec"), names)
    assert names["told"](1) == "  1 is a small number"
    assert list(found.places.values()) == ["a small number", "a large number"] and made == ["a small number"]


def test_every_extra_is_installed_and_every_lower_bound_is_stated():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"docs", "dev"}
    assert {one.extra for one in installs.ENVIRONMENTS} == {"", *extras}
    assert installs.pinned("dask[array,dataframe]>=2025.1; extra == 'all'") == "dask==2025.1"
    assert installs.CHECK.exists() and all((ROOT / test).exists() for test in installs.TESTS)
    with pytest.raises(installs.Failed, match="states no lower bound: write it as name>=version"):
        installs.pinned("numpy<3")


def test_an_environment_that_fails_is_shown_and_one_that_is_missing_is_not_passed(monkeypatch, capsys):
    def failing(one, *_):
        raise installs.Failed(installs.run(sys.executable, "-c", "1 / 0", cwd=ROOT))

    monkeypatch.setattr(sys, "argv", ["installs.py", "--only", "3.11 oldest", "3.14 newest"])
    monkeypatch.setattr(installs, "interpreters", lambda named: {"3.11": sys.executable})
    monkeypatch.setattr(installs, "build", lambda python, folder: (Path("i.whl"), Path("i.tar.gz")))
    monkeypatch.setattr(installs, "stamp", lambda: "today")
    monkeypatch.setattr(installs, "checked", failing)
    assert installs.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert "    ZeroDivisionError: division by zero" in said
    assert "3.14 newest: not run: Python 3.14 was not found on this machine" in said


@pytest.mark.parametrize("name", ["ratings", "traffic"])
def test_an_example_ends_politely_without_its_data(name, tmp_path, monkeypatch):
    monkeypatch.delenv("IRPCA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = subprocess.run([sys.executable, "-m", f"lab.examples.{name}"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "https://" in done.stdout


# The soak


@pytest.mark.parametrize(("name", "count"), {"models": 200, "checkpoints": 40, "fuzz": 40, "interrupts": 6}.items())
@pytest.mark.filterwarnings("ignore")  # odd calls make other libraries warn; the stage itself says which must not be
def test_a_stage_finds_nothing(name, count):
    tally = soak.stage(name, count)
    assert tally.tried == count and not tally.failures, tally.closing(name)


def test_invariances_of_exact_tables_hold():
    tally = Tally(10)
    for name, (holds, tables, _) in invariances.PROPERTIES.items():
        if not name.startswith("noise"):
            invariances.attempt(tally, name, holds, tables, 2)
    assert tally.tried >= 20 and not tally.failures, tally.closing("invariances")


def test_processes_memory_and_limits():
    found = processes.asked("fork", seconds=100)
    assert found == {"bits": processes.TABLES, "of": processes.TABLES, "error": 0.0, "threads": True}
    assert memory.asked("exact, float32", megabytes=80)["beside"] < 0.3
    assert not limits.by_places()


@pytest.mark.parametrize(
    ("text", "kind", "wrong"),
    [
        ("irpca.solve(M, F1, F2, rank=2)", "answered", ""),
        ("irpca.solve(M, rank=-1)", "refused", ""),
        ("[][1]", "broken", "IndexError"),
        ("np.array([1.0]) / 0", "warned", "RuntimeWarning"),
        ("float('x')", "refused", "ValueError that names no argument"),
    ],
)
def test_a_failure_would_be_seen(text, kind, wrong):
    found = fuzz.outcome(text, {"rank"})
    assert found.kind == kind and found.wrong.startswith(wrong) and bool(found.wrong) == bool(wrong)


def test_what_is_executed_or_left_behind_would_be_seen():
    models.Watch.seen.clear()
    with models.Watch.on():
        exec("1")
    assert any(event.startswith("exec") for event in models.Watch.seen)
    models.Watch.seen.clear()
    with interrupts.single_threaded_blas:
        assert interrupts.left_behind(interrupts.others()) == "BLAS is held to one thread"


def test_the_soak_keeps_what_it_found(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "RESULTS", tmp_path)
    assert soak.main(["checkpoints", "--count", "3", "--keep", "--seed", "4"]) == 0
    assert capsys.readouterr().out.startswith("checkpoints: 3 tried (")
    kept = json.loads((tmp_path / "checkpoints-4.json").read_text())
    assert (kept["tried"], kept["failures"], kept["seed"]) == (3, {}, 4) and kept["commit"]
    failed = Tally(2)
    failed.fail("a kind", "a reproducer")
    monkeypatch.setattr(soak, "stage", lambda *_: failed)
    assert soak.main(["fuzz"]) == 1
