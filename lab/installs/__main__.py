"""Build the package, install it in clean environments, and check what was installed, with warnings as errors.

    python -m lab.installs                                   # every environment whose Python is found
    python -m lab.installs --only oldest "3.14 newest"       # those whose name contains one of these
    python -m lab.installs --python ~/python3.14/bin/python  # an interpreter that is not on the path
    python -m lab.installs --gpu --constraint torch==2.13.0  # the gpu extra, too: gigabytes, or a build at hand
    python -m lab.installs --keep lab/results/installs.txt

Needs git and the standard library only. One line for each environment; the exit code is 1 if any has failed. What was
not run, for want of its Python, is listed as such. ``--keep`` writes all that into a file, once all have run.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = Path(__file__).with_name("check_installed.py")
NOT_IN_SDIST = {".ci/run"}  # for the machine of this repository

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# The optional libraries that each extra brings: check_installed.py uses these, and expects all others to be missing.
BRINGS = {
    "": set(),
    "pandas": {"pandas"},
    "plot": {"matplotlib"},
    "files": {"pyarrow", "zarr"},
    "dask": {"dask", "pandas", "pyarrow", "zarr"},
    "demo": {"matplotlib", "pandas"},
    "gpu": {"torch"},
}
BRINGS["all"] = BRINGS["test"] = BRINGS["demo"] | BRINGS["files"] | BRINGS["dask"]

# Newer releases of these warn when the oldest matplotlib and zarr import them.
BESIDE_THE_OLDEST = ("pyparsing<3.3", "numcodecs<0.16.4")

# What depends most on the versions of other libraries, and takes a minute.
TESTS = ["tests/test_labels.py", "tests/test_longtable.py", "tests/test_encoder.py", "tests/test_readers.py"]
TESTS += ["tests/test_plots.py", "tests/test_sklearn.py", "tests/test_lowrank.py", "tests/datasets/test_bundled.py"]


@dataclass(frozen=True)
class Environment:
    """A Python and what is installed in it."""

    python: str
    title: str
    extra: str = ""
    oldest: bool = False  # every requirement at the lower bound that the package states
    sdist: bool = False  # installed from the sdist instead of the wheel
    without: tuple[str, ...] = ()  # uninstalled again
    tests: bool = False

    @property
    def name(self) -> str:
        return f"{self.python} {self.title}"

    @property
    def optional(self) -> set[str]:
        return BRINGS[self.extra] - set(self.without)


ENVIRONMENTS = [
    *(Environment(python, "newest") for python in PYTHONS),
    *(Environment(python, "newest all", "all") for python in PYTHONS),
    Environment("3.11", "oldest", oldest=True),
    Environment("3.11", "oldest all tests", "test", oldest=True, tests=True),
    Environment("3.14", "newest all tests", "test", tests=True),
    Environment("3.12", "from the sdist", sdist=True),
    Environment("3.13", "without pandas", "all", without=("pandas", "dask", "distributed")),
    *(Environment("3.12", f"extra {extra}", extra) for extra in ("pandas", "plot", "files", "dask", "demo")),
    Environment("3.11", "extra gpu", "gpu"),
]


class Failed(Exception):
    """A command that failed, or a check; the text is what it said."""


def run(*words: str | Path, cwd: Path, limit: float = 1800, **settings: str) -> str:
    """What a command prints; its environment is this one without what would lead to other packages."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd,
            env={**inherited, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(map(str, words))}: took longer than {limit:.0f} s") from error
    if done.returncode:
        raise Failed(f"{done.stdout.rstrip()}\nexit code {done.returncode} of {' '.join(map(str, words))}")
    return done.stdout


def interpreters(named: list[str]) -> dict[str, Path]:
    """Pythons by their versions, such as 3.11: those named, then those on the path, then those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = (shutil.which(f"python{version}") for version in PYTHONS)
    found: dict[str, Path] = {}
    for place in [*named, sys.executable, *filter(None, on_path), *sorted(pyenv.glob("versions/*/bin/python"))]:
        asked = [str(place), "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            version = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            if place in named:
                sys.exit(f"--python {place} does not run, or cannot make environments: {error}")
            continue  # such as pyenv's place holder of a version that is not switched on
        found.setdefault(version, Path(place).absolute())
    return found


def environment(python: Path, folder: Path) -> Path:
    """A new virtual environment; its Python."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def pip(python: Path, *words: str | Path, cwd: Path) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words, cwd=cwd)


# Building


def build(python: Path, folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, once they are what they should be."""
    tool = environment(python, folder / "build")
    pip(tool, "install", "-q", "hatchling", cwd=folder)
    run(tool, "-W", "error", "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    sdist, wheel = next((folder / "dist").glob("*.tar.gz")), next((folder / "dist").glob("*.whl"))

    source = unpacked(sdist, folder / "source")
    shipped = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()} - {"PKG-INFO"}
    tracked = set(run("git", "ls-files", cwd=ROOT).splitlines()) - NOT_IN_SDIST
    if shipped != tracked:
        missing, stray = sorted(tracked - shipped), sorted(shipped - tracked)
        raise Failed(f"the sdist lacks {missing} and has {stray}, which git does not track")

    def built_again(name: str) -> dict[str, bytes]:
        run(tool, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / name, cwd=source)
        return contents(next((folder / name).glob("*.whl")))

    here = contents(wheel)
    differ("the wheel of the sdist", here, built_again("again"))
    (bound,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    pip(tool, "install", "-q", pinned(bound), cwd=folder)
    differ(f"the wheel of {pinned(bound)}", *(without_metadata(files) for files in (here, built_again("oldest"))))
    return wheel, sdist


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def without_metadata(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without what names the version of the build tool."""
    return {name: content for name, content in files.items() if ".dist-info/" not in name}


def differ(what: str, here: dict[str, bytes], there: dict[str, bytes]) -> None:
    different = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    if different:
        raise Failed(f"{what} is not the wheel of the repository; these files differ: {', '.join(different)}")


# Requirements


def pinned(requirement: str) -> str:
    """``name==1.2`` for ``name[extra]>=1.2; marker``."""
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,.-]*\])? *>= *([\w.]+)(?: *;.*)?", requirement)
    if not found:
        raise Failed(f"the requirement {requirement!r} states no lower bound: write it as name>=version")
    return f"{found[1]}=={found[2]}"


def lower_bounds(wheel: Path) -> list[str]:
    """Every requirement of the package and its extras, at the oldest version that it allows."""
    files = contents(wheel)
    (metadata,) = (files[name] for name in files if name.endswith(".dist-info/METADATA"))
    return sorted({pinned(one) for one in email.message_from_bytes(metadata).get_all("Requires-Dist", [])})


# Checking


def checked(one: Environment, python: Path, wheel: Path, sdist: Path, constraints: list[str], folder: Path) -> str:
    """Install and check in a new folder; the versions that were checked."""
    inside = environment(python, folder / "venv")
    pins = [*constraints, *([*lower_bounds(wheel), *BESIDE_THE_OLDEST] if one.oldest else [])]
    (folder / "constraints.txt").write_text("\n".join(pins) + "\n")
    what = f"{sdist if one.sdist else wheel}[{one.extra}]".removesuffix("[]")
    pip(inside, "install", "-q", "-c", folder / "constraints.txt", what, cwd=folder)
    if one.without:
        pip(inside, "uninstall", "-q", "-y", *one.without, cwd=folder)
    else:
        pip(inside, "check", cwd=folder)
    said = run(inside, "-I", "-W", "error", CHECK, *sorted(one.optional), cwd=folder, PYTHONWARNINGS="error")
    versions = json.loads(said.splitlines()[0])
    if one.tests:
        source = unpacked(sdist, folder / "source")
        test = [inside, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        run(*test, "--collect-only", cwd=source)  # every test of the sdist can be found with what the sdist holds
        versions["tests"] = run(*test, *TESTS, cwd=source).splitlines()[-1]
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def indented(text: str, most: int = 40) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-most:])


def lines(chosen: list[Environment], options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Name, verdict (ok, FAILED or not run) and details of the build and of each environment."""
    found = interpreters(options.python)
    try:
        wheel, sdist = build(Path(sys.executable), folder)
    except Failed as error:
        yield "build", "FAILED", f"\n{indented(str(error))}"
        return
    yield "build", "ok", f"{wheel.name}, {sdist.name}; from the sdist and by the oldest build tool the same"
    for one in chosen:
        if one.extra == "gpu" and not options.gpu:
            yield one.name, "not run", "--gpu was not given"
        elif one.python not in found:
            yield one.name, "not run", f"Python {one.python} was not found on this machine"
        else:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(dir=folder) as place:
                try:
                    said = checked(one, found[one.python], wheel, sdist, options.constraint, Path(place))
                except Failed as error:
                    yield one.name, "FAILED", f"\n{indented(str(error))}"
                    continue
            yield one.name, "ok", f"{said} ({time.perf_counter() - start:.0f} s)"


def stamp() -> str:
    """Date, commit (with a + if files differ from it) and machine."""
    commit = run("git", "describe", "--always", "--dirty=+", "--exclude=*", cwd=ROOT).strip()
    return f"{time.strftime('%Y-%m-%d')}, commit {commit}, {platform.system()} {platform.machine()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="an interpreter to use")
    parser.add_argument("--constraint", action="append", default=[], metavar="SPEC", help="such as torch==2.13.0")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="environments whose name contains one of these")
    parser.add_argument("--gpu", action="store_true", help="install the gpu extra too")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the lines there, too, once all have run")
    options = parser.parse_args()
    chosen = [one for one in ENVIRONMENTS if not options.only or any(text in one.name for text in options.only)]
    if not chosen:
        parser.error(f"--only {options.only}: no environment has such a name; {[one.name for one in ENVIRONMENTS]}")
    kept = [stamp()]
    names: dict[str, list[str]] = {"ok": [], "FAILED": [], "not run": []}
    with tempfile.TemporaryDirectory(prefix="irpca-installs-") as folder:
        for name, verdict, details in lines(chosen, options, Path(folder)):
            print(line := f"{name}: {verdict}: {details}", flush=True)
            kept.append(line.splitlines()[0].rstrip(" :"))
            names[verdict].append(name)
    counts = [f"{len(names['ok'])} ok"]
    counts += [f"{len(names[bad])} {bad} ({', '.join(names[bad])})" for bad in ("FAILED", "not run") if names[bad]]
    print(line := "; ".join(counts))
    if options.keep:
        options.keep.write_text("\n".join([*kept, line]) + "\n", encoding="utf-8")
    return 1 if names["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
