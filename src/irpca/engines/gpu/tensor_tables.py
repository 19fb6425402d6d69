"""What tables as large as M, and lists of its outliers, need as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...arrays import is_sparse
from ..base import Engine
from .sparse import DeviceSparse, device_tensor


def moved(A: Any, device: Any) -> Any:
    """NumPy's values, S, or a tensor, on the device."""
    return DeviceSparse.of(A, device) if hasattr(A, "indptr") else device_tensor(A, device)


def rows_of(M: Any, device: str) -> Callable[[slice], Any]:
    """What answers some rows of a tensor, NaN where it is not observed."""
    if not is_sparse(M):
        return lambda rows: M[rows].to(device)
    listed = DeviceSparse.of(M, device)
    return lambda rows: listed[rows].dense()


def entries_of(M: Any, engine: Callable[[], Engine], rows: Any, cols: Any) -> Any:
    """Scattered entries, whose places are tensors, of M, or None, and its engine."""
    if M is not None and not is_sparse(M):
        return M[rows, cols]
    return device_tensor(engine().entries(rows.cpu().numpy(), cols.cpu().numpy()), rows.device)
