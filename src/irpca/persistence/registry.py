"""The classes that a model file may name, their fields, and the types of those."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..lowrank import Array

CLASSES = {
    "described": ("Described",),
    "features.encoder": ("Encoder",),
    "features.terms": ("Term",),
    "labels": ("Labels",),
    "lowrank": ("LowRank",),
    "model.calibration": ("Calibration",),
    "model.entry_scale": ("EntryScale",),
    "model.factors": ("Side",),
    "model.noise": ("NoiseModel",),
    "model.placement": ("Placement",),
    "result": ("Certificate", "Choice", "Doubt", "Expected", "History", "Result", "Status"),
}
MAX_WHOLE_FLOAT = 2**53  # beyond, a whole number may be no float, and some are none that a machine knows
OMITTED = {("Result", "fit")}  # it holds M, and is used while fitting only
LOOSER = {("Labels", "names"): tuple[Any, ...]}  # pandas allows any name
PLAIN_FIELDS: dict[str, dict[str, Any]] = {  # of classes that are not dataclasses
    "Calibration": {
        **dict.fromkeys(("edges", "levels", "counts", "clean"), Array),
        **dict.fromkeys(("share", "scale", "sd"), float),
    },
}
SPARSE = {"data": Array, "indices": Array, "indptr": Array, "shape": tuple[int, int]}
KINDS = "biufSUMm"  # of arrays
WIDEST = 8  # bytes of a number: wider ones differ from machine to machine


class ModelFileError(ValueError):
    """A model cannot be saved, or a file is not a model that can be loaded."""


@lru_cache(maxsize=1)
def registry() -> dict[str, type]:
    """The classes that a file may name."""
    modules = {module: import_module(f"..{module}", __package__) for module in CLASSES}
    return {name: getattr(modules[module], name) for module, names in CLASSES.items() for name in names}


@lru_cache(maxsize=64)
def field_types(name: str) -> dict[str, Any]:
    """What the fields of a registered class are called, and the type of each."""
    from scipy.sparse import csr_array

    if name == "csr_array":
        return SPARSE
    if name in PLAIN_FIELDS:
        return PLAIN_FIELDS[name]
    cls = registry()[name]
    # The outliers in a file were in host memory when it was written.
    hints = get_type_hints(cls, localns={**registry(), "Sparse": csr_array})
    return {field.name: LOOSER.get((name, field.name), hints[field.name]) for field in fields(cls)}


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says."""
    origin, inner = get_origin(hint), get_args(hint)
    if hasattr(alias := origin or hint, "__value__"):  # of a ``type`` statement, as NDArray is from NumPy 2.5 on
        return conforms(value, alias.__value__)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(conforms(value, one) for one in inner)
    if origin is tuple:
        inner = inner[:1] * len(value) if isinstance(value, tuple) and inner[1:] == (...,) else inner
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(conforms, value, inner))
    if origin is list:
        return isinstance(value, list) and all(conforms(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            conforms(k, inner[0]) and conforms(v, inner[1]) for k, v in value.items()
        )
    if origin is not None:
        return origin is np.ndarray and isinstance(value, np.ndarray)
    return _is_a(value, NoneType if hint is None else hint)


def _is_a(value: Any, kind: Any) -> bool:
    if kind in (int, float) and isinstance(value, bool | np.bool_):
        return False
    if kind is float and isinstance(value, int) and abs(value) > MAX_WHOLE_FLOAT:
        return False
    wider = {float: (float, int, np.floating, np.integer), int: (int, np.integer), bool: (bool, np.bool_)}
    return isinstance(kind, type) and isinstance(value, wider.get(kind, kind))


def storable(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in KINDS and dtype.itemsize > 0 and (dtype.kind in "SU" or dtype.itemsize <= WIDEST)


def require(fine: bool, problem: str) -> None:
    if not fine:
        raise ModelFileError(problem)


def check_names(what: str, given: Any, wanted: Any) -> None:
    """Refuse an object whose fields are not those of its class here."""
    lacking, unknown = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    require(not lacking, f"{what} lacks {', '.join(lacking)}")
    require(not unknown, f"{what} has fields that are not known here: {', '.join(map(repr, unknown))[:200]}")
