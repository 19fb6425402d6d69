"""Labels as parts of a model file: what of their pandas index has to be kept, and whether they are whole."""

from __future__ import annotations

from typing import Any

from .registry import require


def native_index(labels: Any) -> Any:
    """The pandas index that labels came from, if it is more than their levels, names and dtypes say; else None."""
    native = getattr(labels, "_pandas", None)
    if native is None:
        return None
    if not _simple(labels):
        return native
    from . import frames

    again = type(labels)(labels.levels, labels.names, labels.dtypes).pandas()
    return None if frames.same(native, again) else native


def _simple(labels: Any) -> bool:
    """Whether an index can be made from levels and dtypes without fail."""
    pairs = zip(labels.levels, labels.dtypes, strict=True)
    return all(dtype == str(level.dtype) or (dtype == "str" and level.dtype == object) for level, dtype in pairs)


def check_labels(labels: Any, n: int | None) -> None:
    """Refuse labels that are not whole, or not n."""
    levels = labels.levels
    require(len(levels) >= 1 and len(labels.names) == len(labels.dtypes) == len(levels), "labels are malformed")
    n = len(levels[0]) if n is None and levels[0].ndim else n
    require(all(level.shape == (n,) for level in levels), "there are not as many labels as rows or columns")
    native = getattr(labels, "_pandas", None)
    require(native is not None or _simple(labels), "labels are malformed")
    if native is not None:
        fine = hasattr(native, "get_level_values") and len(native) == n and native.nlevels == len(levels)
        require(fine, "labels are malformed")
