"""Who may import whom (CONTRIBUTING.md), read from the source; and what ``import irpca`` may load."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import irpca
from irpca import solvers

ROOT = Path(irpca.__file__).parent

# Each room and the rooms it may import. A name stands for a module, or for all modules of a folder; one of these may
# have a line of its own.
BELOW_SOLVERS = {
    "arguments",
    "cached",
    "lowrank",
    "constants",
    "durable",
    "features",
    "regression",
    "result",
    "sample",
    "wording",
}
BELOW_SOLVERS |= {"model", "problem"}
FOUNDATION = BELOW_SOLVERS | {"engines"}
EVERYTHING = FOUNDATION | {
    "answers",
    "callbacks",
    "checkpoint",
    "containers",
    "datasets",
    "described",
    "diagnostics",
    "explain",
}
EVERYTHING |= {"estimator", "labels", "longtable", "loop", "mistakes", "outliers", "persistence", "plots", "report"}
EVERYTHING |= {"selection", "solvers", "tables", "verdict", ""}
ROOMS = {
    "arguments": set(),
    "wording": set(),
    "cached": set(),
    "threads": set(),
    "lowrank": {"cached", "threads"},
    "arrays": {"lowrank", "arguments"},
    "features": {"arrays", "cached", "dates", "features", "lowrank", "wording"},
    "engines": {"lowrank", "arguments", "arrays", "cached", "model.maps", "threads", "engines", "wording"},
    "constants": set(),
    "result": {"lowrank", "constants", "engines.base", "engines.sparse_part", "model.calibration", "model.entry_scale"}
    | {"model.maps", "wording"},
    "callbacks": {"arguments", "result", "constants", "checkpoint"},
    "durable": set(),
    "encoding": {"lowrank"},
    "checkpoint": {"durable", "encoding", "lowrank", "engines.base", ""},
    "sample": {"cached", "lowrank", "engines"},
    "model.maps": {"lowrank", "engines.base"},  # engines read M through maps, so these are to need nothing else
    "model": {"cached", "constants", "engines", "features", "lowrank", "model", "problem", "regression"}
    | {"result", "sample"},
    "regression": FOUNDATION,
    "problem": {"cached", "constants", "engines", "features", "lowrank", "model.columns", "model.maps", "sample"},
    "solvers": BELOW_SOLVERS | {"solvers", "engines.base", "threads"},
    "verdict": {"cached", "lowrank", "constants", "engines.base", "features", "labels", "model.entry_scale"}
    | {"result", "sample", "wording"},
    "mistakes": {"cached", "lowrank", "constants", "engines.base", "engines.sparse_part", "model.entry_scale"}
    | {"model.maps", "result", "tables", "wording"},
    "explain": FOUNDATION | {"labels", "mistakes", "tables"},
    "loop": FOUNDATION | {"callbacks", "checkpoint", "mistakes", "solvers", "verdict", "outliers", "outlier_files"},
    "datasets": {"datasets", "arguments", "containers"},
    "longtable": {"arguments", "lowrank", "labels", "wording"},
    "outliers": {"lowrank", "engines.base", "engines.sparse_part", "model", "wording"},
    "outlier_files": {"lowrank", "durable", "engines.base", "model.entry_scale", "outliers", "wording"},
    "diagnostics": FOUNDATION,
    # What people hand in and get back.
    "labels": {"arguments", "lowrank", "wording"},
    "dates": {"lowrank"},
    "containers": {"lowrank", "arguments", "arrays", "labels", "wording"},
    "described": {"arguments", "lowrank", "arrays", "labels", "containers", "features", "result", "wording"},
    "tables": {"arguments", "lowrank", "engines.base", "engines.sparse_part", "model", "result"},
    "answers": FOUNDATION | {"labels", "containers", "described", "explain", "mistakes", "tables", "outliers"},
    "estimator": FOUNDATION
    | {
        "answers",
        "explain",
        "labels",
        "containers",
        "described",
        "mistakes",
        "tables",
        "outliers",
        "callbacks",
        "solvers",
    }
    | {"arrays", "loop", "verdict", "persistence"},  # the latter for save()
    # On top: these may look at everything, and nothing looks at them.
    "selection": FOUNDATION | {"containers", "described", "estimator"},
    "persistence": EVERYTHING | {"durable", "encoding"},
    "plots": EVERYTHING | {"arrays"},
    "report": EVERYTHING | {"durable"},
    "readers": {"readers", "arguments", "dates", "lowrank", "labels", "containers", "longtable", "wording"},
    "cli": EVERYTHING | {"cli", "readers"},
    "__main__": {"cli"},
    "": EVERYTHING,
}

# Libraries beside NumPy, SciPy and the standard library, and the only rooms that may import them.
LIBRARIES = {
    "sklearn": {"estimator", "answers", "selection", "described", "persistence"},
    "pandas": {"labels", "containers", "longtable", "persistence", "engines.distributed", "datasets.bundled"},
    "polars": {"containers"},
    "pyarrow": {"containers", "outlier_files", "readers.files", "engines.distributed"},
    "xarray": {"containers"},
    "narwhals": {"containers", "features.frames"},
    "matplotlib": {"plots"},
    "numba": {"engines.compiled", "engines.compiled_lines"},
    "llvmlite": {"engines.compiled"},
    "threadpoolctl": {"threads"},
    "array_api_compat": {"answers", "engines.arithmetic", "engines.sparse_part", "model", "solvers.convex"}
    | {"solvers.dense", "tables"},
    "torch": {"containers", "engines.gpu"},
    "triton": {"engines.gpu.triton_kernels"},
    "dask": {"engines.distributed"},
    "distributed": {"engines.distributed"},
    "zarr": {"engines.distributed", "readers.files"},
}
HEAVY = ["scipy", "sklearn", "numba", "llvmlite", "pandas", "polars", "matplotlib", "torch", "dask"]
HEAVY += ["distributed", "zarr", "pyarrow"]


def name_of(path, root):
    """``solvers.irpca`` for solvers/irpca.py, ``solvers`` for its __init__.py, "" for the package itself."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path, root, nodes=ast.walk):
    """Dotted names that a file imports anywhere in it; those of this package begin with ``irpca``."""
    package = ["irpca", *path.relative_to(root).parts[:-1]]
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            for alias in node.names:  # from .engines import base: that may be a module, too
                yield f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}", root) else module


def is_module(name, root):
    first, *rest = name.split(".")
    place = root.joinpath(*rest)
    return first == "irpca" and bool(rest) and (place.with_suffix(".py").exists() or (place / "__init__.py").exists())


def within(name, rooms):
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def trespasses(root=ROOT):
    """Every import that breaks a rule, as a sentence."""
    for path in sorted(root.rglob("*.py")):
        name = name_of(path, root)
        shown = name or "__init__"
        room = name if name in ROOMS else name.split(".")[0]
        if room not in ROOMS:
            yield f"{shown} is in no room: give it a line in ROOMS"
            continue
        for imported in imports_of(path, root):
            library, _, inside = imported.partition(".")
            if library == "irpca":
                if inside and not within(inside, ROOMS[room]):
                    yield f"{shown} imports {inside}"
            elif library in LIBRARIES:
                if not within(name, LIBRARIES[library]):
                    yield f"{shown} imports {library}"
            elif library not in {"numpy", "scipy"} and library not in sys.stdlib_module_names:
                yield f"{shown} imports {library}, which is in no list"


def test_who_may_import_whom():
    assert list(trespasses()) == []


def test_no_solver_shares_its_name_with_a_function_it_holds():
    """``from irpca.solvers import pcp`` is a module then, whoever asks."""
    for path in (ROOT / "solvers").glob("*.py"):
        defined = {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}
        assert path.stem not in defined
    for name in solvers.SOLVERS:
        assert isinstance(getattr(solvers, name), ModuleType)


def test_there_is_something_to_look_at():
    modules = {name_of(path, ROOT) for path in ROOT.rglob("*.py")}
    assert {"", "lowrank", "loop", "solvers.irpca_iht", "engines.base", "engines.kernels"} <= modules
    imports = set(imports_of(ROOT / "solvers" / "irpca_iht.py", ROOT))
    assert {"numpy", "irpca.engines.base", "irpca.lowrank", "irpca.result"} <= imports
    assert "irpca.verdict" in set(imports_of(ROOT / "loop.py", ROOT))


BROKEN = {
    "solvers/greedy.py": ("from ..engines.memory import MemoryEngine", "solvers.greedy imports engines.memory"),
    "solvers/lazy.py": ("def f():\n    from ..engines import memory", "solvers.lazy imports engines.memory"),
    "solvers/picky.py": ("from ..engines import choose", "solvers.picky imports engines"),
    "solvers/upward.py": ("from ..loop import solve", "solvers.upward imports loop"),
    "solvers/whole.py": ("import irpca.estimator", "solvers.whole imports estimator"),
    "engines/loop.py": ("from ..solvers import SOLVERS", "engines.loop imports solvers"),
    "engines/frame.py": ("import pandas as pd", "engines.frame imports pandas"),
    "engines/lazy.py": ("import dask.array", "engines.lazy imports dask"),
    "engines/remote.py": ("from distributed import Client", "engines.remote imports distributed"),
    "lowrank.py": ("from . import features", "lowrank imports features"),
    "loop.py": ("import sklearn.base", "loop imports sklearn"),
    "datasets/other.py": ("import pandas", "datasets.other imports pandas"),
    "diagnostics.py": ("from matplotlib import pyplot", "diagnostics imports matplotlib"),
    "estimator.py": ("from . import plots", "estimator imports plots"),
    "model/maps.py": ("from .noise import NoiseModel", "model.maps imports model.noise"),
    "model/noise.py": ("import left_pad", "model.noise imports left_pad, which is in no list"),
    "verdict.py": ("from . import loop", "verdict imports loop"),
    "utils.py": ("", "utils is in no room: give it a line in ROOMS"),
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_trespass_is_seen(tmp_path, path):
    line, complaint = BROKEN[path]
    for file in (
        "__init__.py",
        "plots.py",
        "features.py",
        "loop.py",
        "engines/__init__.py",
        "engines/memory.py",
        path,
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(line if file == path else "")
    assert list(trespasses(tmp_path)) == [complaint]


def circle(graph):
    """The names along a circle of imports, if there is one."""
    done = set()

    def visit(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        done.add(name)
        return next(filter(None, (visit(other, [*path, name]) for other in sorted(graph.get(name, ())))), [])

    return next(filter(None, (visit(name, []) for name in sorted(graph))), [])


def test_no_import_goes_round_in_a_circle():
    """At import time, that is: in no function and under no ``if TYPE_CHECKING``."""
    graph = {}
    for path in ROOT.rglob("*.py"):
        found = imports_of(path, ROOT, lambda tree: tree.body)
        graph[name_of(path, ROOT)] = {name[6:] for name in found if name.startswith("irpca.")}
    assert sum(map(len, graph.values())) > 20
    assert circle(graph) == []
    assert set(circle(graph | {"lowrank": {"dates"}})) == {"dates", "lowrank"}


def test_no_module_shares_its_name_with_a_function_it_holds():
    """``import irpca.solve as x`` gave a function. Solvers are not public modules: one solver, one file is meant."""
    for path in ROOT.glob("*.py"):
        held = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert path.stem not in held, path


def test_no_room_for_odds_and_ends():
    odd = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [path for path in ROOT.rglob("*") if path.stem.strip("_") in odd]


def run(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, irpca; print(*[name for name in {HEAVY} if name in sys.modules])"
    assert run(code) == []


def test_solving_loads_numba_and_nothing_else():
    code = f"""
import sys, irpca
problem = irpca.datasets.make_problem(30, 20, d1=3, d2=3, rank=1, corruption=0.1)
irpca.solve(problem.M, problem.F1, problem.F2, rank=1, solver="irpca_iht")
print(*[name for name in {HEAVY} if name in sys.modules])
"""
    assert run(code) == ["scipy", "numba", "llvmlite"]


def test_every_public_name_is_there():
    assert set(irpca.__all__) <= set(dir(irpca))
    for name in set(irpca.__all__) - {"InductiveRobustPCA"}:
        assert getattr(irpca, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = irpca.nothing
