"""Model files: equal to the bit when they come back, refused in one sentence when they are damaged.

Thousands of damaged files are tried by ``lab.soak.models``.
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
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mixed_columns import KINDS, mixed
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import irpca
from irpca import persistence
from irpca.durable import digest
from irpca.encoding import decode
from irpca.persistence import KINDS as KEPT
from irpca.persistence import ModelFileError

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


DAYS = pd.date_range("2024-03-01", periods=60, freq="D", tz="Europe/Berlin", name="day")
NESTED = pd.MultiIndex.from_product([["north", "south"], pd.date_range("2020", periods=30)], names=["side", None])
FITS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {  # the model to fit, M, and features of the rows
    "exact": lambda: (irpca.InductiveRobustPCA(col_features=PROBLEM.F2), PROBLEM.M, PROBLEM.F1),
    "one side": lambda: (irpca.InductiveRobustPCA(extra_rank=0), noisy(), PROBLEM.F1),
    "float32": lambda: (quick(), noisy().astype(np.float32), None),
    "long table": lambda: (irpca.InductiveRobustPCA(rank=1, max_iter=5), long_table(), None),
    "dates": lambda: (quick(), framed(DAYS, np.arange(24) / 2), None),
    "nested": lambda: (quick(), framed(NESTED, np.arange(24) - 7), None),
    "mapped": lambda: (irpca.InductiveRobustPCA(rank=3, columns=KINDS), mixed(), None),
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
    assert (document["format"], document["version"]) == ("irpca model", persistence.VERSION)
    assert len(content) < size + 400 * len(arrays.files)


def come_back(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    node = json.loads(json.dumps(persistence._encode(value, arrays)))
    return decode(node, KEPT, arrays.__getitem__)


VALUES: list[Any] = [
    [0.1, -0.0, float("nan"), float("inf"), 5e-324, 1, True, None, "ä\0\ud800", 1 << 100, -1],
    (np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("-inf"), np.datetime64("2020-01-01", "us")),
    {"a": (1, [2.5]), 3: {}, None: ()},
    [datetime.date(2020, 2, 29), datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC)],
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
    NESTED[::7],
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_and_indexes_come_back(value: Any) -> None:
    assert_same(value, come_back(value))


UNKNOWN: list[Any] = [object(), {1, 2}, np.array([1j]), np.array(["x"]), np.ma.masked_array([1.0]), b"x", print]
UNKNOWN += [pd.Timestamp("2020"), pd.Series([1.0]), pd.DataFrame({"a": [1.0]}), datetime.time(7, 30)]
UNKNOWN += [
    pd.period_range("2001-01", periods=6, freq="M"),
    pd.interval_range(0, 3),
    pd.CategoricalIndex(["a"], ["b", "a"]),
]
UNKNOWN += [pd.date_range("2020", periods=3, freq=pd.offsets.CustomBusinessDay(holidays=["2019-01-02"]))]


@pytest.mark.parametrize("value", UNKNOWN, ids=lambda value: type(value).__name__)
def test_what_a_file_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"^noted\[1\].*: a .*which a model file cannot hold: convert it"):
        persistence._encode({"noted": [0, value]}, {})


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
    persistence.save(again, tmp_path / "again.irpca")
    assert (tmp_path / "again.irpca").read_bytes() == (tmp_path / "r.irpca").read_bytes()
    with pytest.raises(ModelFileError, match="of class Result: use load_result"):
        persistence.load(tmp_path / "r.irpca")
    persistence.save(case("exact")[0], tmp_path / "m.irpca")
    with pytest.raises(ModelFileError, match="of class InductiveRobustPCA: use load"):
        persistence.load_result(tmp_path / "m.irpca")


def test_arguments_of_the_constructor_are_kept_or_named(tmp_path: Path) -> None:
    again = load_bytes(save_bytes(quick(col_features=PROBLEM.F2).fit(noisy()), tmp_path), tmp_path)
    assert_same(again.col_features, PROBLEM.F2)
    rng = np.random.default_rng(4)
    model = quick(callbacks=lambda state, history: None, random_state=rng).fit(noisy())
    said = r"not saved: callbacks \(a function\), random_state \(a Generator\); the loaded model predicts the same"
    with pytest.warns(UserWarning, match=said) as warned:
        model.save(tmp_path / "m.irpca")
    assert warned[0].filename == __file__
    again = irpca.load(tmp_path / "m.irpca")
    assert again.callbacks is None and again.random_state is None and model.random_state is rng
    assert_same(answers(model, noisy(), None), answers(again, noisy(), None))


def test_models_that_cannot_be_saved_leave_no_file(tmp_path: Path) -> None:
    class Mine(irpca.InductiveRobustPCA):
        pass

    odd = quick().fit(framed(pd.period_range("2001-01", periods=60, freq="M")))
    for model, error, said in (
        (quick(), NotFittedError, "call its fit before it is saved"),
        (Mine(), TypeError, r"model must be an InductiveRobustPCA or a Result, got .*Mine"),
        (odd, ModelFileError, "the labels of the rows: a pandas.Period, .*convert it before fitting"),
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


def changed(content: bytes, edit: Callable[[dict[str, Any]], Any] = bool, **given: Any) -> bytes:
    """A model file with other arrays, or bytes in the place of arrays, and an edited document with the right digest."""
    with np.load(io.BytesIO(content)) as file:
        parts: dict[str, Any] = dict(file)
    document = json.loads(parts["document"].tobytes())
    edit(document)
    parts["document"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    parts["digest"] = np.frombuffer(digest(parts["document"]).encode(), np.uint8)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in {**parts, **given}.items():
            if not isinstance(part, bytes):
                np.save(entry := io.BytesIO(), part)
                part = entry.getvalue()
            archive.writestr(f"{name}.npy", part)
    return file.getvalue()


def other_archive() -> bytes:
    np.savez(file := io.BytesIO(), a=np.zeros(3))
    return file.getvalue()


def of(**given: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document.update(given)


def attribute(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document["content"]["dict"].update({name: value})


FILES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": ("no model file", lambda content: b""),
    "text": ("no model file", lambda content: b"rank,noise\n1,2\n"),
    "other npz": ("no model file of irpca", lambda content: other_archive()),
    "cut off": ("no model file, cut off or damaged", lambda content: content[:-100]),
    "document changed": ("damaged", lambda content: changed(content, document=np.zeros(3, np.uint8))),
    "other format": ("no model file of irpca", lambda content: changed(content, of(format="zip"))),
    "newer": (r"written by irpca .*, in version 9 .*: upgrade irpca", lambda content: changed(content, of(version=9))),
    "older": ("load it with the version that wrote it", lambda content: changed(content, of(version=1))),
    "other class": ("of class Result: use load_result", lambda content: changed(content, of(**{"class": "Result"}))),
    "code": ("unknown kind, 'os.system'", lambda content: changed(content, attribute("rank", {"os.system": "ls"}))),
    "fields": (
        r"LowRank has other fields here \(.*predict.*load it with the version that wrote it",
        lambda content: changed(content, attribute("rank", {"LowRank": {"dict": {"predict": None}}})),
    ),
    "attribute left out": (
        "it lacks rank: load it with the version that wrote it",
        lambda content: changed(content, lambda document: document["content"]["dict"].pop("rank")),
    ),
    "array left out": ("no model file", lambda content: changed(content, attribute("rank", {"array": "no"}))),
}


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_damaged_or_of_something_else_is_refused(name: str, tmp_path: Path) -> None:
    said, change = FILES[name]
    with pytest.raises(ModelFileError, match=f"changed.irpca cannot be loaded: .*({said})"):
        load_bytes(change(save_bytes(case("one side")[0], tmp_path)), tmp_path)


def test_every_array_is_checked_against_its_digest(tmp_path: Path) -> None:
    content = save_bytes(case("one side")[0], tmp_path)
    with np.load(io.BytesIO(content)) as file:
        for name in set(file.files) - {"document", "digest"}:
            with pytest.raises(ModelFileError, match="it is damaged or was changed"):
                load_bytes(changed(content, **{name: file[name].astype(np.float16)}), tmp_path)


def test_archive_that_claims_more_than_it_has_is_refused_unread(tmp_path: Path) -> None:
    content = changed(save_bytes(case("one side")[0], tmp_path))
    at = content.rindex(b"PK\x01\x02")
    huge = (1 << 31).to_bytes(4, "little")
    with pytest.raises(ModelFileError, match="larger than the file"):
        load_bytes(content[: at + 20] + huge + huge + content[at + 28 :], tmp_path)


def test_a_failing_disk_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    content = save_bytes(case("float32")[0], tmp_path)
    monkeypatch.setattr(zipfile.ZipFile, "open", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load_bytes(content, tmp_path)


class Canary:
    """Sets a flag when it is unpickled."""

    sang = False

    def __reduce__(self) -> Any:
        return (setattr, (Canary, "sang", True))


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    payload = pickle.dumps(Canary())
    pickle.loads(payload)
    assert Canary.sang  # it sings if anything unpickles it
    Canary.sang = False
    file = io.BytesIO()
    np.save(file, np.array([Canary()], object), allow_pickle=True)
    content = save_bytes(case("one side")[0], tmp_path)
    for part in (payload, file.getvalue()):
        named = changed(content, attribute("rank", {"array": "pickled"}), pickled=part)
        for whole in (part, named, changed(content, document=part)):
            with pytest.raises(ModelFileError):
                load_bytes(whole, tmp_path)
    assert not Canary.sang
