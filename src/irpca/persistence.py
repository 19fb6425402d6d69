"""Fitted models as files: arrays in NumPy's npz format and one JSON document, nothing that could be executed.

A file holds the arrays ``a0``, ``a1``, …; ``document``, the text of the JSON document, in which ``{"array": "a0"}``
stands for the first of them; and ``sha256``, a digest of all that. :func:`numpy.load` opens it. Nothing is compressed:
numbers hardly become smaller, and without it nothing in a file can become larger than the file when it is read.

Labels come back as they were, whatever kind of pandas index they are: ranges, numbers, text, dates with time zone and
frequency, durations, periods, intervals, categories, and levels of all these. Labels of mixed types may be text,
numbers and dates of Python; others are refused when the model is saved. The data M itself is not in the file, nor are
callbacks.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Union, get_args, get_origin, get_type_hints
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils.validation import check_is_fitted

from . import __version__
from .arguments import path as checked
from .described import Described
from .durable import need_folder, write_whole
from .engines.sparse_part import with_data
from .estimator import InductiveRobustPCA
from .features.encoder import Encoder
from .features.matrix import level_outside
from .features.terms import Term
from .labels import Labels
from .lowrank import Array, LowRank
from .model.calibration import Calibration
from .model.entry_scale import EntryScale
from .model.factors import Side
from .model.maps import KNOTS, ColumnMaps, MappedLowRank
from .model.noise import NoiseModel
from .model.placement import Placement
from .result import Certificate, Choice, Doubt, Expected, History, Latent, Mistakes, Result, Status, Unseen

__all__ = ["ModelFileError", "load", "load_result", "save"]

FORMAT, VERSION = "irpca model", 1  # the version is raised when older versions of irpca could not read the file
REGISTERED = (
    *(Calibration, Certificate, Choice, ColumnMaps, Described, Doubt, Encoder, EntryScale, Expected, History, Labels),
    *(LowRank, Mistakes, NoiseModel, Placement, Result, Side, Term, Unseen, InductiveRobustPCA),
)
CLASSES: dict[str, Any] = {cls.__name__: cls for cls in REGISTERED}  # that a file may name
FITTED: dict[str, Any] = {  # attributes of a fitted model, beside those that repeat its result
    "result_": Result,
    "components_": Array,
    "singular_values_": Array,
    "n_features_in_": int,
    "container_": str,
    "_dims": tuple[str, str],
    "_rows": Described,
    "_cols": Described,
    "_placement": Placement,
    "_observed": Array,
    "_fingerprint": str,
}
OPTIONAL: dict[str, Any] = {"feature_names_in_": Array | None, "_sklearn_output_config": dict[str, Any] | None}
CONTAINERS = ("numpy", "pandas", "polars", "pyarrow", "xarray", "torch")
# Where an array is, what it holds (f: floats, i: integers, b: booleans), its sides: those of one name are equally long.
RESULT_SHAPES = f"""
    L.left f n1 k1, L.core f k1 k2, L.right f n2 k2, W f w1 w2
    counts.0 i n1, counts.1 i n2, known.0 b n1, known.1 b n2
    scale.rows f n1, scale.cols f n2, scale.row_spread f n1 q, scale.col_spread f n2 q
    scale.widths f n2, scale.slopes f n2, latent f outliers
    scale.maps.knots f n2 4 {KNOTS}, scale.maps.limits f n2 2, scale.maps.least f n2
    calibration.edges f edges, calibration.levels f bins, calibration.counts f bins, calibration.clean f bins
    mistakes.which i named
    certificate.unseen.skills f n2, certificate.unseen.errors f n2, certificate.unseen.coverage f 2 n2
    expected.0.offset f k1, expected.0.coefficients f e1 k1, expected.1.offset f k2, expected.1.coefficients f e2 k2
"""
MODEL_SHAPES = """
    components_ f r n2, singular_values_ f r, _observed f outliers
    _rows.expected.offset f r, _rows.expected.coefficients f d1 r
    _cols.expected.offset f r, _cols.expected.coefficients f d2 r
    _placement.columns.mean f n2 K, _placement.columns.expected f n2 K, _placement.columns.seen b n2
    _placement.columns.basis f n2 b, _placement.columns.coefficients f b K
    _placement.columns.variance f K, _placement.columns.slope_variance f K
    _placement.columns.covariance f K K, _placement.columns.spread f n2
    _placement.noise.rows f n1, _placement.noise.cols f n2, _placement.noise.least f n2, _placement.noise.shares f 3
    _placement.unit f n2, _placement.turn f K r, _placement.average f K, _placement.col_variances f n2 c
    _placement.own f K K, _placement.whole f K K, _placement.posterior f K K
    _placement.new_rows f K K, _placement.new_cols f K K
"""
# What NumPy writes before the numbers of an array. Nothing else is accepted, so nothing has to be evaluated.
NPY_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufMm][1248](?:\[[0-9]{0,9}[a-zA-Z]{1,2}\])?)', "
    rb"'fortran_order': (True|False), 'shape': \(([0-9, ]{0,200})\), \} *\n",
    re.DOTALL,
)
MAX_WHOLE_FLOAT = 2**53  # beyond, a whole number may be no float
LABELS_PER_BYTE, FEWEST_LABELS = 2, 1 << 17  # that a file may describe, by the bytes of its arrays, and at least
WIDEST = 8  # bytes of a number: wider ones differ from machine to machine
GENERATORS: dict[str, Any] = {"PCG64": np.random.PCG64, "PCG64DXSM": np.random.PCG64DXSM}
# Types of pandas whose values are plain objects: an index of them is made again from those and the name of the type.
EXTENSIONS = re.compile(r"object|str|string(\[(python|pyarrow)\])?|boolean|U?Int(8|16|32|64)|Float(32|64)")


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
    arrays = take_apart(model)
    try:
        put_together(arrays)  # a model that cannot be loaded shall not seem saved
    except Exception as error:
        raise ModelFileError(f"the model cannot be saved: {error}; please report this, and use pickle") from error
    with write_whole(target) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: str | os.PathLike[str]) -> InductiveRobustPCA:
    """The fitted model in a file written by :func:`save`.

    Nothing in the file is executed, so files of others are safe to load. Whatever is not a whole, unchanged model file
    is refused with :class:`ModelFileError`. The model has no M: pass it again where a method asks for it.

    Parameters
    ----------
    path : str or path
    """
    return _load(path, InductiveRobustPCA)


def load_result(path: str | os.PathLike[str]) -> Result:
    """The :class:`irpca.Result` in a file written by :func:`save`."""
    return _load(path, Result)


def _load(path: str | os.PathLike[str], wanted: type) -> Any:
    with open(checked(path, "path"), "rb") as file, refusing(os.fspath(path)):
        found = put_together(_read_arrays(file))
        other = "load_result" if wanted is InductiveRobustPCA else "load"
        require(type(found) is wanted, f"it holds an object of class {type(found).__name__}: use {other}")
        return found


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


# The archive


def _read_arrays(file: BinaryIO) -> dict[str, Array]:
    """All arrays of a file, in their order. Sizes are compared with that of the file before anything is read."""
    with ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        require({"document", "sha256"} <= {*entries}, "it is no model file of irpca")
        require(len(entries) == len(archive.infolist()), "some of its arrays are there twice")
        for entry in entries.values():
            plain = entry.compress_type == ZIP_STORED and entry.compress_size == entry.file_size
            require(plain and not entry.flag_bits & 1, "its arrays are compressed or encrypted, and should not be")
        claimed = sum(entry.file_size for entry in entries.values())
        require(claimed <= os.fstat(file.fileno()).st_size, "its arrays claim to be larger than the file")
        return {name: read_array(bytearray(archive.read(entry)), name) for name, entry in entries.items()}


def read_array(content: bytearray, name: str) -> Array:
    """The array in an entry of the archive, in the same memory."""
    head = NPY_HEAD.match(content)
    if head is None:
        raise ModelFileError(f"{name} is not an array of numbers or dates")
    dtype, shape = np.dtype(head[1].decode()), tuple(int(n) for n in head[3].decode().split(",") if n.strip())
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    require(size == len(content) - head.end(), f"{name} is not as long as it claims")
    array: Array = np.ndarray(shape, dtype, content, head.end(), order="F" if head[2] == b"True" else "C")
    require(dtype.kind != "b" or array.view(np.uint8).max(initial=0) <= 1, f"{name} holds what is no boolean")
    return array


def digest_of(arrays: dict[str, Array]) -> Array:
    """The SHA-256 of names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        found.update(repr((name, array.dtype.str, array.shape, array.flags.fnc)).encode())
        found.update(array.ravel(order="K").view(np.uint8).data)
    return np.frombuffer(found.digest(), np.uint8)


# A model as a document and arrays, and back


def take_apart(model: Any) -> dict[str, Array]:
    """The arrays of a file, the document among them."""
    if type(model) is InductiveRobustPCA:
        kept: Any = _leave_out_code(model)
    elif type(model) is Result:
        kept = _leave_out_repeated(replace(model, fit=None).in_host_memory("a file of the result"))
    else:
        raise TypeError(
            f"model must be an InductiveRobustPCA or a Result, got {type(model).__module__}.{type(model).__name__}: "
            "its own attributes would be lost; use pickle or joblib"
        )
    arrays: dict[str, Array] = {}
    document = {"format": FORMAT, "version": VERSION, "irpca": __version__, "content": encode(kept, "", arrays)}
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    arrays = {"document": np.frombuffer(text, np.uint8), **arrays}
    return {**arrays, "sha256": digest_of(arrays)}


def _leave_out_code(model: InductiveRobustPCA) -> InductiveRobustPCA:
    """A model without M, and without arguments that a file cannot hold, which a warning names."""
    check_is_fitted(model, msg="model is an %(name)s that is not fitted yet: call its fit before it is saved")
    model._remember()
    kept, lost = object.__new__(InductiveRobustPCA), list[str]()
    kept.__dict__.update(model._kept())
    kept.result_ = _leave_out_repeated(kept.result_)
    for name in (*model.get_params(deep=False), "_metadata_request"):
        value = getattr(kept, name, None)
        try:
            encode(value, name, {})
        except ModelFileError:
            lost.append(f"{name} (a {type(value).__name__})")
            setattr(kept, name, None)
    if lost:
        advice = "the loaded model predicts the same; to fit it again, set it as before with set_params"
        warnings.warn(f"not saved: {', '.join(lost)}; {advice}", UserWarning, stacklevel=level_outside())
    return kept


def _leave_out_repeated(result: Result) -> Result:
    """A result as it is in a file: of latent values there are the factors, as L, and the residuals, as ``latent``."""
    if result.latent is None or result.scale is None:
        return result
    residuals: Any = None if result.latent.S is None else result.latent.S.data
    return replace(result, L=result.factors, scale=replace(result.scale, left=None, right=None), latent=residuals)


def _with_repeated(result: Result) -> Result:
    """The result that a file describes."""
    if result.scale is None or result.scale.maps is None:
        return result
    L, scale, residuals = result.L, result.scale.mapped(result.L, result.scale.maps), result.latent
    latent = Latent(L, None if residuals is None else with_data(result.S, residuals))
    return replace(result, L=MappedLowRank(L, result.scale.maps), scale=scale, latent=latent)


def put_together(arrays: dict[str, Array]) -> InductiveRobustPCA | Result:
    """The model, or result, that the arrays of a file describe."""
    document = json.loads(arrays["document"].tobytes())
    require(isinstance(document, dict) and document.get("format") == FORMAT, "it is no model file of irpca")
    version, writer = document.get("version"), str(document.get("irpca"))[:40]
    require(
        type(version) is int and version <= VERSION,
        f"it was written by irpca {writer}, in version {str(version)[:40]} of the format; irpca {__version__} reads up "
        f"to version {VERSION}: upgrade irpca",
    )
    own = {name: array for name, array in arrays.items() if name != "sha256"}
    fine = np.array_equal(arrays["sha256"], digest_of(own))
    require(fine, "it does not match its checksum: it is damaged or was changed")
    found = Reader(own, writer).decode(document["content"])
    if type(found) is InductiveRobustPCA:
        _check_model(found)
        found.result_ = _with_repeated(found.result_)
        found._keep(found.result_)
        return found
    require(type(found) is Result, "it holds neither a model nor a result")
    _check_result(found, {})
    return _with_repeated(found)


def encode(value: Any, at: str, arrays: dict[str, Array]) -> Any:
    """A value as JSON that refers to ``arrays``, to which its own are added; ``at`` says in messages where it is."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encode(one, f"{at}[{k}]", arrays) for k, one in enumerate(value)]
    if kind in (np.ndarray, np.memmap) and value.dtype.kind in "biufMm" and value.dtype.itemsize <= WIDEST:
        name, tight = f"a{len(arrays)}", value.flags.c_contiguous or value.flags.f_contiguous
        arrays[name] = np.asarray(value) if tight else np.array(value, order="K")
        return {"array": name}
    if CLASSES.get(kind.__name__) is kind and getattr(value, "_pandas", None) is None:
        parts = {field: getattr(value, field, None) for field in FIELDS[kind]}
        return {kind.__name__: {field: encode(part, f"{at}.{field}", arrays) for field, part in parts.items()}}
    try:
        name = _find_kind(value)
        parts = KINDS[name][1](value)
    except (AttributeError, LookupError, NotImplementedError, StopIteration, TypeError, ValueError) as error:
        what = f"{kind.__module__}.{kind.__name__}" + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
        raise ModelFileError(
            f"{at.strip('.')} is a {what}, which a model file cannot hold: convert it before fitting, to numbers, "
            "text, dates, plain arrays or pandas objects of these, or keep the model with pickle or joblib"
        ) from error
    return {name: encode(parts, at, arrays)}


class Reader:
    """Turns JSON back into values; each array is taken out of ``arrays``, so that it is used once."""

    def __init__(self, arrays: dict[str, Array], writer: str) -> None:
        self.arrays, self.writer = arrays, writer  # the latter is the version of irpca that wrote the file
        self._labels_left = FEWEST_LABELS + LABELS_PER_BYTE * sum(array.nbytes for array in arrays.values())

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(one) for one in node]
        if not isinstance(node, dict):
            return node
        require(len(node) == 1, "its document is malformed")
        ((name, content),) = node.items()
        if name == "array":
            require(content in self.arrays, f"it has no array {str(content)[:40]!r}, or refers to it twice")
            return self.arrays.pop(content)
        if name in CLASSES:
            return self._fill(CLASSES[name], {field: self.decode(part) for field, part in content.items()})
        require(name in KINDS, f"it holds a value of an unknown kind, {name[:40]!r}")
        made = KINDS[name][2](self.decode(content))
        if hasattr(made, "get_level_values"):  # a few letters of a file may ask for a range of any length
            self._labels_left -= len(made) * made.nlevels
            require(self._labels_left >= 0, "it describes far more than it holds")
        return made

    def _fill(self, cls: Any, parts: dict[str, Any]) -> Any:
        """An object with these fields, if they are those of its class, and of the right types."""
        hints = FIELDS[cls]
        other = ", ".join(sorted(set(parts) ^ set(hints)))[:200]
        advice = f"load it with the version that wrote it, {self.writer}"
        require(not other, f"{cls.__name__} has other fields than in irpca {__version__} ({other}): {advice}")
        for field, value in parts.items():
            fine = _conforms(value, hints[field])
            require(fine, f"{cls.__name__}.{field} is a {type(value).__name__}, and should not be")
        made = object.__new__(cls)  # no class that a file names is called
        for field, value in parts.items():
            if field not in OPTIONAL or value is not None:
                object.__setattr__(made, field, value)
        return made


def _read_fields(cls: Any) -> dict[str, Any]:
    """What the fields of a registered class are called, and the type of each."""
    if cls is Calibration:  # which is no dataclass
        arrays, numbers = ("edges", "levels", "counts", "clean"), ("center", "share", "scale", "sd")
        return dict.fromkeys(arrays, Array) | dict.fromkeys(numbers, float)
    if cls is InductiveRobustPCA:
        hints = {**get_type_hints(cls.__init__), "callbacks": Any, **FITTED, **OPTIONAL}
        return {name: hint for name, hint in hints.items() if name != "return"}
    hints = get_type_hints(cls, localns={**CLASSES, "Sparse": csr_array})  # S is in host memory when it is saved
    if cls is Result:
        hints["latent"] = Array | None  # see _leave_out_repeated
    return {field.name: hints[field.name] for field in fields(cls)}


FIELDS = {cls: _read_fields(cls) for cls in REGISTERED}


def _conforms(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint == Array:
        return isinstance(value, np.ndarray)
    if kind in (Union, UnionType):
        return any(_conforms(value, one) for one in inner)
    if kind is tuple and inner[1:] != (...,):
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_conforms, value, inner))
    if kind in (tuple, list):
        return isinstance(value, kind) and all(_conforms(one, inner[0]) for one in value)
    if kind in (dict, Mapping):
        return isinstance(value, dict) and all(all(map(_conforms, pair, inner)) for pair in value.items())
    if isinstance(value, bool | np.bool_):
        return hint is bool
    if hint is float and isinstance(value, int):
        return abs(value) <= MAX_WHOLE_FLOAT
    return isinstance(value, {float: (float, np.floating, np.integer), int: (int, np.integer)}.get(hint, hint))


# What else a file may hold


def _need_list(value: Any) -> list[Any]:
    """A list that the document holds: an array, which may have any number of rows if these are empty, is none."""
    require(isinstance(value, list), "its document is malformed")
    return value


def _take_objects(array: Array) -> list[Any]:
    require(array.dtype == object, "arrays of this type are not kept")
    return [array.ravel().tolist(), list(array.shape)]


def _make_objects(parts: list[Any]) -> Array:
    array = np.empty(len(_need_list(parts[0])), object)
    array[:] = parts[0]
    return array.reshape(parts[1])


def _take_generator(generator: np.random.Generator) -> Any:
    require(type(generator.bit_generator) in GENERATORS.values(), "its state is not kept")
    return generator.bit_generator.state


def _make_generator(state: Any) -> np.random.Generator:
    bits = GENERATORS[state["bit_generator"]](0)
    bits.state = state
    return np.random.Generator(bits)


def _make_sparse(parts: list[Any]) -> Any:
    data, indices, indptr, shape = parts
    kinds = data.dtype.kind == "f" and indices.dtype.kind == indptr.dtype.kind == "i"
    require(kinds and len(indptr) == shape[0] + 1, "its outliers are malformed")
    made = csr_array(tuple(shape), dtype=data.dtype)
    made.data, made.indices, made.indptr = data, indices, indptr  # as they are: the constructor may narrow indices
    made.check_format(full_check=True)
    return made


def _take_pandas(value: Any) -> list[Any]:
    kind = type(value).__name__
    parts = [kind, _pandas_kinds()[kind][0](value), list(getattr(value, "names", ()))]
    again = _make_pandas(parts)
    pairs = [(value, again)] if kind != "DataFrame" else [(value.index, again.index), (value.columns, again.columns)]
    same = all(a.identical(b) and getattr(a, "freq", None) == getattr(b, "freq", None) for a, b in pairs)
    require(same and value.equals(again), "it would not come back as it is")
    return parts


def _make_pandas(parts: list[Any]) -> Any:
    kind, inner, names = parts
    made = _pandas_kinds()[kind][1](*inner)
    if kind != "DataFrame":
        made.names = names
    return made


@cache
def _pandas_kinds() -> dict[str, tuple[Any, Any]]:
    """For each kind of object what it is made of, beside the names of an index, and how it is made of that again."""
    try:
        import pandas as pd
    except ImportError as error:
        advice = 'it holds labels or features of pandas, which is not installed here: pip install "irpca[pandas]"'
        raise ModelFileError(advice) from error

    def take_index(index: Any) -> list[Any]:
        plain = isinstance(index.dtype, np.dtype)
        values = index.to_numpy() if plain else np.where(index.isna(), None, index.to_numpy(object))
        return [values, str(index.dtype)]

    def make_index(values: Array, dtype: str) -> Any:
        require(dtype == str(values.dtype) or EXTENSIONS.fullmatch(dtype), "labels are malformed")
        return pd.Index(values, dtype=dtype)

    def take_times(index: Any) -> list[Any]:
        zone = getattr(index, "tz", None)
        return [index.asi8.view(f"{index.dtype.kind}8[{index.unit}]"), zone and str(zone), index.freqstr]

    def make_times(values: Array, zone: str | None, freq: str | None) -> Any:
        index: Any = {"M": pd.DatetimeIndex, "m": pd.TimedeltaIndex}[values.dtype.kind](values)
        if zone is not None:
            require(not zone.startswith("dateutil"), "labels are malformed")  # pandas would look for a file
            index = index.tz_localize("UTC").tz_convert(zone)
        index.freq = freq
        return index

    def take_frame(frame: Any) -> list[Any]:
        return [frame.index, frame.columns, [pd.Index(frame.iloc[:, k]) for k in range(frame.shape[1])]]

    def make_frame(index: Any, columns: Any, data: list[Any]) -> Any:
        frame = pd.DataFrame({k: pd.Series(column, index=index) for k, column in enumerate(data)}, index=index)
        return frame.set_axis(columns, axis=1)

    return {
        "Index": (take_index, make_index),
        "RangeIndex": (lambda index: [index.start, index.stop, index.step], pd.RangeIndex),
        "MultiIndex": (lambda index: [list(index.levels), [np.asarray(one) for one in index.codes]], pd.MultiIndex),
        "DatetimeIndex": (take_times, make_times),
        "TimedeltaIndex": (take_times, make_times),
        "PeriodIndex": (
            lambda index: [index.asi8, index.freqstr],
            lambda values, freq: pd.PeriodIndex.from_ordinals(values, freq=freq),
        ),
        "CategoricalIndex": (
            lambda index: [np.asarray(index.codes), index.categories, index.ordered],
            lambda *parts: pd.CategoricalIndex(pd.Categorical.from_codes(*parts)),
        ),
        "IntervalIndex": (lambda index: [index.left, index.right, index.closed], pd.IntervalIndex.from_arrays),
        "DataFrame": (take_frame, make_frame),
    }


KINDS: dict[str, tuple[Any, Any, Any]] = {  # the type, what a value is made of, and how it is made of that again
    "tuple": (tuple, list, lambda items: tuple(_need_list(items))),
    "dict": (dict, lambda value: [[*pair] for pair in value.items()], lambda pairs: dict(_need_list(pairs))),
    "scalar": (np.generic, np.asarray, lambda array: array.reshape(())[()]),
    "objects": (np.ndarray, _take_objects, _make_objects),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "generator": (np.random.Generator, _take_generator, _make_generator),
    "status": (Status, lambda status: status.name, Status.__members__.__getitem__),
    "sparse": (csr_array, lambda S: [S.data, S.indices, S.indptr, list(S.shape)], _make_sparse),
    "labels": (Labels, lambda labels: labels._pandas, Labels.of),
    "pandas": (None, _take_pandas, _make_pandas),
}


def _find_kind(value: Any) -> str:
    if type(value).__module__.partition(".")[0] == "pandas":
        return "pandas"
    wanted = np.generic if isinstance(value, np.generic) else type(value)
    return next(name for name, (cls, _, _) in KINDS.items() if cls is wanted)


# Whether the parts of a model belong together. Else it would fail later, oddly


def _check_result(result: Result, sides: dict[str, int]) -> None:
    _check_shapes(result, RESULT_SHAPES, sides)
    require(result.rank == min(sides["k1"], sides["k2"]), "the rank is not that of L")
    require(result.calibration is None or sides["bins"] == sides["edges"] + 1, "the calibration is malformed")
    require(result.S is None or result.S.shape == (sides["n1"], sides["n2"]), "L and S differ in shape")
    require(len({len(column) for column in vars(result.history).values()}) == 1, "the history is malformed")
    repeated = [] if result.scale is None else [result.scale.left, result.scale.right]
    require(all(part is None for part in (result.fit, *repeated)), "the result holds what no file does")
    _check_maps(result)
    if result.mistakes is not None:
        names, which = result.mistakes.names, result.mistakes.which
        fine = result.S is not None and result.S.nnz == len(which) and np.isin(which, np.arange(len(names))).all()
        require(fine, "the names of mistakes do not go with the outliers")
    for doubt in result.doubts:
        fine = all(0 <= i < sides["n1"] for i in doubt.rows) and all(0 <= j < sides["n2"] for j in doubt.columns)
        require(fine, "a doubt is about rows or columns that do not exist")


def _check_maps(result: Result) -> None:
    maps = None if result.scale is None else result.scale.maps
    residuals: Any = result.latent
    if maps is None:
        require(residuals is None, "it has residuals of latent values, and no maps of columns")
        return
    stored = None if result.S is None else result.S.nnz
    given = None if residuals is None else len(residuals)
    require(given == stored, "its outliers and their residuals differ in number")
    require(len(maps.names) == len(maps.knots), "there are not as many kinds of columns as columns")
    x, z, low, high = np.moveaxis(maps.knots, 1, 0)
    there = np.isfinite(x) & np.isfinite(z)
    rising = (x[:, 1:] > x[:, :-1]) & (z[:, 1:] > z[:, :-1])
    fine = there[:, :2].all() and (rising | ~there[:, 1:]).all() and (low <= high).all()
    fine = fine and (maps.knots.transpose(0, 2, 1)[~there] == np.inf).all() and (there[:, 1:] <= there[:, :-1]).all()
    require(fine and (maps.limits[:, 0] <= maps.limits[:, 1]).all(), "the maps of columns are malformed")


def _check_model(model: InductiveRobustPCA) -> None:
    sides: dict[str, int] = {}
    _check_result(model.result_, sides)
    _check_shapes(model, MODEL_SHAPES, sides)
    require(model.result_.rank == sides["r"] and model.n_features_in_ == sides["n2"], "components and L do not agree")
    stored = 0 if model.result_.S is None else model.result_.S.nnz
    require(sides["outliers"] == stored, "there are not as many observed values as outliers")
    require(model.container_ in CONTAINERS, f"its container is unknown, {model.container_[:40]!r}")
    for side, n in ((model._rows, sides["n1"]), (model._cols, sides["n2"])):
        _check_side(side, n)
    names = getattr(model, "feature_names_in_", None)
    fine = names is None or (names.shape == (sides["n2"],) and all(isinstance(name, str) for name in names))
    require(fine, "feature_names_in_ is malformed")


def _check_shapes(root: Any, shapes: str, sides: dict[str, int]) -> None:
    """Refuse arrays that do not agree; ``sides`` collects how long each side is."""
    for line in re.split("[,\n]", shapes.strip()):
        path, letter, *names = line.split()
        value = root
        for part in path.split("."):
            value = None if value is None else value[int(part)] if part.isdigit() else getattr(value, part)
        if value is None:
            continue
        fine = isinstance(value, np.ndarray) and value.dtype.kind in {"i": "iu"}.get(letter, letter)
        require(fine and value.ndim == len(names), f"{path} is an array of another kind")
        for n, name in zip(value.shape, names, strict=True):
            expected = int(name) if name.isdigit() else sides.setdefault(name, n)
            require(n == expected, f"{path} has the shape {value.shape}, which does not go with the others")


def _check_side(side: Described, n: int) -> None:
    d = None if side.expected is None else len(side.expected.coefficients)
    for labels, length in ((side.labels, n), (side.columns, d)):
        if labels is not None:
            fine = len(labels.levels) == len(labels.names) == len(labels.dtypes) > 0
            require(fine and (labels._pandas is not None or _is_plain(labels)), "labels are malformed")
            fine = all(level.shape == (len(labels) if length is None else length,) for level in labels.levels)
            require(fine, "there are not as many labels as rows or columns")
    require(side.encoder is not None or not side.by_index, "features from an index need an encoder")
    if side.encoder is not None:
        try:
            with np.errstate(all="ignore"):
                side.encoder.check()
        except Exception as error:  # what is made of numbers that make no sense fails in many ways
            raise ModelFileError(f"the encoder is malformed: {error}") from error
        require(d is None or len(side.encoder.kept_) == d, "the encoder makes other features")


def _is_plain(labels: Labels) -> bool:
    """Whether pandas can make an index of the values and dtypes of labels without fail."""
    pairs = zip(labels.levels, labels.dtypes, strict=True)
    return all(dtype == str(level.dtype) or (dtype == "str" and level.dtype == object) for level, dtype in pairs)
