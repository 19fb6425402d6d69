"""Fitted models as files: arrays in NumPy's npz format and one JSON document, nothing that could be executed.

A file holds ``document``, the text of the JSON document; the arrays that it refers to, each under a digest of what it
holds, so that those that are there twice are stored once; and ``digest``, that of the document. :func:`numpy.load`
opens it. Nothing is compressed: numbers hardly become smaller, and without it nothing in a file can become larger than
the file when it is read.

Labels come back as they were: ranges, numbers, text, dates with time zone and frequency, durations, and levels of all
these. Labels of mixed types may be text, numbers and dates of Python; others, periods, intervals and categories among
them, are refused when the model is saved. The data M itself is not in the file, nor are callbacks.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from scipy.sparse import csr_array
from sklearn.utils.validation import check_is_fitted

from . import __version__
from .arguments import path as checked
from .described import Described
from .durable import digest, need_folder, write_whole
from .encoding import Kinds, decode, encode, kinds_of
from .estimator import InductiveRobustPCA
from .features.encoder import Encoder
from .features.matrix import level_outside
from .features.terms import Term
from .labels import Labels
from .lowrank import Array, LowRank
from .model.calibration import Calibration
from .model.entry_scale import EntryScale
from .model.factors import Side
from .model.maps import ColumnMaps, MappedLowRank
from .model.noise import NoiseModel
from .model.placement import Placement
from .result import Certificate, Choice, Doubt, Expected, History, Latent, Mistakes, Result, Status, Unseen

__all__ = ["ModelFileError", "load", "load_result", "save"]

FORMAT, VERSION = "irpca model", 2  # the version is raised when what a file holds changes
CLASSES = (
    *(Certificate, Choice, ColumnMaps, Described, Doubt, Encoder, EntryScale, Expected, History, Latent, LowRank),
    *(Mistakes, NoiseModel, Placement, Result, Side, Term, Unseen),
)
NAMED = {"_rows.labels": "the labels of the rows", "_cols.labels": "the labels of the columns"}


class ModelFileError(ValueError):
    """A model cannot be saved, or a file is not a model that can be loaded."""


def save(model: InductiveRobustPCA | Result, path: str | os.PathLike[str]) -> None:
    """Write a fitted model, or a result, to a file that :func:`load` reads back, equal to the bit.

    The file appears whole or not at all; one that is there is replaced. It holds neither M nor callbacks: a warning
    names what else of the constructor's arguments could not be kept, which matters only to fit again.

    Parameters
    ----------
    model : InductiveRobustPCA or Result
    path : str or path

    Examples
    --------
    >>> import irpca, tempfile, os
    >>> from irpca import persistence
    >>> problem = irpca.datasets.make_problem(60, 40, d1=4, d2=3, rank=2, corruption=0.1)
    >>> model = irpca.InductiveRobustPCA().fit(problem.M, row_features=problem.F1, col_features=problem.F2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "m.irpca")
    ...     persistence.save(model, path)
    ...     again = persistence.load(path)
    >>> bool((again.low_rank_.left == model.low_rank_.left).all())
    True
    """
    target = Path(os.path.realpath(checked(path, "path")))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "path is a folder; give the name of a file in it", str(path))
    need_folder(target, "path")
    if type(model) is InductiveRobustPCA:
        content: Any = _take_attributes(model)
    elif type(model) is Result:
        content = replace(model, fit=None).in_host_memory("a file of the result")
    else:
        raise TypeError(
            f"model must be an InductiveRobustPCA or a Result, got {type(model).__module__}.{type(model).__name__}: "
            "its own attributes would be lost; use pickle or joblib"
        )
    arrays: dict[str, Array] = {}
    about = {"format": FORMAT, "version": VERSION, "irpca": __version__, "class": type(model).__name__}
    document = _as_array(json.dumps(about | {"content": _encode(content, arrays)}))
    arrays |= {"document": document, "digest": _as_array(digest(document))}
    with write_whole(target) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: str | os.PathLike[str]) -> InductiveRobustPCA:
    """The fitted model in a file written by :func:`save`.

    Nothing in the file is executed, so files of others are safe to load, though their numbers may be wrong. Whatever
    is not a whole, unchanged model file is refused with :class:`ModelFileError`. The model has no M: pass it again
    where a method asks for it.

    Parameters
    ----------
    path : str or path
    """
    attributes = _load(path, InductiveRobustPCA)
    model = object.__new__(InductiveRobustPCA)
    with refusing(path):
        lacking = set(InductiveRobustPCA().get_params(deep=False)) - set(attributes)
        require(not lacking, f"it lacks {', '.join(sorted(lacking))}: load it with the version that wrote it")
        model.__dict__.update(attributes)
        model._keep(model.result_)
    return model


def load_result(path: str | os.PathLike[str]) -> Result:
    """The :class:`irpca.Result` in a file written by :func:`save`."""
    found: Result = _load(path, Result)
    return found


def _load(path: str | os.PathLike[str], wanted: type) -> Any:
    """What a file holds of an object of some class."""
    with open(checked(path, "path"), "rb") as file, refusing(os.fspath(path)):
        arrays: Any = NpzFile(file)
        claimed = sum(entry.file_size for entry in arrays.zip.infolist())
        require(claimed <= os.fstat(file.fileno()).st_size, "its arrays claim to be larger than the file")
        require({"document", "digest"} <= set(arrays.files), "it is no model file of irpca")
        require(arrays["digest"].tobytes().decode() == digest(arrays["document"]), "it is damaged or was changed")
        document = json.loads(arrays["document"].tobytes())
        require(document.get("format") == FORMAT, "it is no model file of irpca")
        version, writer = document["version"], str(document["irpca"])[:40]
        require(
            version == VERSION,
            f"it was written by irpca {writer}, in version {version!r} of the format; irpca {__version__} reads "
            f"version {VERSION}: "
            + ("upgrade irpca" if version > VERSION else "load it with the version that wrote it"),
        )
        other = "load_result" if wanted is InductiveRobustPCA else "load"
        require(document["class"] == wanted.__name__, f"it holds an object of class {document['class']}: use {other}")

        @cache
        def find(name: str) -> Array:
            array: Array = arrays[name]
            require(name == _name_array(array), "it is damaged or was changed")
            return array

        try:
            return decode(document["content"], KINDS, find)
        except AttributeError as error:
            raise ModelFileError(f"{error}: load it with the version that wrote it, {writer}") from error


@contextmanager
def refusing(path: Any) -> Iterator[None]:
    """Turns whatever is wrong with the content of a file into one kind of error, which names the file."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{path} cannot be loaded: {error}") from error.__cause__
    except Exception as error:
        of_the_disk = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if of_the_disk or isinstance(error, MemoryError):
            raise
        raise ModelFileError(f"{path} cannot be loaded: it is no model file, cut off or damaged ({error})") from error


def require(fine: Any, problem: str) -> None:
    if not fine:
        raise ModelFileError(problem)


def _take_attributes(model: InductiveRobustPCA) -> dict[str, Any]:
    """Those of a fitted model but M, what repeats its result, and arguments that a file cannot hold."""
    check_is_fitted(model, msg="model is an %(name)s that is not fitted yet: call its fit before it is saved")
    model._remember()
    repeated = object.__new__(InductiveRobustPCA)
    repeated._rows, repeated._cols = model._rows, model._cols
    repeated._keep(model.result_)
    left_out = vars(repeated).keys() - {"result_", "_rows", "_cols"}
    kept = {name: value for name, value in model._kept().items() if name not in left_out}
    lost = []
    for name in kept.keys() & {*model.get_params(deep=False), "_metadata_request"}:
        try:
            _encode(kept[name], {})
        except ModelFileError:
            lost.append(f"{name} (a {type(kept[name]).__name__})")
            kept[name] = None
    if lost:
        advice = "the loaded model predicts the same; to fit it again, set it as before with set_params"
        warnings.warn(f"not saved: {', '.join(sorted(lost))}; {advice}", UserWarning, stacklevel=level_outside())
    return kept


def _encode(value: Any, arrays: dict[str, Array]) -> Any:
    """A value as JSON; its arrays are added to those given, under digests of what they hold."""

    def keep(array: Array) -> str:
        array = array if array.flags.forc else np.array(array, order="K")
        name = _name_array(array)
        arrays[name] = array
        return name

    try:
        return encode(value, KINDS, keep)
    except TypeError as error:
        what, _, place = str(error).partition(" at ")
        raise ModelFileError(
            f"{NAMED.get(place.partition('[')[0], place)}: {what}, which a model file cannot hold: convert it before "
            "fitting, to numbers, text, dates or plain arrays, or keep the model with pickle or joblib"
        ) from error


def _name_array(array: Array) -> str:
    return digest(array, array.flags.fnc)


def _as_array(text: str) -> Array:
    return np.frombuffer(text.encode("ascii"), np.uint8)


# What else a file may hold


def _take_labels(labels: Labels) -> list[Any]:
    return [labels._pandas] if labels._pandas is not None else [labels.levels, labels.names, labels.dtypes]


def _take_index(index: Any) -> list[Any] | None:
    """The values of a pandas index, what pandas calls their type, its name, and the frequency of times.

    None of an index that could not be made again of these.
    """
    kind, freq = str(index.dtype), getattr(index, "freqstr", None)
    values: Any
    if index.nlevels > 1:
        values, kind = [index.get_level_values(k) for k in range(index.nlevels)], "levels"
    elif hasattr(index, "start"):
        values, kind = [index.start, index.stop, index.step], "range"
    elif hasattr(index, "unit"):
        values = index.asi8.view(f"{index.dtype.kind}8[{index.unit}]")
    else:
        values = index.to_numpy() if isinstance(index.dtype, np.dtype) else np.where(index.isna(), None, index)
    parts = [values, kind, index.name, freq]
    try:
        again = _make_index(parts)
    except (TypeError, ValueError):
        return None
    return parts if again.identical(index) and getattr(again, "freq", None) == getattr(index, "freq", None) else None


def _make_index(parts: list[Any]) -> Any:
    pd = _import_pandas()
    values, kind, name, freq = parts
    if kind == "levels":
        return pd.MultiIndex.from_arrays(values)
    if kind == "range":
        return pd.RangeIndex(*values, name=name)
    if values.dtype.kind not in "Mm":
        return pd.Index(values, dtype=kind, name=name)
    index = pd.Index(values, name=name)
    index = index.tz_localize("UTC").astype(kind) if "," in kind else index
    index.freq = freq
    return index


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        advice = 'it holds labels of pandas, which is not installed here: pip install "irpca[pandas]"'
        raise ModelFileError(advice) from error
    return pandas


def _make_calibration(attributes: dict[str, Any]) -> Calibration:
    made = object.__new__(Calibration)
    vars(made).update(attributes)
    return made


def _make_sparse(parts: list[Any]) -> Any:
    data, indices, indptr, shape = parts
    made = csr_array(tuple(shape), dtype=data.dtype)
    made.data, made.indices, made.indptr = data, indices, indptr  # as they are: the constructor may narrow indices
    return made


KINDS: Kinds = {
    **kinds_of(*CLASSES),
    "Calibration": (Calibration, lambda value: dict(vars(value)), _make_calibration),
    "mapped": (MappedLowRank, lambda L: [L.latent, L.maps], lambda parts: MappedLowRank(*parts)),
    "labels": (Labels, _take_labels, lambda parts: Labels(*parts) if len(parts) > 1 else Labels.of(parts[0])),
    "index": ("get_level_values", _take_index, _make_index),
    "sparse": (csr_array, lambda S: [S.data, S.indices, S.indptr, list(S.shape)], _make_sparse),
    "status": (Status, lambda status: status.name, Status.__members__.__getitem__),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
}
