"""Tables as large as M, and what lists of its outliers need, as tensors: made on a device, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...arrays import is_sparse, is_tensor
from ...lowrank import Array
from ..base import Engine
from .sparse import DeviceSparse, device_tensor

TABLE_ENTRIES = 1 << 24  # made together, in double precision
LISTED_ENTRIES = 1 << 24  # of L, whose factors are gathered together


def tensors_of(
    table: Any, dtypes: Sequence[Any], device: str, rows_of: Callable[[slice], Any] | None = None
) -> list[Any]:
    """The tensors that a table answers for all rows and columns; ``rows_of`` answers some rows of M, if it needs these.

    The table is as those of :mod:`irpca.tables`, and the types are NumPy's, None for what is not wanted.
    """
    n1, n2 = (len(side[0]) for side in table.sides)
    with fitting(device, f"a table of {n1} × {n2} values", "take some cells, with low_rank_.entries"):
        table = table.converted(lambda A: _there(A, device))
        made = [dtype and torch.empty((n1, n2), dtype=_torch_type(dtype), device=device) for dtype in dtypes]
        for some in _batches(n1, max(1, TABLE_ENTRIES // n2)):
            parts = table.cut(some, slice(None)).answer(None if rows_of is None else rows_of(some))
            for whole, part in zip(made, parts, strict=True):
                if whole is not None:
                    whole[some] = part
        return made


@contextmanager
def fitting(device: str, what: str, advice: str) -> Iterator[None]:
    """Say what does not fit into the memory of the device, and what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError(f"{what} does not fit into the memory that is free on {device}: {advice}") from error


def rows_of(M: Any, engine: Callable[[], Engine], device: str) -> Callable[[slice], Any]:
    """What answers some rows of M, NaN where it is not observed: M itself if it is a tensor, else its engine."""
    if not is_tensor(M):
        owner = engine()
        cols = np.arange(owner.shape[1])
        return lambda rows: _there(owner.block(np.arange(rows.start, rows.stop), cols), device)
    if is_sparse(M):
        listed = DeviceSparse.of(M, device)
        return lambda rows: listed[rows].dense()
    return lambda rows: M[rows].to(device)


def entries_of(M: Any, engine: Callable[[], Engine], rows: Any, cols: Any) -> Any:
    """M at scattered entries, whose places are tensors."""
    if is_tensor(M) and not is_sparse(M):
        return M[rows, cols]
    return _there(engine().entries(rows.cpu().numpy(), cols.cpu().numpy()), rows.device)


def products_at(A: Array, B: Array, rows: Any, cols: Any) -> Any:
    """``A @ B.T`` at scattered entries, whose places are tensors."""
    left, right = _there(A, rows.device), _there(B, rows.device)
    found = torch.empty(len(rows), dtype=left.dtype, device=rows.device)
    for some in _batches(len(rows), LISTED_ENTRIES):
        found[some] = (left[rows[some]] * right[cols[some]]).sum(dim=1)
    return found


def _there(A: Any, device: Any) -> Any:
    """NumPy's values, S, or a tensor, on the device."""
    return DeviceSparse.of(A, device) if hasattr(A, "indptr") else device_tensor(A, device)


def _batches(n: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _torch_type(dtype: Any) -> Any:
    return torch.from_numpy(np.empty(0, dtype)).dtype
