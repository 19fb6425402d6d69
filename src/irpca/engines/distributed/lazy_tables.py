"""Tables of the size of M, in and out: dask DataFrames as M, and answers that are computed chunk by chunk."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..pieces import Listed
from .distributed_engine import DistributedEngine
from .sources import Edges, Source, required, source_of, tasks


def opened(M: Any, most: int) -> Any:
    """The engine of a dask DataFrame, with its labels; one that fits into memory is brought there.

    A frame with columns that are called row, column and value, or alike, is a long table. Any other has a column for
    each of M, and fits if it has at most ``most`` cells.
    """
    required("a dask DataFrame", "dask.dataframe", "pyarrow")
    from . import observations

    if observations.named_columns(list(M.columns)) is not None:
        return DistributedEngine(observations.from_frame(M))
    lengths = tuple(int(n) for n in M.map_partitions(len).compute())
    if sum(lengths) * len(M.columns) <= most:
        return M.compute()
    found: Any = source_of(M.to_dask_array(lengths=lengths))
    return DistributedEngine(replace(found, labels=(M.index.compute(), M.columns)))


def lazily(
    region: Any, answer: Callable[..., Any], dtypes: Sequence[Any], edges: tuple[Edges, Edges], source: Source | None
) -> list[Any]:
    """What a region of :mod:`irpca.tables` answers, as dask arrays with these ends of chunks.

    ``dtypes``: None for what is not wanted; ``source``: M, if the answer needs it.
    """
    import dask
    import dask.array as da

    def held(side: list[Any], name: str, ends: Edges) -> list[Any]:  # in the graph once, not in every task
        name = f"irpca-{name}-{uuid.uuid4().hex}"
        return [
            dask.delayed(
                tuple(None if A is None else A[slice(*span)] for A in side), name=f"{name}-{k}", traverse=False
            )
            for k, span in enumerate(pairwise(ends))
        ]

    of_rows, of_cols = map(held, region.sides, ("rows", "columns"), edges)
    call = tasks(partial(_answer, region.converted(lambda _: None), answer, tuple(dtypes)), "irpca-table")
    found = [
        [call(None if source is None else source.read(i, j), row, col) for j, col in enumerate(of_cols)]
        for i, row in enumerate(of_rows)
    ]
    heights, widths = (np.diff(ends).tolist() for ends in edges)

    def blocks(k: int, dtype: Any) -> Any:
        return da.block(
            [
                [da.from_delayed(one[k], (heights[i], widths[j]), dtype) for j, one in enumerate(band)]
                for i, band in enumerate(found)
            ]
        )

    return [None if dtype is None else blocks(k, dtype) for k, dtype in enumerate(dtypes)]


def _answer(
    region: Any, answer: Callable[..., Any], dtypes: tuple[Any, ...], block: Any, rows: Any, cols: Any
) -> list[Any]:
    M = Listed(block).whole() if hasattr(block, "tocsr") else block
    made = answer(region.with_sides(rows, cols), M)
    return [dtype and table.astype(dtype, copy=False) for table, dtype in zip(made, dtypes, strict=True)]
