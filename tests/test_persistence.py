"""Model files: equal to the bit when they come back, refused in one sentence when they are not what they should be.

Thousands of damaged files are tried by ``soak.models``, of which ``test_soak.py`` runs some.
"""

import copy
import datetime
import errno
import io
import json
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mixed_columns import KINDS, mixed
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import irpca
from irpca import persistence
from irpca.labels import Labels
from irpca.persistence import FIELDS, ModelFileError, Reader, digest_of, encode, take_apart
from irpca.result import Mistakes

pytestmark = pytest.mark.usefixtures("short_fits")

PROBLEM = irpca.datasets.make_problem(60, 24, d1=3, d2=2, rank=2, corruption=0.08)


def noisy() -> np.ndarray:
    rng = np.random.default_rng(0)
    M = 10 * PROBLEM.L / np.abs(PROBLEM.L).max() + 0.1 * rng.standard_normal(PROBLEM.M.shape)
    M[rng.random(M.shape) < 0.05] += 8
    return M


def quick(**given: Any) -> irpca.InductiveRobustPCA:
    """A model whose fit takes no time, for tests of what surrounds it."""
    return irpca.InductiveRobustPCA(rank=2, solver="pca", **given)


def framed(index: Any, columns: Any = None) -> pd.DataFrame:
    return pd.DataFrame(noisy(), index=index, columns=columns)


def long_table() -> irpca.LongTable:
    frame = framed([f"user {i}" for i in range(60)], [f"ítem {j}\0" for j in range(24)])
    listed = frame.stack().rename_axis(["user", "item"]).rename("rating").reset_index()
    return irpca.LongTable.from_frame(listed.sample(frac=0.7, random_state=0))


def features_to_encode() -> pd.DataFrame:
    kinds = {"soil": np.array(["clay", "sand", "peat"])[np.arange(60) % 3], "height": np.linspace(0, 1, 60) ** 2}
    frame = pd.DataFrame({**kinds, "day": pd.date_range("2021", periods=60)})
    frame.loc[::7, "soil"] = None
    return frame


def holed() -> np.ndarray:
    return np.where(np.random.default_rng(1).random(PROBLEM.M.shape) < 0.2, np.nan, noisy())


DAYS = pd.date_range("2024-03-01", periods=60, freq="D", tz="Europe/Berlin", name="day")
NESTED = pd.MultiIndex.from_product([["north", "south"], pd.date_range("2020", periods=30)], names=["side", None])
FITS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {  # the model to fit, M, and features of the rows
    "exact": lambda: (irpca.InductiveRobustPCA(col_features=PROBLEM.F2), PROBLEM.M, PROBLEM.F1),
    "one side": lambda: (irpca.InductiveRobustPCA(extra_rank=0), noisy(), PROBLEM.F1),
    "float32": lambda: (quick(), noisy().astype(np.float32), None),
    "holes": lambda: (irpca.InductiveRobustPCA(rank=2), holed(), None),
    "long table": lambda: (irpca.InductiveRobustPCA(rank=1, max_iter=5), long_table(), None),
    "dates": lambda: (quick(), framed(DAYS, np.arange(24) / 2), None),
    "nested": lambda: (quick(), framed(NESTED, pd.interval_range(0, 24)), None),
    "mapped": lambda: (irpca.InductiveRobustPCA(rank=3, columns=KINDS), mixed(), None),
    "rank 0": lambda: (
        irpca.InductiveRobustPCA(extra_rank=0),
        np.random.default_rng(3).standard_normal((60, 24)),
        PROBLEM.F1,
    ),
    "encoded": lambda: (
        irpca.InductiveRobustPCA(rank=2, extra_rank=0),
        noisy() + (np.arange(60) % 3)[:, None],
        features_to_encode(),
    ),
}


@cache
def case(name: str) -> tuple[Any, Any, Any]:
    """A fitted model, and what to ask it: M and the features of its rows."""
    model, M, F1 = FITS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(M, row_features=F1), M, F1


def save_bytes(model: Any, folder: Path) -> bytes:
    persistence.save(model, folder / "m.irpca")
    return (folder / "m.irpca").read_bytes()


def load_bytes(content: bytes, folder: Path) -> Any:
    (folder / "changed.irpca").write_bytes(content)
    return persistence.load(folder / "changed.irpca")


def answers(model: Any, M: Any, F1: Any) -> dict[str, Any]:
    said = {
        "summary": model.summary(),
        "outliers": model.outliers(),
        "rows": model.outlier_rows(),
        "columns": model.outlier_columns(),
        # Where columns are mapped, std is that of the cell that was observed, and only a model with its table knows it.
        "expected": model.expected(return_std=model.result_.maps is None),
        "transform": model.transform(M),
        "new outliers": model.outliers(M),
        "score": model.score(M),
    }
    if model._rows.expected is not None:
        said["predict"] = model.predict(row_features=F1, return_std=True)
    return said


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    elif isinstance(one, pd.Index):
        pd.testing.assert_index_equal(one, other, exact=True)
        assert one.names == other.names and getattr(one, "freq", None) == getattr(other, "freq", None)
    elif isinstance(one, np.ndarray) and one.dtype.names:
        assert_same({name: one[name] for name in one.dtype.names}, {name: other[name] for name in other.dtype.names})
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.flags.fnc == other.flags.fnc
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict | list | tuple):
        pairs = zip(one.items(), other.items(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
        for a, b in pairs:
            assert_same(a, b)
    else:
        assert one == other or (one != one and other != other)


@pytest.mark.parametrize("name", FITS)
def test_model_comes_back_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    model, M, F1 = case(name)
    content = save_bytes(model, tmp_path)
    again = load_bytes(content, tmp_path)
    assert set(vars(again)) == set(vars(model)) - {"_M", "_device", "_said", "_explaining"}
    assert again.low_rank_ is again.result_.L and again.sparse_ is again.result_.S
    for labels, others in ((model.row_labels_, again.row_labels_), (model.col_labels_, again.col_labels_)):
        if labels is not None:
            assert_same(labels.pandas(), others.pandas())
    assert_same(answers(model, M, F1), answers(again, M, F1))
    assert_same(answers(again, M, F1), answers(pickle.loads(pickle.dumps(again)), M, F1))
    assert save_bytes(again, tmp_path) == content


def test_all_that_parts_of_a_model_hold_is_in_the_file() -> None:
    result = case("one side")[0].result_
    for part in (result, result.calibration, result.scale, result.L, case("one side")[0]._placement.columns):
        assert set(FIELDS[type(part)]) == set(vars(part)), type(part)


def test_latent_values_come_back_and_are_in_the_file_once(tmp_path: Path) -> None:
    model = case("mapped")[0]
    save_bytes(model, tmp_path)
    for again in (persistence.load(tmp_path / "m.irpca"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        one, other = model.result_, again.result_
        assert type(other.L) is type(one.L) and other.maps.names == one.maps.names and other.kinds() == one.kinds()
        for name in ("knots", "limits", "least"):
            assert_same(getattr(one.maps, name), getattr(other.maps, name))
        for name in ("left", "right"):
            assert_same(getattr(one.scale, name), getattr(other.scale, name))
            assert_same(getattr(one.latent.L, name), getattr(other.latent.L, name))
        assert_same(one.latent.S.toarray(), other.latent.S.toarray())
        assert_same(one.S.toarray(), other.S.toarray())
    with np.load(tmp_path / "m.irpca") as arrays:
        tall = [array for array in arrays.values() if array.dtype == float and array.shape[:1] == (150,)]
    assert len({array.tobytes() for array in tall}) == len(tall)
    persistence.save(model.result_, tmp_path / "r.irpca")
    assert_same(persistence.load_result(tmp_path / "r.irpca").latent.S.data, model.result_.latent.S.data)


def test_file_is_an_npz_that_is_no_larger_than_its_arrays(tmp_path: Path) -> None:
    content = save_bytes(case("one side")[0], tmp_path)
    with np.load(tmp_path / "m.irpca", allow_pickle=False) as arrays:
        document = json.loads(arrays["document"].tobytes())
        size = sum(array.nbytes for array in arrays.values())
    assert (document["format"], document["version"]) == ("irpca model", 1)
    assert len(content) < size + 400 * len(arrays.files)


def come_back(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    node = json.loads(json.dumps(encode(value, "value", arrays)))
    return Reader(arrays, "").decode(node)


VALUES: list[Any] = [
    [0.1, -0.0, float("nan"), float("inf"), 5e-324, 1, True, None, "ä\0\ud800", 1 << 100, -1],
    (np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("-inf"), np.datetime64("2020-01-01", "us")),
    {"a": (1, [2.5]), 3: {}, None: ()},
    [datetime.date(2020, 2, 29), datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC), datetime.time(7, 30)],
    [np.zeros((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(7.0), np.arange(3, dtype=">i4")],
    [np.array(["a", "bcd\0", ""], object), np.array([[1, "x"], [None, 2.5]], object)],
    pd.RangeIndex(3, 9, 2, name="n"),
    pd.Index([3, 5, 4], name=("a", 1)),
    pd.Index([0.5, np.nan]),
    pd.Index([True, False]),
    pd.Index([1, None, 3], dtype="Int64"),
    pd.Index(["a", None], dtype="string"),
    pd.Index(["a", "b"]),
    pd.Index([1, "x", 2.5, True], dtype=object),
    pd.DatetimeIndex(["2020-01-01", None], dtype="datetime64[s]"),
    DAYS,
    DAYS[::2],
    pd.DatetimeIndex(["2020-01-01"], tz="UTC+01:00"),
    pd.timedelta_range("1h", periods=3),
    pd.period_range("2001-01", periods=6, freq="M"),
    pd.interval_range(0, 3, closed="left"),
    pd.CategoricalIndex(["u", "v", None], categories=["v", "u", "w"], ordered=True),
    NESTED[::7],
    pd.MultiIndex.from_arrays([DAYS[:3], pd.CategoricalIndex(list("aba"))], names=["x", 5]),
    pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": pd.Categorical(["u", "v"])}, index=["r", "s"]),
    pd.DataFrame([[1.0, 2.0]], columns=["same", "same"]),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_and_indexes_come_back(value: Any) -> None:
    assert_same(value, come_back(value))


UNKNOWN: list[Any] = [object(), {1, 2}, np.longdouble(1), np.array([1j]), np.array(["x"]), np.ma.masked_array([1.0])]
UNKNOWN += [1j, print, b"x", pd.Timestamp("2020"), pd.NA, pd.Series([1.0]), pd.DataFrame({"a": np.ones(2, np.float16)})]
UNKNOWN += [pd.date_range("2020", periods=3, freq=pd.offsets.CustomBusinessDay(holidays=["2019-01-02"]))]


@pytest.mark.parametrize("value", UNKNOWN, ids=lambda value: type(value).__name__)
def test_what_a_file_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"^noted\[1\].* is a .*which a model file cannot hold: convert it"):
        encode([0, value], "noted", {})


def test_views_are_kept_in_the_order_they_are_read_in() -> None:
    wide = np.arange(24.0).reshape(4, 6)
    for view, order in ((wide[:, :3], "C"), (wide.T[:3], "F")):
        again = come_back(view)
        assert again.flags[f"{order}_CONTIGUOUS"] and (again == view).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_result_comes_back(sparse: bool, tmp_path: Path) -> None:
    result = irpca.solve(noisy(), PROBLEM.F1, rank=2, extra_rank=0, sparse=sparse)
    assert result.fit is not None  # it holds M, and is not saved
    persistence.save(result, tmp_path / "r.irpca")
    again = persistence.load_result(tmp_path / "r.irpca")
    assert again.fit is None and (again.S is None) is not sparse and again.summary() == result.summary()
    assert (take_apart(again)["sha256"] == take_apart(result)["sha256"]).all()
    with pytest.raises(ModelFileError, match="of class Result: use load_result"):
        persistence.load(tmp_path / "r.irpca")
    persistence.save(case("exact")[0], tmp_path / "m.irpca")
    with pytest.raises(ModelFileError, match="of class InductiveRobustPCA: use load"):
        persistence.load_result(tmp_path / "m.irpca")


def test_arguments_of_the_constructor_are_kept_or_named(tmp_path: Path) -> None:
    frame = pd.DataFrame(PROBLEM.F2, columns=["a", "b"])
    rng = np.random.default_rng(4)
    again = load_bytes(save_bytes(quick(col_features=frame, random_state=rng).fit(noisy()), tmp_path), tmp_path)
    assert_same(again.col_features, frame)
    assert again.random_state.random() == copy.deepcopy(rng).random()
    rare = np.random.Generator(np.random.MT19937(0))
    model = quick(callbacks=lambda state, history: None, random_state=rare).fit(noisy())
    said = r"not saved: callbacks \(a function\), random_state \(a Generator\); the loaded model predicts the same"
    with pytest.warns(UserWarning, match=said) as warned:
        model.save(tmp_path / "m.irpca")
    assert warned[0].filename == __file__
    again = irpca.load(tmp_path / "m.irpca")
    assert again.callbacks is None and again.random_state is None and model.random_state is rare
    assert_same(answers(model, noisy(), None), answers(again, noisy(), None))


def test_models_that_cannot_be_saved_leave_no_file(tmp_path: Path) -> None:
    class Mine(irpca.InductiveRobustPCA):
        pass

    odd = quick().fit(framed(pd.Index([complex(i, 1) for i in range(60)], dtype=object)))
    for model, error, said in (
        (quick(), NotFittedError, "call its fit before it is saved"),
        (Mine(), TypeError, r"model must be an InductiveRobustPCA or a Result, got .*Mine"),
        (odd, ModelFileError, r"_rows\.labels.* is a .*complex"),
    ):
        with pytest.raises(error, match=said):
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left"), PermissionError(13, "no")])
def test_interrupted_save_leaves_the_old_file(error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    before = save_bytes(case("float32")[0], tmp_path)
    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises((KeyboardInterrupt, OSError), match=r"^$|No space|no permission to write in this folder"):
        persistence.save(case("exact")[0], tmp_path / "m.irpca")
    assert [file.name for file in tmp_path.iterdir()] == ["m.irpca"]
    assert (tmp_path / "m.irpca").read_bytes() == before


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.irpca").symlink_to(tmp_path / "m.irpca")
    persistence.save(case("float32")[0], tmp_path / "link.irpca")
    assert (tmp_path / "link.irpca").is_symlink() and (tmp_path / "m.irpca").is_file()


def test_pandas_is_used_for_labels_that_came_from_it_only(tmp_path: Path) -> None:
    code = """
import sys
from irpca import persistence
sys.modules["pandas"] = None  # as if it were not installed
for path in sys.argv[1:]:
    try:
        print("loaded", persistence.load(path).rank_)
    except persistence.ModelFileError as error:
        print(error)
"""
    paths = [tmp_path / name for name in ("float32", "dates")]
    for path in paths:
        persistence.save(case(path.name)[0], path)
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "loaded 2" and second.endswith('pandas, which is not installed here: pip install "irpca[pandas]"')


# Files that are not what they should be


@pytest.fixture
def arrays() -> dict[str, Any]:
    return take_apart(case("one side")[0])


def packed(arrays: dict[str, Any], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A file of these arrays, or bytes in the place of arrays."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, array in arrays.items():
            part = io.BytesIO(array if isinstance(array, bytes) else b"")
            if not isinstance(array, bytes):
                np.lib.format.write_array(part, array)
            archive.writestr(f"{name}.npy", part.getvalue())
    return file.getvalue()


def with_digest(arrays: dict[str, Any], **given: Any) -> dict[str, Any]:
    others = {name: array for name, array in {**arrays, **given}.items() if name != "sha256"}
    return {**others, "sha256": digest_of(others)}


def edited(arrays: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    """The same with another value in the document, and the right checksum."""
    document = json.loads(arrays["document"].tobytes())
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = to
    return with_digest(arrays, document=np.frombuffer(json.dumps(document).encode(), np.uint8))


OF_MODEL = ("content", "InductiveRobustPCA")
OF_RESULT = (*OF_MODEL, "result_", "Result")
HUGE = {"pandas": ["RangeIndex", [0, 10**15, 1], [None]]}
EDITS: list[tuple[str, tuple[Any, ...], Any]] = [
    ("no model file of irpca", ("format",), "zip"),
    (r"written by irpca .*, in version 2 of the format; irpca .* reads up to version 1: upgrade", ("version",), 2),
    ("upgrade irpca", ("version",), "1"),
    ("neither a model nor a result", ("content",), [1]),
    ("unknown kind, 'os.system'", ("content",), {"os.system": "ls"}),
    (r"other fields than in irpca .* \(predict\): load it with the version that wrote", (*OF_MODEL, "predict"), None),
    (r"InductiveRobustPCA.rank is a float, and should not be", (*OF_MODEL, "rank"), 1.5),
    ("Result.L is a list", (*OF_RESULT, "L"), []),
    ("no array 'a9999', or refers to it twice", (*OF_MODEL, "_observed"), {"array": "a9999"}),
    ("no array 'a0', or refers to it twice", (*OF_MODEL, "_observed"), {"array": "a0"}),
    ("damaged .*nowhere", (*OF_RESULT, "status"), {"status": "nowhere"}),
    ("describes far more than it holds", (*OF_MODEL, "col_features"), HUGE),
    ("describes far more than it holds", (*OF_MODEL, "col_features"), {"labels": HUGE}),
    ("document is malformed", (*OF_MODEL, "col_features"), {"tuple": {"objects": [[], [10**9, 0]]}}),
    ("document is malformed", (*OF_MODEL, "col_features"), {"objects": [{"objects": [[], [10**9, 0]]}, [10**9]]}),
    ("document is malformed", (*OF_MODEL, "col_features"), {"a": 1, "b": 2}),
    ("labels are malformed", (*OF_MODEL, "col_features"), {"pandas": ["Index", [{"objects": [[], [0]]}, "O,O"], [0]]}),
    ("damaged", (*OF_MODEL, "random_state"), {"generator": {"dict": [["bit_generator", "PCG64"]]}}),
    ("the rank is not that of L", (*OF_RESULT, "rank"), 7),
    ("about rows or columns that do not exist", (*OF_RESULT, "doubts"), {"tuple": [{"Doubt": {
        "kind": "x", "text": "y", "rows": {"tuple": [99]}, "columns": {"tuple": []}, "template": ""}}]}),
    ("its container is unknown, 'vaex'", (*OF_MODEL, "container_"), "vaex"),
]  # fmt: skip


@pytest.mark.parametrize("said, path, to", EDITS, ids=range(len(EDITS)))
def test_changed_document_is_refused(said: str, path: Any, to: Any, arrays: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"changed.irpca cannot be loaded: .*({said})"):
        load_bytes(packed(edited(arrays, *path, to=to)), tmp_path)


def npy(shape: str, dtype: str = "'<f8'", data: bytes = b"") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': ({shape}), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


ARCHIVES: dict[str, tuple[str, Callable[[dict[str, Any]], bytes]]] = {
    "empty": ("no model file", lambda arrays: b""),
    "text": ("no model file", lambda arrays: b"rank,noise\n1,2\n"),
    "other npz": ("no model file of irpca", lambda arrays: packed({"a": np.zeros(3)})),
    "cut off": ("no model file, cut off or damaged", lambda arrays: packed(arrays)[:-100]),
    "array changed": ("not match its checksum", lambda arrays: packed({**arrays, "a0": arrays["a0"] + 1})),
    "array left out": ("not match its checksum", lambda arrays: packed({k: arrays[k] for k in arrays if k != "a3"})),
    "compressed": ("compressed", lambda arrays: packed(arrays, zipfile.ZIP_DEFLATED)),
    "not JSON": ("damaged", lambda arrays: packed(with_digest(arrays, document=np.zeros(3, np.uint8)))),
    "deep": ("damaged", lambda arrays: packed(with_digest(arrays, document=np.full(10**5, ord("["), np.uint8)))),
    "pickle": ("a0 is not an array", lambda arrays: packed({**arrays, "a0": npy("1,", "'|O'", b"12345678")})),
    "fields": ("a0 is not an array", lambda arrays: packed({**arrays, "a0": npy("1,", "[('a', '<f8')]", b"12345678")})),
    "code": ("a0 is not an array", lambda arrays: packed({**arrays, "a0": npy("__import__('os').getpid()")})),
    "huge": ("a0 is not as long as it claims", lambda arrays: packed({**arrays, "a0": npy("1000000000000,")})),
    "no boolean": ("a0 holds what is no boolean", lambda arrays: packed({**arrays, "a0": npy("1,", "'|b1'", b"\x07")})),
    "shape": ("does not go with", lambda arrays: packed(with_digest(arrays, a0=arrays["a0"][:-1]))),
    "kind": ("of another kind", lambda arrays: packed(with_digest(arrays, a0=arrays["a0"].astype(np.int64)))),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_changed_archive_is_refused(name: str, arrays: dict[str, Any], tmp_path: Path) -> None:
    said, change = ARCHIVES[name]
    with pytest.raises(ModelFileError, match=f"changed.irpca cannot be loaded: .*({said})"):
        load_bytes(change(arrays), tmp_path)


def test_a_failing_disk_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    content = save_bytes(case("float32")[0], tmp_path)
    monkeypatch.setattr(zipfile.ZipFile, "read", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load_bytes(content, tmp_path)


def test_archive_that_claims_more_than_it_has_is_refused_unread(arrays: dict[str, Any], tmp_path: Path) -> None:
    content = packed(arrays)
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(b"a0.npy"))
    huge = (1 << 31).to_bytes(4, "little")
    with pytest.raises(ModelFileError, match="larger than the file"):
        load_bytes(content[: at + 20] + huge + huge + content[at + 28 :], tmp_path)
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a0.npy", b"")
    with pytest.raises(ModelFileError, match="some of its arrays are there twice"):
        load_bytes(file.getvalue(), tmp_path)


class Canary:
    """Sets a flag when it is unpickled."""

    sang = False

    def __reduce__(self) -> Any:
        return (setattr, (Canary, "sang", True))


def test_nothing_in_a_file_is_executed(arrays: dict[str, Any], tmp_path: Path) -> None:
    payload = pickle.dumps(Canary())
    pickle.loads(payload)
    assert Canary.sang  # it sings if anything unpickles it
    Canary.sang = False
    file = io.BytesIO()
    np.save(file, np.array([Canary()], object), allow_pickle=True)
    for part in (payload, file.getvalue()):
        for content in (part, packed({**arrays, "a0": part}), packed({**arrays, "document": part})):
            with pytest.raises(ModelFileError):
                load_bytes(content, tmp_path)
    assert not Canary.sang


def altered(name: str, **attributes: Any) -> Any:
    """A fitted model, with other attributes."""
    model = copy.copy(case(name)[0])
    vars(model).update(attributes)
    return model


def with_result(**changes: Any) -> Any:
    return altered("one side", result_=replace(case("one side")[0].result_, **changes))


def beyond(S: csr_array) -> csr_array:
    """The same with a position that no column has."""
    broken = S.copy()
    broken.indices[-1] = S.shape[1]
    return broken


def with_encoder(**changes: Any) -> Any:
    rows = case("encoded")[0]._rows
    return altered("encoded", _rows=replace(rows, encoder=replace(rows.encoder, **changes)))


def with_labels(**changes: Any) -> Any:
    whole = {"levels": (np.arange(60),), "names": (None,), "dtypes": ("int64",)}
    return altered("one side", _rows=replace(case("one side")[0]._rows, labels=Labels(**{**whole, **changes})))


def with_maps(**changes: Any) -> Any:
    result = case("mapped")[0].result_
    changed = replace(result.scale, maps=replace(result.maps, **changes) if changes else None)
    return altered("mapped", result_=replace(result, scale=changed))


def with_knots(change: Callable[[np.ndarray], Any]) -> Any:
    knots = case("mapped")[0].result_.maps.knots.copy()
    change(knots)
    return with_maps(knots=knots)


def without_residuals(**changes: Any) -> Any:
    result = case("mapped")[0].result_
    return altered("mapped", result_=replace(result, latent=replace(result.latent, **changes)))


MODELS: list[tuple[str, Callable[[], Any]]] = [
    ("L and S differ in shape", lambda: with_result(S=csr_array((3, 3)))),
    ("names of mistakes do not go", lambda: with_result(mistakes=Mistakes(("",), np.zeros(3, int)))),
    ("column index exceeds|indices", lambda: with_result(S=beyond(case("one side")[0].sparse_))),
    ("the history is malformed", lambda: with_result(history=replace(case("one side")[0].history_, zeta=[1.0]))),
    ("components and L do not agree", lambda: altered("one side", n_features_in_=3)),
    ("not as many observed values as outliers", lambda: altered("one side", _observed=np.ones(1))),
    ("feature_names_in_ is malformed", lambda: altered("one side", feature_names_in_=np.array(["a"], object))),
    ("_fingerprint is a int, and should not be", lambda: altered("one side", _fingerprint=3)),
    ("need an encoder", lambda: altered("one side", _rows=replace(case("one side")[0]._rows, by_index=True))),
    ("the encoder makes other features", lambda: with_encoder(kept_=(0,), names_=("a",))),
    ("the encoder is malformed: the encoder keeps columns", lambda: with_encoder(kept_=(999,))),
    ("the encoder is malformed: the encoder makes nothing of the column", lambda: with_encoder(columns_=())),
    ("labels are malformed", lambda: with_labels(names=())),
    ("there are not as many labels as rows or columns", lambda: with_labels(levels=(np.arange(3),))),
    ("labels are malformed", lambda: with_labels(dtypes=("Int64",))),
    ("scale.maps.knots has the shape", lambda: with_maps(knots=case("mapped")[0].result_.maps.knots[:, :, :8])),
    ("scale.maps.least is an array of another kind", lambda: with_maps(least=np.arange(8))),
    ("not as many kinds of columns as columns", lambda: with_maps(names=("as it is",))),
    ("the maps of columns are malformed", lambda: with_knots(lambda knots: knots[3, 0, :2].__imul__(-1))),
    ("the maps of columns are malformed", lambda: with_knots(lambda knots: knots[0, 0].__setitem__(1, -np.inf))),
    ("the maps of columns are malformed", lambda: with_knots(lambda knots: knots[0].fill(np.inf))),
    ("outliers and their residuals differ in number", lambda: without_residuals(S=None)),
    ("outliers and their residuals differ in number", lambda: without_residuals(S=csr_array((150, 8)))),
    ("residuals of latent values, and no maps", lambda: with_maps()),
]


@pytest.mark.parametrize("said, model", MODELS, ids=[said for said, _ in MODELS])
def test_parts_that_do_not_belong_together_are_neither_saved_nor_loaded(
    said: str, model: Callable[[], Any], tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=f"the model cannot be saved: .*{said}.*please report this, and use"):
        persistence.save(model(), tmp_path / "m.irpca")
    assert list(tmp_path.iterdir()) == []
