"""Tables with more than 2³¹ cells: places in them do not fit into 32 bits.

``M[i, j] = v[i + j]`` takes the memory of v alone. With v a wave, M has rank two and known features; an error in v is
an error in every cell of an antidiagonal, so S is known, too. One table really is in memory, where there is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import irpca

from .tally import Tally

SHAPE = (70_000, 40_000)  # 2.8e9 cells
WRONG = (55_000, 100_001)  # of v; cells of the second are beyond 2³¹
NEEDED = 16 << 30  # bytes that must be free for a table of 2³¹ cells, on a machine that others use


@cache
def wave(shape: tuple[int, int] = SHAPE, dtype: str = "float32") -> tuple[Any, Any, Any]:
    """M as a view of v, and features of its rows and columns."""
    n1, n2 = shape
    k, speed = np.arange(n1 + n2 - 1), 0.37
    v = np.cos(speed * k).astype(dtype)
    v[[at for at in WRONG if at < len(v)]] += 9
    M = np.lib.stride_tricks.sliding_window_view(v, n2)
    F1, F2 = (np.column_stack([np.cos(speed * k[:n]), np.sin(speed * k[:n])]) for n in shape)
    assert M.shape == shape
    return M, F1, F2


def antidiagonals(shape: tuple[int, int]) -> tuple[Any, Any]:
    """Rows and columns of the cells that are wrong."""
    n1, n2 = shape
    rows = [np.arange(max(0, at - n2 + 1), min(n1, at + 1)) for at in WRONG]
    return np.concatenate(rows), np.concatenate([at - one for at, one in zip(WRONG, rows, strict=True)])


def close(L: Any, F1: Any, F2: Any) -> bool:
    """Whether L is the wave at places all over the table, and in its last cell."""
    rng = np.random.default_rng(0)
    rows, cols = (np.append(rng.integers(n, size=10_000), n - 1) for n in L.shape)
    true = np.cos(0.37 * (rows + cols))
    return bool(np.abs(L.entries(rows, cols) - true).max() < 1e-4)


def check_S(S: Any, shape: tuple[int, int]) -> str:
    wanted = csr_array((np.ones(len(antidiagonals(shape)[0])), antidiagonals(shape)), shape=shape)
    found = csr_array((np.ones(S.nnz), S.indices, S.indptr), shape=shape)
    wrong = int(abs(found - wanted).sum())
    return f"{wrong} cells are wrongly in S, or wrongly not" if wrong else ""


def by_places() -> str:
    """Single cells, and blocks, beyond 2³¹."""
    M, *_ = wave()
    rows = np.array([0, 53_687, 53_688, 69_999, 69_999])
    cols = np.array([0, 39_999, 1, 0, 39_999])
    for turned in (False, True):
        engine = irpca.engines.choose(M.T if turned else M)
        at = (cols, rows) if turned else (rows, cols)
        if not np.array_equal(engine.entries(*at), M[rows, cols]):
            return "entries"
        block = engine.block(*at)
        if not np.array_equal(block.T if turned else block, M[np.ix_(rows, cols)]):
            return "block"
        i, j, values = engine.draw(100_000, np.random.default_rng(0))
        if not np.array_equal(values, M[j, i] if turned else M[i, j]) or max(i) < 2**15:
            return "draw"
    return ""


def without_S() -> str:
    """A fit that reads some of M only."""
    M, F1, F2 = wave()
    result = irpca.solve(M, F1, F2, rank=2, sparse=False)
    return "" if close(result.L, F1, F2) else "L is wrong"


def whole() -> str:
    """A fit, and every cell of S."""
    M, F1, F2 = wave()
    result = irpca.solve(M, F1, F2, rank=2)
    return check_S(result.S, M.shape) if close(result.L, F1, F2) else "L is wrong"


def estimator() -> str:
    """Of the transposed table: what is listed, and tables that are refused for their size."""
    M, F1, F2 = wave()
    model = irpca.InductiveRobustPCA(rank=2).fit(M.T, row_features=F2, col_features=F1)
    found = model.outliers()
    if len(found) != len(antidiagonals(SHAPE)[0]) or set(np.unique(found["row"] + found["column"])) != set(WRONG):
        return "outliers are wrong"
    if np.abs(found["observed"] - M[found["column"], found["row"]]).max() > 0:
        return "observed values of outliers are wrong"
    try:
        model.expected()
    except ValueError as error:
        return "" if "cells" in str(error) else f"a table of the size of M is refused without a word of it: {error}"
    return "a table of 2.8e9 cells was made"


def listed(kind: str) -> str:
    """Some cells of it as a list, with long indices or short ones."""
    M, F1, F2 = wave()
    rng = np.random.default_rng(1)
    rows, cols = np.divmod(np.unique(rng.integers(M.size, size=700_000)), M.shape[1])
    values = M[rows, cols]
    if kind == "csr":
        given: Any = csr_array((values, (rows, cols)), shape=M.shape)
        given.indices, given.indptr = given.indices.astype(np.int64), given.indptr.astype(np.int64)
    else:
        given = irpca.LongTable(rows, cols, values, M.shape)
    result = irpca.solve(given, F1, F2, rank=2)
    wrong = np.isin(rows + cols, WRONG)
    if not close(result.L, F1, F2) or result.S.nnz != wrong.sum():
        return "L or S is wrong"
    model = irpca.InductiveRobustPCA(rank=2).fit(given, row_features=F1, col_features=F2)
    found = model.outliers()
    return "" if np.array_equal(found["observed"], M[found["row"], found["column"]]) else "observed values are wrong"


def in_chunks() -> str:
    """As a dask array, without S."""
    import dask.array as da

    view, F1, F2 = wave()
    v = np.append(view[0, :-1], view[:, -1])  # dask makes a file of what a function holds: of all of a view

    def part(block_info: Any = None) -> Any:
        (first, last), (left, right) = block_info[None]["array-location"]
        return np.lib.stride_tricks.sliding_window_view(v[first + left : last + right - 1], right - left).copy()

    M = da.map_blocks(part, chunks=((3_500,) * 20, (8_000,) * 5), dtype=v.dtype)
    result = irpca.solve(M, F1, F2, rank=2, sparse=False)
    return "" if close(result.L, F1, F2) else "L is wrong"


def in_memory() -> str:
    """A table of 2³¹ cells that takes 8 GB."""
    shape = (46_342, 46_342)
    view, F1, F2 = wave(shape)
    M = np.empty(shape, np.float32)
    for first in range(0, shape[0], 512):
        M[first : first + 512] = view[first : first + 512]
    result = irpca.solve(M, F1, F2, rank=2)
    rows = np.arange(55_000 - 46_341, 46_342)
    if not close(result.L, F1, F2) or result.S.nnz != len(rows):
        return "L or S is wrong"
    return ""


CASES: dict[str, Callable[[], str]] = {
    "places": by_places,
    "a list with long indices": lambda: listed("csr"),
    "a long table": lambda: listed("long"),
    "without S": without_S,
    "chunks": in_chunks,
    "whole": whole,
    "estimator": estimator,
    "in memory": in_memory,
}


def free_memory() -> int:
    """Bytes that are available, as far as this machine tells."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0)


def run(tally: Tally) -> None:
    for name in list(CASES)[: tally.count]:
        if tally.over():
            break
        if name == "in memory" and free_memory() < NEEDED:
            tally.notes.append(f"{name}: not tried, {free_memory() / 1e9:.0f} GB are available, 17 are needed")
            continue
        began = time.process_time()
        try:
            wrong = CASES[name]()
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:200]}"
        tally.outcomes["wrong" if wrong else "right"] += 1
        tally.notes.append(f"{name} {time.process_time() - began:.0f} s")
        if wrong:
            tally.fail(f"{name}: {wrong}", f"lab.soak.limits.CASES[{name!r}]()")
