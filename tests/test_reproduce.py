"""``make reproduce``: what is run, what is kept, and when it is run again."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    """The module, with its results in a folder of their own and one stage that counts how often it is run."""
    monkeypatch.syspath_prepend(str(ROOT))
    module = import_module("experiments.reproduce")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def stage(module, program, tmp_path, **more):
    script = tmp_path / "counted.py"
    script.write_text(program)
    return type("Script", (module.Stage,), {"command": lambda self: [sys.executable, str(script)]})(
        "counted", "", **more
    )


def test_what_is_printed_is_kept_under_where_it_was_measured(reproduce, tmp_path):
    one = stage(reproduce, "print('a table')", tmp_path)
    assert one.run()
    first, *rest = one.kept.read_text().splitlines()
    assert "irpca at " in first and "minutes" in first
    assert rest == ["", "a table"]


def test_a_failure_keeps_what_was_there_and_is_the_exit_code(reproduce, tmp_path, monkeypatch, capsys):
    one = stage(reproduce, "raise SystemExit(3)", tmp_path)
    one.kept.write_text("older\n")
    monkeypatch.setattr(reproduce, "STAGES", (one,))
    assert reproduce.main([]) == 1
    assert one.kept.read_text() == "older\n"
    assert "1 stages failed: counted" in capsys.readouterr().out


def test_a_stage_is_run_again_only_if_src_has_changed_since_or_if_it_is_named(reproduce, tmp_path, monkeypatch):
    marks = tmp_path / "marks"
    one = stage(reproduce, f"open({str(marks)!r}, 'a').write('x')", tmp_path)
    monkeypatch.setattr(reproduce, "STAGES", (one,))
    assert not one.current()  # never run
    monkeypatch.setattr(type(one), "current", lambda self: self.kept.exists())
    for words, count in (([], 1), ([], 1), (["counted"], 2)):
        assert reproduce.main(words) == 0
        assert len(marks.read_text()) == count
    monkeypatch.setattr(type(one), "current", lambda self: False)
    reproduce.main([])
    assert len(marks.read_text()) == 3


def test_what_is_kept_is_current_if_src_is_the_same_as_at_its_commit(reproduce, tmp_path, monkeypatch):
    one = stage(reproduce, "", tmp_path)
    asked = []
    monkeypatch.setattr(
        reproduce.subprocess, "run", lambda words, **more: asked.append(words) or type("Done", (), {"returncode": 0})
    )
    one.kept.write_text("a processor, 2 cores, irpca at 0123456789ab, 2026-11-16, 1.0 minutes\n")
    assert one.current()
    assert asked == [["git", "diff", "--quiet", "0123456789ab", "--", "src"]]
    one.kept.write_text("a processor, irpca at 0123456789ab + uncommitted changes in src, 2026-11-16\n")
    assert not one.current()


def test_what_cannot_be_run_here_says_why(reproduce, tmp_path, monkeypatch, capsys):
    one = stage(reproduce, "raise SystemExit(3)", tmp_path, lacking=lambda: "there is no moon")
    monkeypatch.setattr(reproduce, "STAGES", (one,))
    assert reproduce.main([]) == 0
    assert "counted: not run, there is no moon" in capsys.readouterr().out


def test_older_rows_go_first(reproduce, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    (tmp_path / "rows.csv").write_text("older")
    assert stage(reproduce, "", tmp_path, replaces=("rows.csv",)).run()
    assert not (tmp_path / "rows.csv").exists()


def test_every_stage_is_a_module_that_is_there(reproduce):
    names = [one.name for one in reproduce.STAGES]
    assert len(set(names)) == len(names)
    for one in reproduce.STAGES:
        module = ROOT / one.words.split()[0].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), one.name


def test_an_unknown_stage_is_refused(reproduce, capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["figure3"])
    assert "figure3: choose from random_tables" in capsys.readouterr().err
