"""The script that installs the package in clean environments: what it pins, and what it counts as passed."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOR_DEVELOPERS = {"docs", "dev"}


def script(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installs(monkeypatch):
    return script("installs", monkeypatch)


def test_every_extra_has_an_environment(installs):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {one.extra for one in installs.ENVIRONMENTS} == {"", *extras} - FOR_DEVELOPERS


def test_the_oldest_version_that_a_requirement_allows(installs):
    assert installs.pinned("numpy>=1.26") == "numpy==1.26"
    assert installs.pinned("dask[array,dataframe]>=2025.1; extra == 'all'") == "dask==2025.1"
    for loose in ("numpy", "numpy<3", "numpy>=1.26,<3", "numpy==2"):
        with pytest.raises(installs.Failed, match="states no lower bound: write it as name>=version"):
            installs.pinned(loose)


def test_wheels_that_differ_are_refused(installs):
    installs.differ("it", {"a": b"1"}, {"a": b"1"})
    for other in ({"a": b"2"}, {}, {"a": b"1", "b": b""}):
        with pytest.raises(installs.Failed, match=r"it is not the wheel of the repository; .* differ: [ab]$"):
            installs.differ("it", {"a": b"1"}, other)


def ran(installs, monkeypatch, capsys, *words):
    """Exit code and output of the script, with no Python but 3.11 and nothing installed."""
    monkeypatch.setattr(sys, "argv", ["installs.py", *words])
    monkeypatch.setattr(installs, "interpreters", lambda named: {"3.11": Path("python3.11")})
    monkeypatch.setattr(installs, "build", lambda python, folder: (Path("i.whl"), Path("i.tar.gz")))
    monkeypatch.setattr(installs, "stamp", lambda: "today")  # asks git, and an sdist has none
    code = installs.main()
    return code, capsys.readouterr().out.splitlines()


def test_a_python_that_is_not_there_is_not_passed(installs, monkeypatch, capsys):
    monkeypatch.setattr(installs, "checked", lambda *_: "numpy 1.26")
    code, said = ran(installs, monkeypatch, capsys, "--only", "1 newest", "4 newest", "gpu")
    assert code == 0
    assert "3.14 newest: not run: Python 3.14 was not found on this machine" in said
    assert "3.11 extra gpu: not run: --gpu was not given" in said
    assert said[-1].startswith("3 ok; 4 not run (3.14 newest, ")


def test_what_fails_is_shown_and_counted(installs, monkeypatch, capsys, tmp_path):
    def failing(one, *_):
        raise installs.Failed(installs.run(sys.executable, "-c", "print('so it goes'); 1 / 0", cwd=ROOT))

    monkeypatch.setattr(installs, "checked", failing)
    code, said = ran(installs, monkeypatch, capsys, "--only", "3.11 oldest", "--keep", str(tmp_path / "kept.txt"))
    assert code == 1 and "    so it goes" in said and "    ZeroDivisionError: division by zero" in said
    assert said[-1] == "1 ok; 2 FAILED (3.11 oldest, 3.11 oldest all tests)"
    kept = (tmp_path / "kept.txt").read_text("utf-8").splitlines()
    assert kept == ["today", said[0], "3.11 oldest: FAILED", "3.11 oldest all tests: FAILED", said[-1]]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_command_that_does_not_end_says_where_it_is(monkeypatch, tmp_path, stopped):
    hangs = "os.kill(os.getpid(), signal.SIGSTOP)" if stopped else "signal.pause()"
    (tmp_path / "irpca").write_text(f"#!{sys.executable}\nimport os, signal\n{hangs}\n")
    (tmp_path / "irpca").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    check = script("check_installed", monkeypatch)
    with pytest.raises(AssertionError, match=r"fit.* took more than 2 s, 0 s of them busy\n(?s:.*)irpca\", line 3 in"):
        check.command("fit", cwd=tmp_path, limit=2)
