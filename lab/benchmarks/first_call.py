"""What the first call of a fresh process costs: ``import irpca``, and a small problem with nothing compiled yet.

Every number is from a process of its own. For a first call numba's cache is an empty folder; the next process finds it
filled. The second call of the same process is what the problem itself takes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.machine import ROOT

from .case import Bar, Case, Found, Report, at_most, measured
from .runner import worst

SCRIPT = """
import json, sys, time

started = time.perf_counter()
import irpca

seconds = {"import": time.perf_counter() - started}
n, d, rank, dtype = json.loads(sys.argv[1])
if n:
    problem = irpca.datasets.make_problem(n, n, d, d, rank, 0.1, dtype=dtype)
    for call in ("first", "second"):
        started = time.perf_counter()
        result = irpca.solve(problem.M, problem.F1, problem.F2, rank=rank, extra_rank=0)
        seconds[call] = time.perf_counter() - started
    seconds["error"] = problem.relative_error(result.L)
    seconds["wrong"] = int(((result.S.toarray() != 0) != problem.corrupted).sum())
print(json.dumps(seconds))
"""


def measure(n: int, d: int, rank: int, dtypes: list[str], repeats: int, imports: int) -> Found:
    found: Found = {"imports": [fresh(0)["import"] for _ in range(imports)], "contenders": {}}
    for dtype in dtypes:
        rounds: dict[str, list[Any]] = {"empty": [], "filled": []}
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                for records in rounds.values():
                    records.append(fresh(n, d, rank, dtype, cache=folder))
                    records[-1]["files"] = sum(path.is_file() for path in Path(folder).rglob("*"))
        for cache, records in rounds.items():
            found["contenders"][f"{dtype}, cache {cache}"] = {"rounds": records}
    return found


def fresh(n: int, d: int = 0, rank: int = 0, dtype: str = "float64", cache: str | None = None) -> dict[str, Any]:
    """What a new process says: seconds of the import and of two calls, and the error of the last."""
    words = [sys.executable, "-c", SCRIPT, json.dumps([n, d, rank, dtype])]
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a fresh process failed:\n{done.stderr}")
    return json.loads(done.stdout)


def report(found: Found) -> Report:
    header = ("", "import s", "first call s", "second call s", "error of L", "wrong in S", "files in the cache")
    rows = []
    for name, row in found["contenders"].items():
        rounds = row["rounds"]
        middle = (statistics.median(record[key] for record in rounds) for key in ("import", "first", "second"))
        told = (f"{worst(rounds, 'error'):.1e}", str(worst(rounds, "wrong")), str(worst(rounds, "files")))
        rows.append((name, *(f"{value:.3f}" for value in middle), *told))
    size = found["sizes"]
    title = f"fresh processes; n = {size['n']}, d = {size['d']}, r = {size['rank']}, 10% corrupted"
    middle = statistics.median(found["imports"])
    return Report(title, header, rows, [f"import irpca: median {middle:.3f} s of {len(found['imports'])} processes"])


def bars(found: Found) -> list[Bar]:
    lines = []
    for name, row in found["contenders"].items():
        rounds = row["rounds"]
        told = f"L {worst(rounds, 'error'):.1e}, {worst(rounds, 'wrong')} wrong in S"
        if name.endswith("empty"):
            lines.append(Bar(f"first call, {name}", *at_most(15, worst(rounds, "first"), " s"), told))
        else:
            lines.append(Bar(f"first call, {name}", *measured(worst(rounds, "first"), " s"), told))
    lines.append(Bar("import irpca, in a fresh process", *at_most(0.3, statistics.median(found["imports"]), " s")))
    return lines


CASES = (
    Case(
        "first-call",
        measure,
        {"n": 400, "d": 10, "rank": 3, "dtypes": ["float64", "float32"], "repeats": 2, "imports": 15},
        {"n": 60, "d": 4, "rank": 2, "dtypes": ["float32"], "repeats": 1, "imports": 1},
        report,
        bars,
    ),
)
