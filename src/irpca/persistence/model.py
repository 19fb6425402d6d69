"""What a model file says: a header with the content of a model, and back."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_type_hints

from .archive import LARGEST_HEADER, MOST_ARRAYS
from .checks import check_model, check_result
from .decoding import Decoding
from .encoding import Encoding
from .registry import ModelFileError, check_names, conforms, registry, require

FORMAT = "irpca model"
VERSION = 1  # of the format: raised when older versions of irpca could not read the file
FITTING_ONLY = ("callbacks", "_metadata_request")  # needed to fit again, and made of code


def described(model: Any) -> tuple[Encoding, bytes]:
    """The arrays of a model, and the header that refers to them."""
    from .. import __version__
    from ..estimator import InductiveRobustPCA
    from ..result import Result

    encoding, lost = Encoding(), list[str]()
    if type(model) is InductiveRobustPCA:
        content, lost = _estimator(encoding, model)
    elif type(model) is Result:
        content = encoding.node(_in_host_memory(model), "result")
    else:
        raise TypeError(
            f"model must be an InductiveRobustPCA or a Result, got {type(model).__module__}.{type(model).__name__}: "
            "its own attributes would be lost; use pickle or joblib"
        )
    header = {
        "format": FORMAT,
        "version": VERSION,
        "irpca": __version__,
        "class": type(model).__name__,
        "not_saved": lost,
        "arrays": len(encoding.arrays),
        "objects": encoding.objects,
        "content": content,
    }
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(text) > LARGEST_HEADER or len(encoding.arrays) > MOST_ARRAYS:
        raise ModelFileError(
            "the model cannot be saved: labels that are neither text, numbers nor dates, or the features given to the "
            "constructor, are too many; convert the labels to text before fitting, or use pickle or joblib"
        )
    return encoding, text


def _in_host_memory(result: Any) -> Any:
    from ..engines.sparse_part import on_device, to_host

    return replace(result, S=to_host(result.S, "a file of the result")) if on_device(result.S) else result


def _estimator(encoding: Encoding, model: Any) -> tuple[dict[str, Any], list[str]]:
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model, msg="model is an %(name)s that is not fitted yet: call its fit before it is saved")
    names = model.get_params(deep=False)
    lost: dict[str, str] = {}
    params = {name: _parameter(encoding, name, value, lost) for name, value in names.items()}
    fitted = {}
    for name, value in model._kept().items():
        if name in FITTING_ONLY:
            lost.setdefault(name, type(value).__name__)
        elif name not in names:
            fitted[name] = encoding.node(value, name)
    lost = {name: kind for name, kind in lost.items() if kind != "NoneType"}
    if lost:
        listed = ", ".join(f"{name} (a {kind})" for name, kind in lost.items())
        advice = "the loaded model predicts the same; to fit it again, set it as before with set_params"
        warnings.warn(f"not saved: {listed}; {advice}", UserWarning, stacklevel=_outside())
    return {"parameters": params, "fitted": fitted}, sorted(lost)


def _parameter(encoding: Encoding, name: str, value: Any, lost: dict[str, str]) -> Any:
    """An argument of the constructor, or None for one that cannot be kept, which is then named among the ``lost``."""
    trial = Encoding()
    try:
        if name in FITTING_ONLY:
            raise ModelFileError(name)
        trial.node(value, name)
    except ModelFileError:
        lost[name] = type(value).__name__
        return None
    return encoding.node(value, name)


def _outside() -> int:
    """The stack level of the caller of this package, for warnings."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("irpca"):
        level, frame = level + 1, frame.f_back
    return level


def parsed(text: bytes) -> dict[str, Any]:
    from .. import __version__

    try:
        header = json.loads(text.decode("ascii"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError as error:
        raise ModelFileError("its header is nested too deeply") from error
    except ValueError as error:
        raise ModelFileError(f"its header is not JSON ({error})") from error
    require(isinstance(header, dict) and header.get("format") == FORMAT, "it is no model file of irpca")
    version, writer = header.get("version"), str(header.get("irpca"))[:40]
    require(type(version) is int and version >= 1, "its version is malformed")
    require(
        version <= VERSION,
        f"it was written by irpca {writer}, in version {version} of the format; irpca {__version__} reads up to "
        f"version {VERSION}: upgrade irpca",
    )
    names = ("format", "version", "irpca", "class", "not_saved", "arrays", "objects", "content")
    check_names("the header", header, names)
    fine = type(header["arrays"]) is int and 0 <= header["arrays"] <= MOST_ARRAYS
    require(fine, "its number of arrays is malformed")
    return header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    require(len(made) == len(pairs), "a name in its header is there twice")
    return made


def _no_constant(name: str) -> None:
    raise ModelFileError(f"its header is not JSON ({name})")


def made(decoding: Decoding, header: dict[str, Any]) -> Any:
    if header["class"] == "Result":
        result = decoding.value(header["content"])
        require(type(result) is registry()["Result"], "its content is no Result")
        check_result(result)
        return result
    require(header["class"] == "InductiveRobustPCA", f"it holds an unknown class, {str(header['class'])[:40]!r}")
    content = header["content"]
    fine = isinstance(content, dict) and list(content) == ["parameters", "fitted"]
    require(fine and all(isinstance(part, dict) for part in content.values()), "its content is malformed")
    parameters = {name: decoding.value(node) for name, node in content["parameters"].items()}
    fitted = {name: decoding.value(node) for name, node in content["fitted"].items()}
    return _model(parameters, fitted)


def _model(parameters: dict[str, Any], fitted: dict[str, Any]) -> Any:
    from ..estimator import InductiveRobustPCA

    hints = _parameter_types()
    check_names("the model", parameters, hints)
    for name, value in parameters.items():
        require(conforms(value, hints[name]), f"the argument {name} is a {type(value).__name__}, and should not be")
    model = InductiveRobustPCA(**parameters)
    for name, value in fitted.items():
        fine = name.isidentifier() and not name.startswith("__") and not hasattr(InductiveRobustPCA, name)
        require(fine and name not in hints, f"the model has no attribute {name[:40]!r}")
        setattr(model, name, value)
    check_model(model)
    return model


@lru_cache(maxsize=1)
def _parameter_types() -> dict[str, Any]:
    from ..estimator import InductiveRobustPCA

    hints = get_type_hints(InductiveRobustPCA.__init__, localns=registry())
    return {name: hint for name, hint in hints.items() if name != "return"}
