"""Calls of the public interface with odd arguments: an answer, or an error that names an argument.

A call is made as text, such as ``irpca.solve(M, rank=-1)``, and evaluated with the names of :func:`names`; so what
failed can be typed again: ``fuzz.outcome("irpca.solve(M, rank=-1)")``. Arguments begin as right ones, and some of
them are replaced by odd ones. Of a call that fails those are put back that have no part in it.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import fractions
import io
import os
import random
import re
import signal
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

import irpca
import irpca.cli
import irpca.persistence
import irpca.readers
from irpca.features import FeatureWarning

from .tally import Tally

LONGEST = 60  # seconds of one call, on a machine that has other work
# OSError: of paths. NotImplementedError: an engine cannot do what a solver needs. FloatingPointError: M is too large.
REFUSALS = (ValueError, TypeError, OSError, NotImplementedError, FloatingPointError)
EXPECTED_WARNINGS = (ConvergenceWarning, FeatureWarning, UserWarning)
UNEXPECTED_WARNINGS = (RuntimeWarning, DeprecationWarning, FutureWarning, SyntaxWarning, BytesWarning)

TABLES = """
np.zeros((0, 0))|np.zeros((0, 6))|np.zeros((8, 0))|np.zeros((1, 6))|np.zeros((8, 1))|np.zeros((8, 6))|np.zeros(6)
np.zeros((2, 3, 4))|np.float64(3)|np.array(3.0)|np.ones((8, 6))|M[:, :1]|M[:1]|M[:2, :2]|M[:3]|M.T|M[::-1, ::-1]
[[1, 2], [3]]|[1, 2, 3]|[]|[[]]|[[1, 2], [3, 4]]|[['a', 'b'], ['c', 'd']]|[[None, 1.0], [2.0, 3.0]]|((1, 2), (3, 4))
M.astype(bool)|M > 0|M.astype(object)|M.astype(complex)|M.astype('float16')|M.astype('float128')|M.astype(int)
M.astype('int8')|M.astype('uint64')|M.astype('>f8')|M.astype('<f4')|M.astype(str)|M.astype('S8')|M.astype('M8[s]')
M.astype('m8[s]')|np.asfortranarray(M)|M * np.nan|np.where(M > 0, M, np.nan)|np.where(M > 0, M, np.inf)|M * 1e200
M * 1e-200|M * 1e-310|M + 1e300|np.full((8, 6), 7.0)|np.full((8, 6), 1e308)|np.where(M > M.mean(), M, -np.inf)
np.ma.masked_all((8, 6))|np.ma.masked_array(M, M > 0)|np.ma.masked_array(M)|np.ma.masked_invalid(M[0])|np.matrix(M)
M.view(type('Sub', (np.ndarray,), {}))|np.broadcast_to(M[0], (8, 6))|np.recarray((8,), [('a', float)])
np.array([[Decimal('1.5')] * 6] * 8)|np.array([[Fraction(1, 3)] * 6] * 8)|np.array([[object()] * 6] * 8)
np.array([[None] * 6] * 8)|np.array([[[1], [1, 2]], [[], [3]]], dtype=object)|np.zeros((8, 6), 'V8')|csr(M)
csr((8, 6))|csr((0, 6))|csr(M.astype(int))|csr(M.astype(complex))|csr(M > 0)|csr(M).tocsc()|csr(M).tocoo()
csr(M).todok()|csr(M).tolil()|csr(M).todia()|csr(M).tobsr()|csr(M * np.nan)|csr(M * np.inf)|sp.coo_array(M[0])|frame
frame.iloc[:0]|frame.iloc[:, :0]|frame.iloc[:1]|frame['c0']|frame.astype(str)|frame.astype('category')
frame.astype('Float64')|frame.astype('Int64', errors='ignore')|frame.round().astype('Int64')|frame > 0|frame.T
frame.astype('float32')|frame.astype(object)|pd.concat([frame, frame])|pd.concat([frame, frame], axis=1)|frame.index
frame.reset_index()|pd.DataFrame({'a': days, 'b': days})|pd.DataFrame([[1, 'x'], [2, 'y']])|pd.DataFrame()
frame.where(frame > 0)|frame.astype('Float64').where(frame > 0)|pd.DataFrame({'a': [1 + 2j, 3]})
frame.astype('string')|pd.DataFrame({(1, 2): [1.0, 2], 'x': [3, 4.0]})|pl.DataFrame(M)
pl.DataFrame({'a': ['x', 'y'], 'b': [1, 2]})|pl.DataFrame()|pl.DataFrame(M).lazy()|pl.Series([1, 2])
pa.table({'a': [1.0, 2, None], 'b': [3, 4, 5]})|pa.table({})|xr.DataArray(M)|xr.DataArray(M[0])|xr.Dataset()
irpca.LongTable([0, 1, 2], [0, 1, 0], [1.0, 2, 3])|irpca.LongTable([0], [0], [1.0])|long
irpca.containers.Labelled(M, rows=list('abcdefgh'))|irpca.containers.Labelled(M, rows=['a'])
irpca.containers.Labelled(M[0])|da.from_array(M, chunks=(3, 2))|da.from_array(M[0])|da.zeros((0, 4))
da.from_array(M > 0)|da.from_array(M.astype(complex), chunks=3)|'nowhere.zarr'|Path('nowhere')|'M'|b'M'|''
irpca.engines.MemoryEngine(M)|irpca.engines.ReferenceEngine(M)|range(5)|iter([1, 2])|{1, 2}|{'a': [1, 2]}|object()
type|len|None|3|1.5|True|1j
"""
FEATURES = """
F1|F2|F1[:, :1]|F1[:, :0]|F1[:0]|F1[0]|F1 * 0|F1 * np.nan|F1 * np.inf|F1 * 1e200|F1 * 1e-200|F1 * 1e-310|F1[:7]
F1[:, [0, 0]]|np.hstack([F1] * 4)|np.eye(8)|np.ones((8, 1))|F1.astype(int)|F1.astype(bool)|F1.astype(complex)
F1.astype(str)|F1.astype('float16')|F1.astype(object)|F1.astype('M8[s]')|F1.astype('float32')
np.ma.masked_array(F1, F1 > 0)|csr(F1)|F1.tolist()|[[1], [2, 3]]|[]|'index'|'nothing'|rows|rows.iloc[:3]
rows.iloc[::-1]|rows.drop(columns='size')|rows[['when']]|rows[['size']]|rows[['kind']]|rows.T|rows.index
rows.reset_index(drop=True)|rows.assign(size=np.nan)|rows.assign(size=np.inf)|rows.assign(kind=None)
rows.assign(when=pd.NaT)|rows.assign(kind=[[1]] * 8)|rows.assign(kind=1j)
rows.assign(kind=rows['kind'].astype('category'))|rows.assign(kind=[{}] * 8)
rows.assign(size=rows['size'].astype('Float64'))|rows.assign(when=rows['when'].dt.tz_localize('UTC'))|rows.iloc[:, :0]
rows.iloc[:0]|rows.assign(when=[datetime.date(2024, 1, 1 + k) for k in range(8)])|rows.assign(when=datetime.time(1))
rows.assign(size=Decimal('1'))|pd.concat([rows, rows], axis=1)|pl.DataFrame({'a': list('abcdefgh')})|pl.DataFrame(F1)
pa.table({'a': list('abcdefgh')})|long|{'kind': list('abcdefgh')}|{'a': [1, 2]}|irpca.features.Encoder().fit(rows)
xr.DataArray(F1)|M|F1[:, :, None]|0|None|True|object()
"""
INTEGERS = """
-1|0|1|2|3|7|10**3|2**31|2**63|10**30|-10**30|1.0|1.5|nan|inf|-inf|True|False|None|'auto'|'2'|''|[2]|(2,)|np.int8(1)
np.uint64(2)|np.float32(2)|np.array(2)|np.array([2])|np.array([])|2j|Decimal(2)|Fraction(2)|{}|object()|len|b'2'
datetime.date(2024, 1, 1)|pd.NA|pd.NaT
"""
NUMBERS = (
    INTEGERS
    + """
1e-320|1e308|-0.0|0.05|0.5|0.999|1.001|-1e-9|'0.5'|np.float16(0.5)|np.nan|np.float64('inf')|M|csr(M)
"""
)
NAMES = """
''|'x'|'auto'|'irpca'|'pca'|'pcp'|'IRPCA'|'memory'|'reference'|'distributed'|'gpu'|'entries'|'rows'|'exact'|'expected'
b'irpca'|None|0|1.5|True|nan|[]|['irpca']|('a',)|{}|object()|len|M|'c0'|'day'|days[0]|'a' * 500|'\\0'|'\\n'|'ü'|pd.NA
np.str_('irpca')|np.array('irpca')
"""
FLAGS = """
True|False|None|0|1|2|'yes'|''|[]|nan|np.True_|np.array([True, False])|object()|M
"""
PATHS = """
''|'nowhere/x'|folder|folder / 'new'|str(folder / 'new.x')|None|0|1.5|b'x'|'\\0'|object()|[]|'a' * 5000|Path('/')|True
damaged
"""
CALLABLES = """
None|object()|0|'x'|[]|[None]|[print, 3]|(lambda state, history: True)|iter([])|{}
irpca.callbacks.TimeBudget(9)
"""
SEEDS = """
0|1|-1|2**63|2**200|-2**63|1.5|nan|None|'0'|[]|[1, 2]|(1,)|True|np.random.default_rng(0)|np.random.RandomState(0)
np.random.SeedSequence(3)|np.random|object()|np.int64(3)|{}
"""
LINES = """
[0, 1]|[]|0|[-1]|[99]|['c0']|['c0', 'x']|'c0'|'x'|None|[None]|[1.5]|[True]|slice(2)|range(3)|np.array([0, 1])
np.array([[0]])|np.array([])|[0, 0]|days[:2]|days|[days[0]]|frame.columns|(0, 1)|{0}|{}|object()|1.5|nan|10**30
[10**30]|M|iter([0])|np.array([True] * 8)|b'x'|[[0], [1, 2]]
"""
DICTS = """
{}|None|{'rank': [1, 2]}|{'rank': []}|{'rank': 1}|{'rank': 'auto'}|{'nothing': [1]}|{'solver': ['pca', 'x']}|[]|[{}]
[{'rank': [1]}]|{1: [1]}|{'solver_options__noise': [0.1]}|{'noise': 0.1}|{'noise': -1}|{'noise': nan}|{'noise': 'x'}
{'noise': None}|{'noise': [1]}|{'extra_rank': 1}|{'rank': [-1]}|{'rank': [1.5, None]}|{'tol': [nan]}|{'max_iter': [0]}
3|'rank'|object()|{'rank': range(1, 3)}|{'c_W': 1}|{None: 1}
"""
SHAPES = """
(8, 6)|None|(0, 0)|(1, 1)|(8,)|(8, 6, 1)|(-1, 6)|(8.0, 6)|('8', 6)|8|[8, 6]|(2**40, 2**40)|(nan, 6)|()|object()|'86'
(2, 2)|(10**30, 3)
"""
OBJECTS = """
model|framed|result|irpca.InductiveRobustPCA()|irpca.InductiveRobustPCA|None|M|3|'x'|object()|encoder
irpca.LowRank.zero((3, 2))|{}
"""
WORDS = """
['fit', csv]|['fit', csv, '--rank', '-1']|['fit', csv, '--rank', 'x']|['fit', csv, '--rank', '99']|['fit']|[]|['x']
['fit', '']|['--version']|['fit', csv, '--solver', 'x']|['fit', csv, '--fdr', '7']|['fit', csv, '--fdr', 'nan']
['fit', csv, '--index', 'x']|['fit', ragged]|['fit', empty]|['fit', binary]|['fit', texts]
['fit', csv, '--row-features', ragged]|['fit', csv, '--row-features', csv]|['fit', csv, '--out', '']
['fit', str(folder)]
['fit', 'nowhere.csv']|['fit', csv, '--delimiter', '']|['fit', csv, '--delimiter', 'xx']
['fit', csv, '--encoding', 'x']|['fit', csv, '--decimal', '']|['fit', csv, '--missing', '']|['show', csv]
['show', damaged]|['apply', damaged, csv]|['fit', csv, csv]|['fit', csv, '--time-budget', '-1']|['fit', '\\0']
['fit', csv, '--seed', 'x']|['fit', csv, '--tol', 'nan']|['fit', csv, '--max-iter', '0']|['fit', npy]|['fit', npz]
['fit', csv, '--key', 'x']
"""


def _pool(text: str) -> list[str]:
    return [word for line in text.strip().splitlines() for word in line.split("|") if word]


POOLS = {
    name: _pool(text)
    for name, text in {
        "table": TABLES,
        "features": FEATURES,
        "integer": INTEGERS,
        "number": NUMBERS,
        "name": NAMES,
        "flag": FLAGS,
        "path": PATHS,
        "callable": CALLABLES,
        "seed": SEEDS,
        "lines": LINES,
        "dict": DICTS,
        "shape": SHAPES,
        "object": OBJECTS,
        "words": WORDS,
        "jobs": "None|1|0|-(10**30)|1.5|nan|True|'2'|[]|pd.NA",  # no more: each is a process
    }.items()
}


@dataclass(frozen=True)
class Call:
    """A call with right arguments, and of which kind each argument is.

    ``given`` are right ones that are always there, ``kinds`` all that there are.
    """

    callee: str
    given: dict[str, str]
    kinds: dict[str, str]
    then: Call | None = None
    known_as: tuple[str, ...] = ("time budget", "noise")  # other names of arguments in messages

    def text(self, words: dict[str, str]) -> str:
        own = [f"{name}={words[name]}" for name in self.kinds if name in words]
        if list(self.kinds)[:1] == ["*"]:
            own = [words["*"]]
        made = f"{self.callee}({', '.join(own)})"
        if self.then is None:
            return made
        inner = {name[1:]: word for name, word in words.items() if name.startswith(".")}
        return f"{made}.{self.then.text(inner)}"

    def base(self) -> dict[str, str]:
        return {**self.given, **{f".{name}": word for name, word in (self.then.base() if self.then else {}).items()}}

    def all_kinds(self) -> dict[str, str]:
        then = self.then.all_kinds() if self.then else {}
        return {**self.kinds, **{f".{name}": kind for name, kind in then.items()}}

    def words(self) -> set[str]:
        """What a message may call the arguments."""
        then = self.then.words() if self.then else set()
        return {*self.kinds, *self.known_as, *then}


SIDES = {"row_features": "features", "col_features": "features"}
LISTED = {"fdr": "number", "probability": "number", "threshold": "number"}
SETTINGS = {
    **{"rank": "integer", "extra_rank": "integer", "col_features": "features", "solver": "name", "engine": "name"},
    **{"tol": "number", "max_iter": "integer", "solver_options": "dict", "callbacks": "callable", "verbose": "flag"},
    **{"time_budget": "number", "random_state": "seed"},
}
SOLVE = {
    **{"M": "table", "F1": "features", "F2": "features", "rank": "integer", "solver": "name", "engine": "name"},
    **{"tol": "number", "max_iter": "integer", "sparse": "flag", "outliers_to": "path", "callbacks": "callable"},
    **{"resume": "path", "random_state": "seed", "noise": "number", "extra_rank": "integer", "penalty": "number"},
}
MADE = {
    **dict.fromkeys(("n1", "n2", "d1", "d2", "rank"), "integer"),
    **dict.fromkeys(("corruption", "noise", "condition", "outlier_scale"), "number"),
    **dict.fromkeys(("features", "outliers", "sign", "pattern", "dtype"), "name"),
    **{"symmetric": "flag", "random_state": "seed"},
}
BOTH = {"M": "M", "F1": "F1", "F2": "F2", "rank": "2"}
FIT = Call("fit", {"M": "M", "row_features": "F1", "col_features": "F2"}, {"M": "table", **SIDES, "resume": "path"})
QUICK = {"rank": "1", "solver": "'pca'", "extra_rank": "0"}
FIELD = ("trimmed", "irpca_iht", "pcp", "pcpf", "altproj", "accaltproj", "rpca_gd", "scaledgd", "ircur", "pca")


def _of_model(name: str, given: dict[str, str], kinds: dict[str, str]) -> list[Call]:
    return [Call(f"{model}.{name}", given, kinds) for model in ("model", "framed")]


CALLS: list[Call] = [
    *[Call("irpca.solve", BOTH, SOLVE)] * 3,
    *[Call("irpca.solve", {**BOTH, "solver": repr(name)}, SOLVE) for name in FIELD],
    Call("irpca.solve", {"M": "M", "solver": "'pca'", "rank": "1"}, SOLVE),
    Call("irpca.solve", {"M": "M", "solver": "'altproj'", "rank": "1"}, SOLVE),
    *[Call("irpca.InductiveRobustPCA", {"rank": "2"}, SETTINGS, FIT)] * 2,
    Call("irpca.InductiveRobustPCA", QUICK, SETTINGS, Call("fit", {"M": "M"}, {"M": "table"})),
    Call(
        "irpca.InductiveRobustPCA",
        QUICK,
        SETTINGS,
        Call("fit_transform", {"M": "frame"}, {"M": "table", **SIDES}),
    ),
    Call("irpca.InductiveRobustPCA", QUICK, SETTINGS, Call("fit", {"M": "frame", "row_features": "rows"}, FIT.kinds)),
    *_of_model("transform", {"M": "M"}, {"M": "table", "row_features": "features"}),
    *_of_model("decompose", {"M": "M"}, {"M": "table", "row_features": "features"}),
    *_of_model("inverse_transform", {"scores": "M[:, :1]"}, {"scores": "table"}),
    *_of_model("predict", {"row_features": "F1"}, {**SIDES, "return_std": "flag"}),
    *_of_model("expected", {}, {"return_std": "flag"}),
    *_of_model(
        "repaired",
        {},
        {"M": "table", "row_features": "features", **LISTED, "return_std": "flag", "return_marks": "flag"},
    ),
    *_of_model("outliers", {}, {"M": "table", "row_features": "features", "most": "integer", **LISTED}),
    *_of_model("outlier_rows", {}, {"M": "table", "row_features": "features"}),
    *_of_model("score", {"M": "M"}, {"M": "table", "row_features": "features", "sample_weight": "lines"}),
    *_of_model("save", {"path": "folder / 'm.irpca'"}, {"path": "path"}),
    Call("irpca.load", {"path": "damaged"}, {"path": "path"}, known_as=("cannot be loaded",)),
    Call("irpca.persistence.save", {"model": "model", "path": "folder / 'm'"}, {"model": "object", "path": "path"}),
    Call(
        "irpca.selection.cross_validate",
        {"model": "irpca.InductiveRobustPCA(rank=1, solver='pca')", "M": "M", "cv": "2"},
        {
            **{"model": "object", "M": "table", **SIDES, "param_grid": "dict", "cv": "integer", "hold_out": "name"},
            **{"one_standard_error": "flag", "n_jobs": "jobs", "random_state": "seed"},
        },
        known_as=tuple(SETTINGS),
    ),
    Call(
        "irpca.LongTable",
        {"rows": "[0, 1, 1]", "cols": "[0, 1, 0]", "values": "[1.0, 2, 3]"},
        {
            **{"rows": "lines", "cols": "lines", "values": "lines", "shape": "shape"},
            **{"row_labels": "lines", "col_labels": "lines"},
        },
        known_as=("M",),
    ),
    Call(
        "irpca.LongTable.from_frame",
        {"frame": "listed"},
        {
            **{"frame": "table", "row": "name", "column": "name", "value": "name"},
            **{"rows": "lines", "columns": "lines"},
        },
        known_as=("user", "item", "rating"),
    ),
    Call("long.take", {"index": "[0]"}, {"index": "lines"}),
    Call("long.with_values", {"values": "[1.0] * 3"}, {"values": "lines"}),
    Call(
        "irpca.features.Encoder",
        {},
        {},
        Call("fit_transform", {"frame": "rows"}, {"frame": "features"}, known_as=("features",)),
    ),
    Call("encoder.transform", {"frame": "rows"}, {"frame": "features"}, known_as=("features",)),
    Call(
        "irpca.datasets.make_problem",
        {"n1": "9", "n2": "7", "d1": "3", "d2": "2", "rank": "1"},
        MADE,
    ),
    Call(
        "irpca.diagnostics.check_assumptions",
        {"M": "M", "F1": "F1", "F2": "F2", "result": "result"},
        {"M": "table", "F1": "features", "F2": "features", "result": "object", "random_state": "seed"},
    ),
    Call(
        "irpca.diagnostics.iteration_bound",
        {"F1": "F1", "F2": "F2", "c_W": "1.0", "epsilon": "0.1"},
        {"F1": "features", "F2": "features", "c_W": "number", "epsilon": "number"},
    ),
    Call("irpca.diagnostics.leverage_scores", {"F": "F1"}, {"F": "features"}),
    Call("irpca.diagnostics.incoherence", {"F": "F1"}, {"F": "features"}),
    Call(
        "irpca.diagnostics.energy_outside",
        {"M": "M", "F1": "F1", "F2": "F2"},
        {"M": "table", "F1": "features", "F2": "features", "result": "object"},
    ),
    Call("irpca.diagnostics.relative_error", {"L": "M", "L_true": "M"}, {"L": "table", "L_true": "table"}),
    Call("irpca.diagnostics.support_scores", {"S": "M", "S_true": "M"}, {"S": "table", "S_true": "table"}),
    Call("irpca.callbacks.TimeBudget", {"seconds": "1"}, {"seconds": "number"}),
    Call("irpca.callbacks.Log", {}, {"logger": "object", "level": "integer"}),
    Call("irpca.engines.choose", {"M": "M"}, {"M": "table", "engine": "name"}),
    Call("irpca.engines.observed", {"M": "M"}, {"M": "table"}),
    Call("irpca.engines.as_matrix", {"M": "M"}, {"M": "table"}),
    Call(
        "irpca.plots.line",
        {"model": "framed", "column": "'c0'"},
        {"model": "object", "row": "name", "column": "name", "M": "table"},
    ),
    Call(
        "irpca.plots.cell_map",
        {"model": "framed"},
        {
            **{"model": "object", "M": "table", "rows": "lines", "columns": "lines"},
            **{"most": "integer", "order": "name"},
        },
        known_as=("row", "column"),
    ),
    Call("irpca.plots.decomposition", {"model": "model"}, {"model": "object", "part": "name", "M": "table"}),
    Call("irpca.plots.convergence", {"model": "model"}, {"model": "object", "against": "name"}),
    Call(
        "irpca.plots.reliability",
        {"probability": "[0.5, 0.9]", "wrong": "[True, False]"},
        {"probability": "lines", "wrong": "lines", "bins": "integer"},
    ),
    Call(
        "irpca.report.write",
        {"model": "model", "path": "folder / 'r.html'", "overwrite": "True"},
        {"model": "object", "path": "path", "M": "table", "title": "name", "overwrite": "flag", **LISTED},
    ),
    *[Call("irpca.cli.main", {"*": "['fit', csv, '--rank', '1']"}, {"*": "words"})] * 3,
]


@cache
def names() -> dict[str, Any]:
    """What the text of a call may name. The folder lasts as long as the process."""
    import dask.array as da
    import matplotlib
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import xarray as xr

    matplotlib.use("agg")
    rng = np.random.default_rng(8)
    F1, F2 = rng.standard_normal((8, 3)), rng.standard_normal((6, 2))
    M = F1[:, :2] @ F2.T
    M[3, 4] += 9
    days = pd.date_range("2024-02-27", periods=8, freq="D", name="day")
    frame = pd.DataFrame(M, days, [f"c{j}" for j in range(6)])
    rows = pd.DataFrame({"kind": list("abababab"), "size": F1[:, 0], "when": days}, index=days)
    listed = pd.DataFrame({"user": ["a", "a", "b"], "item": ["x", "y", "x"], "rating": [1.0, 2, 3]})
    keep = tempfile.TemporaryDirectory(prefix="irpca-soak-")
    folder = Path(keep.name)
    files = {
        "csv": frame.to_csv(),
        "ragged": "a,b\n1\n2,3,4\n",
        "empty": "",
        "texts": "a,b\nx,y\n",
        "damaged": "PK\3\4",
    }
    paths = {name: folder / f"{name}.csv" for name in files}
    for name, text in files.items():
        paths[name].write_text(text)
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    np.save(folder / "m.npy", M)
    np.savez(folder / "m.npz", a=M, b=M)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = irpca.InductiveRobustPCA(rank=2).fit(M, row_features=F1, col_features=F2)
        framed = irpca.InductiveRobustPCA(rank=1, max_iter=3).fit(frame, row_features=rows)
    return {
        **{
            "__name__": __name__,
            "irpca": irpca,
            "np": np,
            "pd": pd,
            "pl": pl,
            "pa": pa,
            "xr": xr,
            "da": da,
            "sp": scipy.sparse,
        },
        **{"csr": scipy.sparse.csr_array, "Path": Path, "Decimal": decimal.Decimal, "Fraction": fractions.Fraction},
        **{"datetime": datetime, "nan": float("nan"), "inf": float("inf")},
        **{"M": M, "F1": F1, "F2": F2, "frame": frame, "rows": rows, "days": days, "listed": listed},
        **{"model": model, "framed": framed, "result": model.result_, "encoder": irpca.features.Encoder().fit(rows)},
        **{"long": irpca.LongTable([0, 1, 1], [0, 1, 0], [1.0, 2, 3]), "folder": folder, "_keep": keep},
        **{name: str(path) for name, path in paths.items()},
        **{"binary": str(folder / "binary.csv"), "npy": str(folder / "m.npy"), "npz": str(folder / "m.npz")},
    }


class Hang(BaseException):
    """A call took too long."""


@contextlib.contextmanager
def clocked(seconds: float) -> Iterator[None]:
    """Ends by Hang what takes longer; only in the main thread."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Outcome:
    """What came of a call: the kind in a word, and what is wrong with it, if anything is."""

    kind: str
    wrong: str = ""
    text: str = field(default="", repr=False)


def outcome(text: str, words: set[str] | None = None) -> Outcome:
    """Make the call. ``words``: what a message may call its arguments; None: any."""
    space = {**names(), "M": names()["M"].copy(), "F1": names()["F1"].copy()}
    here = os.getcwd()
    with warnings.catch_warnings(record=True) as caught, clocked(LONGEST), _quiet():
        warnings.simplefilter("always")
        os.chdir(space["folder"])
        try:
            answer = eval(text, space)  # of our own making
            found = _answered(text, answer)
        except Hang:
            return Outcome("hung", f"no answer within {LONGEST} s")
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except MemoryError:
            found = Outcome("too large")
        except REFUSALS as error:
            found = _refused(error, words)
        except SystemExit as error:
            found = Outcome("refused") if text.startswith("irpca.cli") else Outcome("broken", f"SystemExit {error}")
        except BaseException as error:
            found = Outcome("broken", f"{type(error).__name__}: {_short(error)}")
        finally:
            os.chdir(here)
    if not found.wrong:
        for one in caught:
            if issubclass(one.category, UNEXPECTED_WARNINGS):
                return Outcome("warned", f"{one.category.__name__}: {_short(one.message)}")
    return found


def _answered(text: str, answer: Any) -> Outcome:
    if text.startswith("irpca.cli") and not isinstance(answer, int):
        return Outcome("answered", f"an exit code of type {type(answer).__name__}")
    return Outcome("answered")


def _refused(error: BaseException, words: set[str] | None) -> Outcome:
    message = str(error)
    if getattr(error, "filename", None) is not None or str(names()["folder"]) in message:  # it names the file
        return Outcome("refused")
    named = words is None or any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", message) for word in words)
    return Outcome("refused", "" if named else f"{type(error).__name__} that names no argument: {_short(error)}")


def _short(error: Any) -> str:
    """A message without what differs from call to call."""
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", " ".join(str(error).split()))[:120]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            yield
        finally:
            import matplotlib.pyplot as plt

            plt.close("all")


OTHERS = sorted(set(POOLS) - {"words", "jobs"})


def drawn(seed: int, number: int) -> tuple[Call, dict[str, str]]:
    """A call of this number: which, and its odd arguments."""
    chance = random.Random(seed * 1_000_003 + number)
    call = chance.choice(CALLS)
    kinds = call.all_kinds()
    odd = {}
    for name in chance.sample(sorted(kinds), min(len(kinds), chance.choice((1, 1, 1, 2, 2, 3)))):
        fits = chance.random() < 0.85
        odd[name] = chance.choice(
            POOLS[kinds[name] if fits or name == "*" else chance.choice(sorted(set(POOLS) - {"words"}))]
        )
    return call, odd


def run(tally: Tally) -> None:
    names()
    for number in tally.numbers():
        if tally.over():
            break
        call, odd = drawn(tally.seed, number)
        text = call.text({**call.base(), **odd})
        found = outcome(text, call.words())
        tally.outcomes[found.kind] += 1
        if found.wrong:
            tally.fail(f"{call.callee}: {found.wrong}", shortened(call, odd, found))


def shortened(call: Call, odd: dict[str, str], found: Outcome) -> str:
    """The text of a call that fails in the same way, without what has no part in it."""
    words = {**call.base(), **odd}
    if found.kind == "hung":
        return call.text(words)
    for name in list(words):
        fewer = copy.copy(words)
        if name in odd and name in call.base():
            fewer[name] = call.base()[name]
        elif name in odd or len(words) > 1:
            del fewer[name]
        if fewer != words and outcome(call.text(fewer), call.words()).wrong == found.wrong:
            words = fewer
    return call.text(words)
