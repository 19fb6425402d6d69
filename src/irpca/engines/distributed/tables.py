"""Tables of the size of M, in and out: dask DataFrames as M, and answers that are computed chunk by chunk."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ...lowrank import Array
from .engine import DistributedEngine
from .sources import Edges, Source, required, source_of, tasks, with_missing


def from_frame(M: Any, most: int) -> tuple[DistributedEngine, tuple[Any, Any]] | None:
    """The engine of a dask DataFrame, and the labels of its rows and columns; None of one that fits into memory.

    A frame with columns that are called row, column and value, or alike, is a long table. Any other has a column for
    each of M, and is small if it has at most ``most`` cells.
    """
    required("a dask DataFrame", "dask.dataframe", "pyarrow")
    from . import observations

    if _named(list(M.columns)):
        source = observations.from_frame(M)
        return DistributedEngine(source), source.labels
    lengths = tuple(int(n) for n in M.map_partitions(len).compute())
    if sum(lengths) * len(M.columns) <= most:
        return None
    found = source_of(M.to_dask_array(lengths=lengths))
    assert found is not None
    return DistributedEngine(found), (M.index.compute(), M.columns)


def _named(columns: list[Any]) -> bool:
    """Whether columns are those of a long table by their names, not only by their number."""
    from .observations import columns_of

    try:
        columns_of([*columns, "", ""], "")
    except ValueError:
        return False
    return True


def lazily(
    function: Callable[..., Sequence[Array]],
    edges: tuple[Edges, Edges],
    dtypes: Sequence[Any],
    rows: Callable[[slice], Any],
    cols: Callable[[slice], Any],
    source: Source | None = None,
) -> list[Any]:
    """Dask arrays, each of whose chunks is computed when it is needed.

    Parameters
    ----------
    function : called with the chunk of M, or None, and what is said of its rows and of its columns
        It answers one array for each of the ``dtypes``.
    edges : where the chunks end
    dtypes : of the answers
    rows, cols : what to say of some rows and of some columns; it is put into the graph once
    source : M, if the function needs it; then these are its edges
    """
    import dask
    import dask.array as da

    def said(say: Callable[[slice], Any], side: str, ends: Edges) -> list[Any]:
        name = f"irpca-{side}-{uuid.uuid4().hex}"
        return [
            dask.delayed(say(slice(*span)), name=f"{name}-{k}", traverse=False) for k, span in enumerate(pairwise(ends))
        ]

    of_rows, of_cols = said(rows, "rows", edges[0]), said(cols, "columns", edges[1])
    call = tasks(partial(_answer, function), "irpca-table")
    shapes = [[ends[k + 1] - ends[k] for k in range(len(ends) - 1)] for ends in edges]
    found = [
        [
            call((i, j), None if source is None else source.chunk(i, j), of_rows[i], of_cols[j])
            for j in range(len(of_cols))
        ]
        for i in range(len(of_rows))
    ]

    def table(k: int, dtype: Any) -> Any:
        return da.block(
            [
                [da.from_delayed(one[k], (shapes[0][i], shapes[1][j]), dtype) for j, one in enumerate(band)]
                for i, band in enumerate(found)
            ]
        )

    return [table(k, dtype) for k, dtype in enumerate(dtypes)]


def _answer(function: Callable[..., Sequence[Array]], block: Any, rows: Any, cols: Any) -> Sequence[Array]:
    return function(with_missing(block) if hasattr(block, "tocsr") else block, rows, cols)


def as_dask(values: Array, edges: tuple[Edges, Edges]) -> Any:
    """An array in memory as a dask array with these chunks."""
    import dask.array as da

    return da.from_array(values, chunks=tuple(tuple(np.diff(ends).tolist()) for ends in edges))
