"""Would the tests notice? Small changes to the default solver, one at a time, each with the tests of the changed file.

    python -m lab.mutation [--sample N] [--seed K] [--files NAME ...] [--jobs N] [--json PATH]

A change (mutant) doubles, halves or shifts a number, moves or turns a comparison, swaps ``and`` and ``or``, + and −,
× and ÷, smallest and largest, or drops a ``not``. A mutant is killed if a test fails, or if the tests take several
times as long as they should; otherwise it survives. The sample is drawn at random from equally large groups of
neighbouring mutants, so that it is spread over all files and lines. What survived last time, and why that is right or
what is missing, is in ``lab/results/mutation.md``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from lab.machine import ROOT

PACKAGE = Path("src/irpca")
FITS = "tests/solvers/test_irpca.py::test_"
SMALL_FITS = tuple(
    FITS + name
    for name in (
        "an_intercept_does_not_follow_one_sided_outliers",
        "a_rank_too_high_for_the_table_is_told",
        "values_once_stored_in_single_precision",
        "counts",
        "to_know_the_noise_costs_neither_reads_nor_accuracy",
    )
)
EXACT_FITS = tuple(
    FITS + name
    for name in (
        "gross_errors_of_all_sizes_are_no_noise",
        "indicators_on_both_sides",
        "finds_the_rank_without_noise",
        "recovers_rectangles_from_patterns",
    )
)
WHOLE_FITS = tuple(
    f"tests/test_factors.py::test_{name}"
    for name in ("a_line_that_was_fitted_to_its_errors_is_fitted_again", "features_help_where_few_entries_are_seen")
)
TESTS = {  # of every file that is changed: those that should notice, the fastest first; 25 s of CPU time at most
    "model/calibration.py": ("tests/test_calibration.py",),
    "model/choice.py": ("tests/test_choice.py",),
    "model/factors.py": ("tests/test_factors.py", *SMALL_FITS[:2]),
    "model/noise.py": ("tests/test_noise.py", *WHOLE_FITS),
    "outliers.py": ("src/irpca/outliers.py", "tests/test_outliers.py"),
    "solvers/trimmed.py": ("tests/solvers/test_trimmed.py", *EXACT_FITS),
    "solvers/bayes.py": ("tests/solvers/test_bayes.py", *EXACT_FITS[:3], *SMALL_FITS),
    "solvers/race.py": ("tests/solvers/test_race.py", *SMALL_FITS),
    "verdict.py": ("tests/test_verdict.py",),
}
CONSTANTS = "constants.py"  # with the tests of the files that use a constant
PATIENCE = 4  # times the CPU time of the unchanged code, after which tests are stopped; and 10 s
LONGEST = 1800  # seconds, should a mutant wait for ever
IMPORTED = ("numba", "pandas", "pytest", "scipy.optimize", "scipy.sparse.linalg", "scipy.stats", "sklearn.base")

SWAPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
COMPARED = {  # the limit moved, and the comparison turned
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip
EXTREMES = {"min": "max", "minimum": "maximum", "argmin": "argmax"}
EXTREMES |= {other: name for name, other in EXTREMES.items()}


@dataclass(frozen=True)
class Mutant:
    """A change: which variant of which node of the syntax tree of a file, and the files whose tests should notice."""

    file: str
    line: int
    change: str
    node: int
    variant: int
    users: tuple[str, ...]


class Row(NamedTuple):
    """What became of a mutant: killed, survived or timeout; by which test; after how much CPU time."""

    file: str
    line: int
    change: str
    fate: str
    by: str
    seconds: float


def variants(node: ast.AST) -> list[ast.expr]:
    """What may stand in the place of an expression."""
    match node:
        case ast.Constant(value=bool()):
            return []
        case ast.Constant(value=int() as n):
            return [ast.Constant(new) for new in dict.fromkeys((n + 1, n - 1, 2 * n, n // 2)) if new != n]
        case ast.Constant(value=float() as x):
            return [ast.Constant(new) for new in ((2 * x, x / 2) if x else (1.0,))]
        case ast.Compare(left, ops, comparators):
            return [
                ast.Compare(left, [*ops[:k], new(), *ops[k + 1 :]], comparators)
                for k, op in enumerate(ops)
                for new in COMPARED.get(type(op), ())
            ]
        case ast.BoolOp(op, values):
            return [ast.BoolOp(SWAPPED[type(op)](), values)]
        case ast.BinOp(left, op, right) if type(op) in SWAPPED:
            return [ast.BinOp(left, SWAPPED[type(op)](), right)]
        case ast.UnaryOp(ast.Not(), operand):
            return [operand]
        case ast.Name(id=name) if name in EXTREMES:
            return [ast.Name(EXTREMES[name])]
        case ast.Attribute(value, attr=name) if name in EXTREMES:
            return [ast.Attribute(value, EXTREMES[name])]
    return []


@cache
def source(file: str) -> str:
    return (ROOT / PACKAGE / file).read_text()


def mutants(file: str) -> Iterator[Mutant]:
    """Every change of a file, line by line."""
    tree = ast.parse(source(file))
    found = []
    for k, node in enumerate(ast.walk(tree)):
        for v, new in enumerate(variants(node)):
            users = (file,) if file in TESTS else users_of(constant_at(tree, node.lineno))
            found.append(Mutant(file, node.lineno, f"{ast.unparse(node)} → {ast.unparse(new)}", k, v, users))
    return iter(sorted((one for one in found if one.users), key=lambda one: (one.line, one.node)))


def constant_at(tree: ast.Module, line: int) -> list[str]:
    """The names assigned there."""
    (statement,) = (one for one in tree.body if one.lineno <= line <= (one.end_lineno or line))
    return [name.id for name in ast.walk(statement) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)]


def users_of(names: list[str]) -> tuple[str, ...]:
    """The files that use one of these constants."""
    return tuple(file for file in TESTS if any(f"constants.{name}" in source(file) for name in names))


def changed(mutant: Mutant) -> str:
    """The source of the file with the change in it."""
    tree = ast.parse(source(mutant.file))
    place = list(ast.walk(tree))[mutant.node]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return variants(node)[mutant.variant] if node is place else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Put().visit(tree)))


def sampled(every: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """One of each of so many equally large groups of neighbours."""
    rng, n = random.Random(seed), len(every)
    size = min(size, n)
    return [every[rng.randrange(k * n // size, (k + 1) * n // size)] for k in range(size)]


def run(tests: tuple[str, ...], folder: Path, seconds: float) -> tuple[str, float]:
    """Why the tests in a folder failed, "" if they did not, and the CPU time they took, at most so much."""
    log = folder / "log.txt"
    if not (child := os.fork()):  # all but irpca is imported already
        try:
            _test(tests, folder, log, int(seconds) + 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    why = ""
    if os.WIFSIGNALED(status):
        why = "timeout"
    elif status:
        found = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(), re.MULTILINE)
        why = found[0] if found else "not imported"
    return why, usage.ru_utime + usage.ru_stime


def _test(tests: tuple[str, ...], folder: Path, log: Path, seconds: int) -> None:
    """Run tests in a process of their own, and end it."""
    signal.alarm(LONGEST)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    os.chdir(folder)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout=0", "--hypothesis-seed=0"]
    os._exit(int(import_module("pytest").main([*options, *tests])))


def judge(some: list[Mutant]) -> list[Row]:
    """Mutants one after another, and what became of each."""
    rows, clean = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part)
        for file in ("pyproject.toml", "conftest.py"):
            shutil.copy(ROOT / file, folder)
        sys.path.insert(0, str(folder / "src"))
        os.environ["PYTHONPATH"] = str(folder / "src")
        for module in IMPORTED:
            import_module(module)
        sys.dont_write_bytecode = True  # a mutant of the same size and second would be taken for the one before
        for mutant in some:
            why, seconds, file = "", 0.0, folder / PACKAGE / mutant.file
            for user in mutant.users:
                if user not in clean:
                    failed, clean[user] = run(TESTS[user], folder, 600)
                    if failed:
                        raise RuntimeError(f"{failed} fails without any change:\n{(folder / 'log.txt').read_text()}")
                file.write_text(changed(mutant))
                why, took = run(TESTS[user], folder, PATIENCE * clean[user] + 10)
                shutil.copy2(ROOT / PACKAGE / mutant.file, file)
                seconds += took
                if why:
                    break
            fate = "survived" if not why else "timeout" if why == "timeout" else "killed"
            rows.append(Row(mutant.file, mutant.line, mutant.change, fate, why, round(seconds, 1)))
            print(f"{fate}: {mutant.file}:{mutant.line}  {mutant.change}", flush=True)
    return rows


def report(rows: list[Row]) -> str:
    """How many were killed in each file, and what survived."""
    lines = []
    for file in (*dict.fromkeys(row.file for row in rows), "all"):
        some = [row for row in rows if file in (row.file, "all")]
        dead = sum(row.fate != "survived" for row in some)
        lines.append(f"{file:22} {dead:4} of {len(some):4} killed, {dead / len(some):.0%}")
    lines += [f"survived: {row.file}:{row.line}  {row.change}" for row in rows if row.fate == "survived"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=100, metavar="N", help="mutants (100); 0: all")
    parser.add_argument("--seed", type=int, default=0, metavar="K")
    parser.add_argument("--files", nargs="+", choices=[*TESTS, CONSTANTS], default=[*TESTS, CONSTANTS], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="put what became of each there")
    options = parser.parse_args()
    every = [mutant for file in options.files for mutant in mutants(file)]
    chosen = sampled(every, options.sample or len(every), options.seed)
    started, n = time.perf_counter(), len(chosen)
    parts = [chosen[k * n // options.jobs : (k + 1) * n // options.jobs] for k in range(options.jobs)]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = [row for some in pool.map(judge, parts) for row in some]
    print(f"\n{report(rows)}\n{len(every)} mutants in all, {time.perf_counter() - started:.0f} s")
    if options.json:
        found = {"seed": options.seed, "mutants": len(every), "sample": [row._asdict() for row in rows]}
        text = json.dumps(found, indent=1, ensure_ascii=False)
        options.json.write_text(re.sub(r"{[^{}]*}", lambda one: " ".join(one[0].split()), text) + "\n")


if __name__ == "__main__":
    main()
