"""Model files: equal to the bit when they come back, refused in one sentence when they are not what they should be."""

import copy
import errno
import hashlib
import io
import json
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import irpca
from irpca import persistence
from irpca.labels import Labels
from irpca.persistence import ModelFileError, archive, registry
from irpca.persistence.checks import ALIASES, MODEL_SHAPES, RESULT_SHAPES, check_model, fitted_types
from irpca.persistence.decoding import Decoding
from irpca.persistence.encoding import Encoding
from irpca.persistence.registry import conforms

pytestmark = pytest.mark.usefixtures("short_fits")

PROBLEM = irpca.datasets.make_problem(60, 24, d1=3, d2=2, rank=2, corruption=0.08)


def noisy(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    M = 10 * PROBLEM.L / np.abs(PROBLEM.L).max() + 0.1 * rng.standard_normal(PROBLEM.M.shape)
    M[rng.random(M.shape) < 0.05] += 8
    return M


def quick(**given: Any) -> irpca.InductiveRobustPCA:
    """A model whose fit takes no time, for tests of what surrounds it."""
    return irpca.InductiveRobustPCA(rank=2, solver="pca", **given)


def framed(index: Any, columns: Any = None) -> pd.DataFrame:
    return pd.DataFrame(noisy(), index=index, columns=columns)


def fit_exact() -> Any:
    M, F1, F2 = PROBLEM.M, PROBLEM.F1, PROBLEM.F2
    return irpca.InductiveRobustPCA().fit(M, row_features=F1, col_features=F2), M, F1


def fit_one_side() -> Any:
    return irpca.InductiveRobustPCA(extra_rank=0).fit(noisy(), row_features=PROBLEM.F1), noisy(), PROBLEM.F1


def fit_no_features() -> Any:
    return irpca.InductiveRobustPCA(rank=2).fit(noisy()), noisy(), None


def fit_float32() -> Any:
    M = noisy().astype(np.float32)
    return quick().fit(M), M, None


def fit_holes() -> Any:
    M = noisy()
    M[np.random.default_rng(1).random(M.shape) < 0.2] = np.nan
    return irpca.InductiveRobustPCA(rank=2).fit(M), M, None


def fit_sparse() -> Any:
    M = csr_array(noisy())
    return irpca.InductiveRobustPCA(rank=1, max_iter=5).fit(M), M, None


def fit_long_table() -> Any:
    frame = framed([f"user {i}" for i in range(60)], [f"ítem {j}\0" for j in range(24)])
    listed = frame.stack().rename_axis(["user", "item"]).rename("rating").reset_index()
    table = irpca.LongTable.from_frame(listed.sample(frac=0.7, random_state=0))
    return irpca.InductiveRobustPCA(rank=1, max_iter=5).fit(table), table, None


def fit_datetimes() -> Any:
    M = framed(pd.date_range("2024-03-01", periods=60, freq="D", tz="Europe/Berlin", name="day"))
    return quick().fit(M), M, None


def fit_periods() -> Any:
    M = framed(pd.period_range("2001-01", periods=60, freq="M"), pd.CategoricalIndex(list("abcdefghijklmnopqrstuvwx")))
    return quick().fit(M), M, None


def fit_nested() -> Any:
    index = pd.MultiIndex.from_product([["north", "south"], pd.date_range("2020", periods=30)], names=["side", None])
    M = framed(index, pd.interval_range(0, 24))
    return quick().fit(M), M, None


def fit_integers() -> Any:
    M = framed(np.arange(100, 160), np.arange(24) / 2)
    return quick().fit(M), M, None


def fit_pcpf() -> Any:
    model = irpca.InductiveRobustPCA(solver="pcpf", max_iter=20)
    return model.fit(PROBLEM.M, row_features=PROBLEM.F1, col_features=PROBLEM.F2), PROBLEM.M, PROBLEM.F1


def fit_rank_0() -> Any:
    M = np.random.default_rng(3).standard_normal((60, 24))
    return irpca.InductiveRobustPCA(extra_rank=0).fit(M, row_features=PROBLEM.F1), M, PROBLEM.F1


def fit_encoded() -> Any:
    rng = np.random.default_rng(5)
    kinds = {"soil": np.array(["clay", "sand", "peat"])[np.arange(60) % 3], "height": rng.random(60)}
    F1 = pd.DataFrame({**kinds, "day": pd.date_range("2021", periods=60)})
    F1.loc[::7, "soil"] = None
    M = noisy() + (np.arange(60) % 3)[:, None]
    return irpca.InductiveRobustPCA(rank=2, extra_rank=0).fit(M, row_features=F1), M, F1


FITS: dict[str, Callable[[], Any]] = {
    name.removeprefix("fit_"): fit for name, fit in list(globals().items()) if name.startswith("fit_")
}


@cache
def case(name: str) -> tuple[Any, Any, Any]:
    """A fitted model, and what to ask it: M and the features of its rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FITS[name]()


def bytes_of(model: Any, folder: Path) -> bytes:
    path = folder / "m.irpca"
    persistence.save(model, path)
    return path.read_bytes()


def loaded(content: bytes, folder: Path) -> Any:
    path = folder / "changed.irpca"
    path.write_bytes(content)
    return persistence.load(path)


def assert_same(one: Any, other: Any, at: str = "") -> None:
    """Equal to the bit, of the same types, all the way down."""
    assert type(one) is type(other), at
    if isinstance(one, np.ndarray) and one.dtype == object:
        assert_same(one.tolist(), other.tolist(), at)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), at
        assert not one.flags.f_contiguous or other.flags.f_contiguous, at
        assert not one.flags.c_contiguous or other.flags.c_contiguous, at
        assert one.tobytes() == other.tobytes(), at
    elif isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_exact=True, check_freq=True)
    elif isinstance(one, pd.Index):
        pd.testing.assert_index_equal(one, other, exact=True)
        assert getattr(one, "freq", None) == getattr(other, "freq", None)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), at
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{at}[{k}]")
    elif isinstance(one, dict):
        assert list(one) == list(other), at
        for key in one:
            assert_same(one[key], other[key], f"{at}[{key!r}]")
    elif isinstance(one, csr_array):
        for part in ("data", "indices", "indptr", "shape"):
            assert_same(getattr(one, part), getattr(other, part), f"{at}.{part}")
    elif isinstance(one, Labels):
        assert_same([one.levels, one.names, one.dtypes], [other.levels, other.names, other.dtypes], at)
        assert_same(one.pandas(), other.pandas(), at)
    elif isinstance(one, float | np.floating):
        assert np.float64(one).tobytes() == np.float64(other).tobytes(), at
    elif is_dataclass(one) and not isinstance(one, type):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{at}.{field.name}")
    elif type(one).__module__.startswith("irpca") and not isinstance(one, Enum):
        assert_same(sorted(vars(one).items()), sorted(vars(other).items()), at)
    else:
        assert one is other or one == other, at


def answers(model: Any, M: Any, F1: Any) -> dict[str, Any]:
    """What a model says."""
    said = {
        "summary": model.summary(),
        "outliers": model.outliers(),
        "outlier_rows": model.outlier_rows(),
        "outlier_columns": model.outlier_columns(),
        "expected": model.expected(return_std=True),
        "transform": model.transform(M),
        "new outliers": model.outliers(M),
        "score": model.score(M),
    }
    if model._rows.expected is not None:
        said["predict"] = model.predict(row_features=F1, return_std=True)
        said["transform with features"] = model.transform(M, row_features=F1)
    return said


@pytest.mark.parametrize("name", FITS)
def test_model_comes_back_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    model, M, F1 = case(name)
    content = bytes_of(model, tmp_path)
    again = loaded(content, tmp_path)
    without_M = {key: value for key, value in vars(model).items() if key != "_M"}
    assert_same(without_M, {key: vars(again)[key] for key in without_M})
    assert set(vars(again)) == set(without_M)
    assert again.low_rank_ is again.result_.L and again.sparse_ is again.result_.S
    assert_same(answers(model, M, F1), answers(again, M, F1))
    assert bytes_of(again, tmp_path) == content


@pytest.mark.parametrize("name", ["exact", "encoded", "nested"])
@pytest.mark.parametrize("keep", [pickle, joblib], ids=["pickle", "joblib"])
def test_pickle_and_joblib_keep_working(name: str, keep: Any) -> None:
    model, M, F1 = case(name)
    file = io.BytesIO()
    keep.dump(model, file)
    file.seek(0)
    assert_same(answers(model, M, F1), answers(keep.load(file), M, F1))


def test_result_comes_back(tmp_path: Path) -> None:
    result = irpca.solve(noisy(), PROBLEM.F1, rank=2, extra_rank=0)
    assert result.fit is not None  # it holds M, and is not saved
    persistence.save(result, tmp_path / "r.irpca")
    assert_same(replace(result, fit=None), persistence.load_result(tmp_path / "r.irpca"))
    with pytest.raises(ModelFileError, match="of class Result: use load_result"):
        persistence.load(tmp_path / "r.irpca")
    persistence.save(case("exact")[0], tmp_path / "m.irpca")
    with pytest.raises(ModelFileError, match="of class InductiveRobustPCA: use load"):
        persistence.load_result(tmp_path / "m.irpca")


def test_every_attribute_of_a_model_is_checked_on_load() -> None:
    always, sometimes = fitted_types()
    for name in FITS:
        held = set(vars(case(name)[0])) - set(quick().get_params()) - {"_M"}
        assert held - set(sometimes) == {*always, *ALIASES}, name
    for name in registry.registry():
        if name not in ("Status", "Term"):
            assert registry.field_types(name), name
    arrays = {f"{at}.{key}" for at, owner in _held(case("one_side")[0]) for key in owner}
    assert arrays <= {*MODEL_SHAPES, *(f"result_.{path}" for path in RESULT_SHAPES)}


def _held(model: Any) -> list[tuple[str, list[str]]]:
    """The arrays of the parts of a model, by name."""
    parts = {
        "_placement": model._placement,
        "_placement.columns": model._placement.columns,
        "_placement.noise": model._placement.noise,
        "result_.scale": model.result_.scale,
        "result_.calibration": model.result_.calibration,
        "result_.L": model.result_.L,
    }
    return [(at, [k for k, v in vars(part).items() if isinstance(v, np.ndarray)]) for at, part in parts.items()]


VALUES: list[Any] = [
    [0.1, -0.0, float("nan"), float("inf"), 5e-324, 1e308, 1, True, None, "ä\0\ud800", 1 << 100, -1],
    (np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("-inf"), np.str_("x"), np.datetime64("2020-01-01", "us")),
    {"a": (1, [2.5]), 3: {}, None: ()},
    [float(x) for x in range(40)],
    tuple(range(10**15, 10**15 + 40)),
    [1 << 70] * 40,
    [np.zeros((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(7.0), np.arange(3, dtype=">i4")],
    [np.array(["a", "bcd\0", ""], object), np.array([[1, "x"], [None, 2.5]], object), np.array(["ü", "v"])],
    np.array([0x7FF8000000000123, 0xFFF0000000000001], np.uint64).view(np.float64),
    [pd.Timestamp("2020-01-02 03:04", tz="Asia/Tokyo"), pd.Period("2020-05", "M"), pd.NaT, pd.NA, pd.Timedelta("3h")],
    pd.RangeIndex(3, 9, 2, name="n"),
    pd.Index([1, None, 3], dtype="Int64"),
    pd.Index(["a", None], dtype="str"),
    pd.Index([1, "x", 2.5, True], dtype=object),
    pd.DatetimeIndex(["2020-01-01", None], dtype="datetime64[s]"),
    pd.timedelta_range("1h", periods=3),
    pd.MultiIndex.from_tuples([("a", 1), ("b", 2), ("a", 3)], names=["x", 5]),
    pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": pd.Categorical(["u", "v"], ordered=True)}, index=["r", "s"]),
    pd.DataFrame([[1.0, 2.0]], columns=["same", "same"]),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_come_back(value: Any) -> None:
    encoding = Encoding()
    node = json.loads(json.dumps(encoding.node(value, "value"), allow_nan=False))
    assert_same(value, Decoding([array.copy(order="K") for array in encoding.arrays], encoding.objects).value(node))


def test_types_that_a_statement_names_are_those_it_names() -> None:
    """NDArray is one from NumPy 2.5 on: ``type NDArray[T] = ndarray[...]``, which Python 3.11 cannot say."""
    named: Any = SimpleNamespace(__value__=np.ndarray[Any, np.dtype[Any]])
    for hint in (named, GenericAlias(named, (Any,))):
        assert conforms(np.zeros(2), hint) and conforms((np.zeros(2),), tuple[hint, ...])
        assert not conforms([0.0, 0.0], hint) and not conforms((1.0,), tuple[hint, ...])


def test_views_come_back_in_the_order_they_are_read_in() -> None:
    wide = np.arange(24.0).reshape(4, 6)
    for view, order in ((wide[:, :3], "C"), (wide.T[:3], "F")):
        encoding = Encoding()
        encoding.node(view, "view")
        assert encoding.arrays[0].flags[f"{order}_CONTIGUOUS"] and (encoding.arrays[0] == view).all()


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.longdouble(1), np.ma.masked_array([1.0]), 1j, np.complex64(1j), print, b"x"]
)
def test_what_a_file_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"noted\[1\] is a .*which a model file cannot hold"):
        Encoding().node([0, value], "noted")


def test_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    model = quick(random_state=np.random.default_rng(4)).fit(noisy())
    again = loaded(bytes_of(model, tmp_path), tmp_path)
    assert again.random_state.random() == copy.deepcopy(model.random_state).random()


def test_what_is_needed_to_fit_again_and_cannot_be_kept_is_named(tmp_path: Path) -> None:
    rare = np.random.Generator(np.random.MT19937(0))
    model = quick(callbacks=lambda state, history: None, random_state=rare).fit(noisy())
    with pytest.warns(UserWarning, match=r"not saved: callbacks \(a function\), random_state \(a Generator\)"):
        persistence.save(model, tmp_path / "m.irpca")
    again = persistence.load(tmp_path / "m.irpca")
    assert again.callbacks is None and again.random_state is None
    assert_same(answers(model, noisy(), None), answers(again, noisy(), None))


def test_col_features_of_the_constructor_are_kept(tmp_path: Path) -> None:
    frame = pd.DataFrame(PROBLEM.F2, columns=["a", "b"])
    model = irpca.InductiveRobustPCA(col_features=frame, solver="pcpf", max_iter=2)
    with pytest.warns(ConvergenceWarning):
        model.fit(PROBLEM.M)
    assert_same(loaded(bytes_of(model, tmp_path), tmp_path).col_features, frame)


def test_model_that_is_not_fitted_or_a_subclass_is_refused(tmp_path: Path) -> None:
    class Mine(irpca.InductiveRobustPCA):
        pass

    with pytest.raises(NotFittedError):
        persistence.save(quick(), tmp_path / "m.irpca")
    with pytest.raises(TypeError, match=r"model must be an InductiveRobustPCA or a Result, got .*Mine"):
        persistence.save(Mine(), tmp_path / "m.irpca")
    assert list(tmp_path.iterdir()) == []


def test_labels_that_a_file_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = quick().fit(framed(pd.Index([complex(i, 1) for i in range(60)], dtype=object)))
    with pytest.raises(ModelFileError, match=r"_rows\.labels.* is a .*complex"):
        persistence.save(model, tmp_path / "m.irpca")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_does_not_exist_or_is_the_path_is_refused(tmp_path: Path) -> None:
    model = case("float32")[0]
    with pytest.raises(FileNotFoundError, match="folder of path does not exist; create it first"):
        persistence.save(model, tmp_path / "none" / "m.irpca")
    with pytest.raises(IsADirectoryError, match="give the name of a file in it"):
        persistence.save(model, str(tmp_path))
    with pytest.raises(FileNotFoundError):
        persistence.load(tmp_path / "none")


def test_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:  # as root, a read-only folder can be written
        raise PermissionError(13, "no")

    monkeypatch.setattr("os.replace", refused)
    with pytest.raises(PermissionError, match="no permission to write in the folder of path"):
        persistence.save(case("float32")[0], tmp_path / "m.irpca")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_save_leaves_the_old_file(error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bytes_of(case("float32")[0], tmp_path)
    monkeypatch.setattr(np.lib.format, "write_array", _raising(error))
    with pytest.raises((KeyboardInterrupt, OSError)):
        persistence.save(case("exact")[0], tmp_path / "m.irpca")
    assert [file.name for file in tmp_path.iterdir()] == ["m.irpca"]
    assert (tmp_path / "m.irpca").read_bytes() == before


def _raising(error: Any) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.irpca").symlink_to(tmp_path / "m.irpca")
    persistence.save(case("float32")[0], tmp_path / "link.irpca")
    assert (tmp_path / "link.irpca").is_symlink() and (tmp_path / "m.irpca").is_file()


def test_pandas_is_used_for_labels_that_need_it_only(tmp_path: Path) -> None:
    code = """
import sys
from irpca import persistence
for path in sys.argv[1:]:
    persistence.load(path)
    print("irpca.persistence.frames" in sys.modules)
"""
    paths = [tmp_path / name for name in ("float32", "long_table", "periods")]
    for path in paths:
        persistence.save(case(path.name)[0], path)
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


# Files that are not what they should be


def parts_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes], summed: bool = True, compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these parts, with checksums that are right if ``summed``."""
    if summed:
        others = {name: part for name, part in parts.items() if name != "SHA256SUMS"}
        sums = "".join(f"{hashlib.sha256(part).hexdigest()}  {name}\n" for name, part in others.items())
        parts = {**others, "SHA256SUMS": sums.encode()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


def with_header(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    parts = parts_of(content)
    header = json.loads(parts["header.json"])
    change(header)
    return packed({**parts, "header.json": json.dumps(header).encode()})


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return bytes_of(case("one_side")[0], tmp_path)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        for key in path[:-1]:
            header = header[key]
        header[path[-1]] = to

    return change


HEADERS = {
    "no model file": _set("format", to="zip"),
    "upgrade irpca": _set("version", to=2),
    "written by irpca 9.9": lambda header: header.update(version=7, irpca="9.9"),
    "version is malformed": _set("version", to="1"),
    "unknown class": _set("class", to="Pipeline"),
    "not known here, 'os.system'": _set("objects", 0, "class", to="os.system"),
    "the model lacks _placement": lambda header: header["content"]["fitted"].pop("_placement"),
    "the model lacks solver": lambda header: header["content"]["parameters"].pop("solver"),
    "no attribute 'predict'": _set("content", "fitted", "predict", to=None),
    "no attribute '__class__'": _set("content", "fitted", "__class__", to=None),
    "argument rank is a float": _set("content", "parameters", "rank", to=1.5),
    "refers to an array or object": _set("content", "fitted", "_observed", to={"array": 10**9}),
    "unknown kind, 'eval'": _set("content", "fitted", "_observed", to={"eval": "1"}),
    "rank_ is not that of the result": _set("content", "fitted", "rank_", to=1),
    "nested more than": _set("content", "fitted", "more_", to=json.loads('{"list":[' * 60 + "]}" * 60)),
    "it holds a list|a list stands": _set("content", "fitted", "_dims", to=[1]),
    "singular_values_ has the shape": lambda header: header["content"]["fitted"].update(
        singular_values_=header["content"]["fitted"]["_observed"]
    ),
    "its number of arrays": _set("arrays", to=-1),
    "arrays are missing": _set("arrays", to=3),
    "the header has fields that are not known": _set("more", to=1),
    "random_state is malformed": _set("content", "parameters", "random_state", to={"generator": None}),
    "far more than it holds": _set(
        "content", "fitted", "more_", to={"pandas": "RangeIndex", "range": {"list": [0, 10**15, 1]}, "name": None}
    ),
}


@pytest.mark.parametrize("said", HEADERS)
def test_changed_header_is_refused(said: str, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"changed.irpca cannot be loaded: .*({said})"):
        loaded(with_header(content, HEADERS[said]), tmp_path)


def _parts(**given: Any) -> Callable[[dict[str, bytes]], bytes]:
    return lambda parts: packed({**parts, **{name.replace("__", "."): part for name, part in given.items()}})


F8 = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s), }"
ARCHIVES: dict[str, tuple[str, Callable[[dict[str, bytes]], bytes]]] = {
    "empty": ("no model file", lambda parts: b""),
    "text": ("no model file", lambda parts: b"rank,noise\n1,2\n"),
    "other archive": ("no model file", lambda parts: packed({"a": b"b"})),
    "array changed": (
        "a0.npy does not match its checksum",
        lambda parts: packed({**parts, "a0.npy": parts["a0.npy"][:-1] + b"?"}, summed=False),
    ),
    "header changed": (
        "header does not match",
        lambda parts: packed({**parts, "header.json": parts["header.json"] + b" "}, summed=False),
    ),
    "array left out": ("arrays are missing", lambda parts: packed({k: v for k, v in parts.items() if k != "a1.npy"})),
    "more parts": ("arrays are missing, or there are others", _parts(a999__npy=b"")),
    "path in a name": ("checksums are malformed", lambda parts: packed({**parts, "../../x": b""})),
    "compressed": ("compressed", lambda parts: packed(parts, compression=zipfile.ZIP_DEFLATED)),
    "not JSON": ("not JSON", _parts(header__json=b"{")),
    "NaN": ("not JSON", _parts(header__json=b'{"a": NaN}')),
    "twice": ("there twice", _parts(header__json=b'{"a": 1, "a": 2}')),
    "deep": ("nested too deeply", _parts(header__json=b"[" * 200_000)),
    "long number": ("not JSON", _parts(header__json=b"1" * 10_000)),
    "objects": ("not an array of numbers", _parts(a0__npy=npy(F8.replace("<f8", "|O") % "1,", b"12345678"))),
    "fields": (
        "not an array of numbers",
        _parts(a0__npy=npy(F8.replace("'<f8'", "[('a', '<f8')]") % "1,", b"12345678")),
    ),
    "huge": ("a0.npy is shorter than it claims", _parts(a0__npy=npy(F8 % "1000000000000,"))),
    "negative": ("not an array of numbers", _parts(a0__npy=npy(F8 % "-1,"))),
    "immense": ("larger than the file", _parts(a0__npy=npy(F8 % f"0, {10**60}"))),
    "expression": ("not an array of numbers", _parts(a0__npy=npy(F8 % "__import__('os').getpid()"))),
    "wide": ("not an array of numbers", _parts(a0__npy=npy(F8.replace("<f8", "<f16") % "0,"))),
    "not boolean": ("holds other values", _parts(a0__npy=npy(F8.replace("<f8", "|b1") % "1,", b"\x07"))),
    "not text": ("what is no text", _parts(a0__npy=npy(F8.replace("<f8", "<U1") % "1,", b"\xff" * 4))),
    "another kind": (
        "is a|another kind|does not go",
        _parts(a0__npy=npy(F8.replace("<f8", "<i8") % "60, 2", bytes(960))),
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_changed_archive_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    said, change = ARCHIVES[name]
    with pytest.raises(ModelFileError, match=f"cannot be loaded: .*({said})"):
        loaded(change(parts_of(content)), tmp_path)


def test_archive_that_claims_more_than_it_has_is_refused_unread(content: bytes, tmp_path: Path) -> None:
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(b"a0.npy"))
    huge = (1 << 31).to_bytes(4, "little")
    with pytest.raises(ModelFileError, match="larger than the file"):
        loaded(content[: at + 20] + huge + huge + content[at + 28 :], tmp_path)


def test_part_that_is_there_twice_is_refused(content: bytes, tmp_path: Path) -> None:
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a0.npy", b"")
    with pytest.raises(ModelFileError, match="cannot be loaded: parts are there twice"):
        loaded(file.getvalue(), tmp_path)


class Canary:
    """Sets a flag when it is unpickled."""

    sang = False

    def __reduce__(self) -> Any:
        return (setattr, (Canary, "sang", True))


def test_nothing_in_a_file_is_executed(content: bytes, tmp_path: Path) -> None:
    payload = pickle.dumps(Canary())
    pickle.loads(payload)
    assert Canary.sang  # it sings if anything unpickles it
    Canary.sang = False
    file = io.BytesIO()
    np.save(file, np.array([Canary()], object), allow_pickle=True)
    for part in (payload, file.getvalue()):
        for change in (_parts(a0__npy=part), _parts(header__json=part), lambda parts, part=part: part):
            with pytest.raises(ModelFileError):
                loaded(change(parts_of(content)), tmp_path)
    assert not Canary.sang


@pytest.mark.parametrize("dtype", ["1.5", "10", "2f8", "f8,f8", "O", "(2,)f8"])
def test_type_of_a_number_is_not_compiled(dtype: str, content: bytes, tmp_path: Path) -> None:
    """NumPy compiles the text of a type that it does not know."""
    compiled: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ast.parse", lambda *given, **_: compiled.append(given))
        change = _set("content", "parameters", "tol", to={"scalar": dtype, "bytes": "00" * 8})
        with pytest.raises(ModelFileError, match="a number is malformed"):
            loaded(with_header(content, change), tmp_path)
    assert not compiled


# Fuzzing


def fuzz(content: bytes, folder: Path, count: int, seed: int = 0) -> dict[str, int]:
    """Load ``count`` damaged files of each kind; returns how many were refused and how many loaded.

    A file must be refused with ModelFileError, or load as a model that answers, or says with ValueError why not.
    Files whose checksums were not made again must in the second case be equal to the original.
    """
    rng = np.random.default_rng(seed)
    original, tally = loaded(content, folder), {"refused": 0, "loaded": 0}
    for change, honest in ((_cut, False), (_flipped, False), (_noise, False), (_array_flipped, True), (_tree, True)):
        for _ in range(count):
            damaged = change(content, rng)
            try:
                model = loaded(damaged, folder)
            except ModelFileError as error:
                assert "\n" not in str(error)[:200]
                tally["refused"] += 1
                continue
            tally["loaded"] += 1
            if honest:
                _answers_or_says_why(model)
            else:
                assert_same(vars(original), vars(model))
    assert not Canary.sang
    return tally


def _answers_or_says_why(model: Any) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for ask in (
            model.summary,
            model.outliers,
            lambda: model.transform(noisy()),
            model.outlier_rows,
            model.expected,
        ):
            with suppress(ValueError, ArithmeticError, np.linalg.LinAlgError):
                ask()


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def _flipped(content: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    tail = rng.random() < 0.3  # the directory of the archive
    for at in rng.integers(len(content) - 3000 if tail else 0, len(content), rng.integers(1, 6)):
        damaged[at] = rng.integers(256)
    return bytes(damaged)


def _noise(content: bytes, rng: np.random.Generator) -> bytes:
    start = content[: rng.integers(200)] if rng.random() < 0.5 else b""
    return start + rng.bytes(rng.integers(2000)) + (content[-3000:] if rng.random() < 0.5 else b"")


def _array_flipped(content: bytes, rng: np.random.Generator) -> bytes:
    """Bytes of an array, checksums made again."""
    parts = parts_of(content)
    name = str(rng.choice([name for name in parts if name.endswith(".npy")]))
    damaged = bytearray(parts[name])
    reach = 128 if rng.random() < 0.5 else len(damaged)
    for at in rng.integers(0, reach, rng.integers(1, 4)):
        damaged[at] = rng.integers(256)
    return packed({**parts, name: bytes(damaged)})


ODD: list[Any] = [None, True, -1, 0, 10**30, 1.5, -1e308, "", "x", [], {}, {"array": 0}, {"object": 1}, {"list": []}]
ODD += [{"float": "7ff0000000000000"}, {"tuple": []}, {"pandas": "Index"}, {"scalar": "<f8", "bytes": "00"}, [[]]]


def _tree(content: bytes, rng: np.random.Generator) -> bytes:
    """The header with values left out, replaced or exchanged, checksums made again."""
    return with_header(content, lambda header: [_mutate(header, rng) for _ in range(rng.integers(1, 4))])


def _mutate(header: Any, rng: np.random.Generator) -> None:
    places = list(_places(header))
    holder, key = places[rng.integers(len(places))]
    other, its_key = places[rng.integers(len(places))]
    how = rng.integers(4)
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
    elif how == 2:
        holder[key] = copy.deepcopy(other[its_key])
    elif isinstance(holder, dict):
        holder[str(rng.integers(100))] = holder.pop(key)


def _places(node: Any) -> Any:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


@pytest.mark.parametrize("name", ["one_side", "nested", "encoded"])
def test_damaged_files_are_refused_or_harmless(name: str, tmp_path: Path) -> None:
    tally = fuzz(bytes_of(case(name)[0], tmp_path), tmp_path, count=50)
    assert tally["refused"] > 180


# What is said of each part that is not as it was written

ONE, TWO = np.array([1.0]), np.array([1.0, 2.0])
LETTERS, ENDS = np.frombuffer(b"ab", np.uint8), np.array([1, 2])
INDEX = {"pandas": "Index", "values": {"array": 0}, "dtype": None, "name": None}
PCG = {"bit_generator": "PCG64", "state": {"dict": [["state", 1], ["inc", 1]]}, "has_uint32": 0, "uinteger": 0}


def generator(**given: Any) -> dict[str, Any]:
    return {"generator": {"dict": [list(pair) for pair in {**PCG, **given}.items()]}}


NODES: list[tuple[str, Any, list[Any]]] = [
    ("a number is malformed", {"float": "00"}, []),
    ("a number is malformed", {"scalar": "<f8", "bytes": "00"}, []),
    ("a dict is malformed", {"dict": 1}, []),
    ("a dict is malformed", {"dict": [[1]]}, []),
    ("a list is malformed", {"list": {"array": 0}}, [np.ones((1, 1))]),
    ("a list is malformed", {"list": 1}, []),
    ("a status is malformed", {"enum": "Status", "name": "LOST"}, []),
    ("a date is malformed", {"date": "week", "text": "2013-W01"}, []),
    ("random_state is malformed", generator(bit_generator="MT19937"), []),
    ("random_state is malformed", generator(state={"dict": [["state", -1], ["inc", 1]]}), []),
    ("random_state is malformed", generator(has_uint32=2), []),
    ("an array is malformed", {"values": [1], "shape": [-1]}, []),
    ("an array is malformed", {"values": [1], "shape": [2]}, []),
    ("an array is malformed", {"elements": 3, "shape": [1]}, []),
    ("a list of texts is malformed", {"texts": [0], "shape": [1]}, []),
    ("a list of texts is malformed", {"texts": [0, 0], "shape": [1]}, [LETTERS]),
    ("a list of texts is malformed", {"texts": [0, 1], "shape": [2]}, [LETTERS, ENDS[:, None]]),
    ("a list of texts is malformed", {"texts": [0, 1], "shape": [2]}, [LETTERS, ENDS[::-1].copy()]),
    ("a pandas object is malformed", {"pandas": "Panel"}, []),
    ("a label is malformed", {"pandas": "element", "of": INDEX}, [TWO]),
    ("a range of labels is malformed", {"pandas": "RangeIndex", "range": 3, "name": None}, []),
    ("nested labels are malformed", {"pandas": "MultiIndex", "levels": 1, "codes": 2, "names": None}, []),
    ("labels are malformed", INDEX, [np.ones((1, 1))]),
    ("labels are malformed", {**INDEX, "dtype": "datetime64[ns]"}, [ONE]),
    *(
        (said, {"pandas": kind, "values": {"array": 0}, **parts, "name": None}, [ONE])
        for said, kind, parts in (
            ("dates are malformed", "DatetimeIndex", {"zone": None, "freq": None}),
            ("durations are malformed", "TimedeltaIndex", {"zone": None, "freq": None}),
            ("periods are malformed", "PeriodIndex", {"freq": "D"}),
        )
    ),
    (
        "categories are malformed",
        {"pandas": "CategoricalIndex", "codes": 1, "of": 2, "ordered": True, "name": None},
        [],
    ),
    ("a column of features is malformed", {"pandas": "Series", "index": INDEX, "values": 3, "name": None}, [ONE]),
    *(
        (
            "a table of features is malformed",
            {"pandas": "DataFrame", "index": INDEX, "columns": INDEX, "data": data},
            [ONE],
        )
        for data in (
            {"list": []},
            {"list": [3]},
            {"list": [{"pandas": "RangeIndex", "range": {"list": [0, 5, 1]}, "name": None}]},
        )
    ),
]


@pytest.mark.parametrize("said, node, arrays", NODES, ids=[f"{k}-{said}" for k, (said, *_) in enumerate(NODES)])
def test_a_value_that_no_model_holds(said: str, node: Any, arrays: list[Any]) -> None:
    with pytest.raises(ModelFileError, match=f"^{said}$"):
        Decoding(arrays, []).value(node)


@pytest.mark.parametrize(
    "said, changes",
    [
        ("the values of a sparse array are malformed", {0: np.array(["a", "b"])}),
        ("the indices of a sparse array are malformed", {1: TWO}),
        ("a sparse array is malformed", {2: np.array([0, 2])}),
        ("a sparse array is malformed", {2: np.array([0, 1, 1])}),
        ("a sparse array is malformed", {2: np.array([0, 3, 2])}),
        ("a sparse array reaches beyond its shape", {1: np.array([0, 9])}),
    ],
)
def test_a_sparse_array_that_is_none(said: str, changes: dict[int, Any]) -> None:
    arrays = [changes.get(k, whole) for k, whole in enumerate((TWO, np.array([0, 1]), np.array([0, 1, 2])))]
    parts = {name: {"array": k} for k, name in enumerate(("data", "indices", "indptr"))}
    with pytest.raises(ModelFileError, match=f"^{said}$"):
        Decoding(arrays, [{"class": "csr_array", "fields": {**parts, "shape": {"tuple": [2, 2]}}}])


def test_a_file_without_objects_or_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFileError, match="the list of objects is missing"):
        Decoding([], None)
    monkeypatch.delattr(persistence, "frames", raising=False)
    monkeypatch.setitem(sys.modules, "irpca.persistence.frames", None)
    with pytest.raises(ModelFileError, match="labels or features of pandas, which is not installed here"):
        Decoding([], []).value({"pandas": "NA"})


def shared(name: str, **attributes: Any) -> Any:
    """A fitted model, with other attributes."""
    model = copy.copy(case(name)[0])
    vars(model).update(attributes)
    return model


def resulting(**changes: Any) -> Any:
    """A model whose result differs, and what repeats it alike."""
    result = replace(case("one_side")[0].result_, **changes)
    return shared("one_side", result_=result, **{name: getattr(result, field) for name, field in ALIASES.items()})


def encoding(**changes: Any) -> Any:
    """A model whose encoder differs."""
    model = case("encoded")[0]
    made = copy.copy(model._rows.encoder)
    vars(made).update(changes)
    return shared("encoded", _rows=replace(model._rows, encoder=made))


def labels(**changes: Any) -> Any:
    model = shared("one_side")
    whole = {"levels": (np.arange(60),), "names": (None,), "dtypes": ("int64",)}
    made = Labels(**{name: value for name, value in {**whole, **changes}.items() if name != "_pandas"})
    if "_pandas" in changes:
        object.__setattr__(made, "_pandas", changes["_pandas"])
    return shared("one_side", _rows=replace(model._rows, labels=made))


MODELS: list[tuple[str, Callable[[], Any]]] = [
    ("the rank is not that of L", lambda: resulting(rank=7)),
    ("L and S differ in shape", lambda: resulting(S=csr_array((3, 3)))),
    ("a doubt is about rows or columns that do not exist", lambda: resulting(doubts=(irpca.Doubt("x", "y", (99,)),))),
    ("the calibration is malformed", lambda: resulting(calibration=_longer(case("one_side")[0].result_.calibration))),
    ("components and L do not agree", lambda: shared("one_side", n_features_in_=3)),
    ("not as many observed values as outliers", lambda: shared("one_side", _observed=ONE)),
    ("its container is unknown, 'vaex'", lambda: shared("one_side", container_="vaex")),
    ("feature_names_in_ is malformed", lambda: shared("one_side", feature_names_in_=np.array(["a"], object))),
    ("_fingerprint is a int, and should not be", lambda: shared("one_side", _fingerprint=3)),
    (
        "features from an index need an encoder",
        lambda: shared("one_side", _rows=replace(case("one_side")[0]._rows, by_index=True)),
    ),
    ("the encoder makes other features", lambda: encoding(kept_=(0,), names_=("a",))),
    ("the encoder is malformed: the encoder keeps columns", lambda: encoding(kept_=(999,))),
    ("the encoder is malformed: the encoder makes nothing of the column", lambda: encoding(columns_=())),
    ("labels are malformed", lambda: labels(names=())),
    ("there are not as many labels as rows or columns", lambda: labels(levels=(np.arange(3),))),
    ("labels are malformed", lambda: labels(dtypes=("Int64",))),
    ("labels are malformed", lambda: labels(dtypes=("Int64",), _pandas=pd.RangeIndex(3))),
]


def _longer(calibration: Any) -> Any:
    longer = copy.copy(calibration)
    longer.edges = np.r_[calibration.edges, 1e9]
    return longer


@pytest.mark.parametrize("said, model", MODELS, ids=[f"{k}-{said}" for k, (said, _) in enumerate(MODELS)])
def test_a_model_that_was_not_fitted_so(said: str, model: Callable[[], Any]) -> None:
    with pytest.raises(ModelFileError, match=said):
        check_model(model())


def test_headers_and_content_of_another_kind(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for said, to in (("its content is malformed", {"parameters": {}}), ("its content is malformed", None)):
        with pytest.raises(ModelFileError, match=f"cannot be loaded: {said}"):
            loaded(with_header(content, _set("content", to=to)), tmp_path)
    with pytest.raises(ModelFileError, match="cannot be loaded: its content is no Result"):
        loaded(with_header(content, lambda header: header.update({"class": "Result", "content": 3})), tmp_path)
    monkeypatch.setattr(archive, "LARGEST_HEADER", 100)
    with pytest.raises(ModelFileError, match="cannot be loaded: its header is too large"):
        loaded(content, tmp_path)


def test_checksums_that_are_none() -> None:
    line = f"{'0' * 64}  a0.npy\n".encode()
    for text in (line + line, line + b"more"):
        with pytest.raises(ModelFileError, match="its checksums are malformed"):
            archive.sums_of(text)


def test_parts_of_another_length() -> None:
    for said, found in (("it is cut off", b"1234567"), ("a part is longer than it claims", b"123456789")):
        with pytest.raises(ModelFileError, match=said):
            archive._fill(io.BytesIO(found), np.empty(8, np.uint8), hashlib.sha256())


def test_an_archive_that_cannot_be_sought_in() -> None:
    said = r"^m\.irpca cannot be loaded: it is cut off or damaged$"
    with pytest.raises(ModelFileError, match=said), persistence._refusing("m.irpca"):
        raise OSError(errno.EINVAL, "Invalid argument")


def test_models_too_large_or_odd_to_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, target = case("exact")[0].result_, tmp_path / "m.irpca"
    with monkeypatch.context() as patch:
        patch.setattr("irpca.persistence.model.LARGEST_HEADER", 10)
        with pytest.raises(ModelFileError, match=r"cannot be saved: labels .* are too many; convert the labels"):
            persistence.save(result, target)
    monkeypatch.setattr(persistence, "_read", _raising(ModelFileError("the history is malformed")))
    with pytest.raises(ModelFileError, match="cannot be saved: the history is malformed; please report this, and use"):
        persistence.save(result, target)
    assert list(tmp_path.iterdir()) == []


def test_frames_that_a_file_cannot_hold() -> None:
    half = pd.DataFrame({"a": np.ones(2, np.float16)})
    for odd, kind in ((half, "DataFrame of several types"), (half["a"], "Series of float16")):
        with pytest.raises(ModelFileError, match=rf"F is a pandas {kind}, which .* \.astype\(str\)"):
            Encoding().node(odd, "F")


def test_a_whole_number_in_the_place_of_a_float_is_one_that_is_a_float():
    assert conforms(2**53, float) and conforms(-3, float) and conforms(10**30, int)
    assert not conforms(10**30, float) and not conforms(-(10**30), float) and not conforms(True, float)
