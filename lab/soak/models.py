"""Damaged model files: each is refused with the documented error, or is a model that answers.

Bytes are changed, cut off and spliced; arrays and fields of the document are changed with the checksum made again, or
only the outermost check would ever be tried. While a file is read, nothing may be executed, imported, started or
written, and no more than ``ALLOWANCE`` bytes may be asked for. Of files with a right checksum one in ``WHOLE`` goes
through the file system and the archive, and the others enter behind them, as bytes of the document or of one array.
"""

from __future__ import annotations

import copy
import io
import json
import random
import resource
import struct
import sys
import tempfile
import warnings
import zipfile
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from irpca import persistence
from irpca.persistence import ModelFileError, digest_of, put_together, read_array, refusing

from .tally import Tally

ALLOWANCE = 1 << 28  # bytes; a file here has some ten thousand
WHOLE = 50
ANSWERS = 50  # one model in so many is asked for its answers
FORBIDDEN = ("exec", "compile", "import", "os.", "subprocess.", "pickle.", "ctypes.", "socket.", "shutil.", "marshal.")
FINE = ("os.listdir", "os.scandir")
MEMORY = Path("/dev/shm")

Place = tuple[str | int, ...]  # of a field in the document


@dataclass(frozen=True)
class Original:
    """A file that is right, its arrays as bytes and as arrays, and its document."""

    content: bytes
    parts: dict[str, bytes]
    arrays: dict[str, Any]
    document: dict[str, Any]
    places: list[Place]
    M: Any

    @classmethod
    def of(cls, model: Any, M: Any) -> Original:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.irpca"
            persistence.save(model, path)
            content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            parts = {name.removesuffix(".npy"): file.read(name) for name in file.namelist()}
        arrays = {name: read_array(bytearray(part), name) for name, part in parts.items()}
        document = json.loads(arrays["document"].tobytes())
        return cls(content, parts, arrays, document, list(_places(document)), M)

    @property
    def names(self) -> list[str]:
        """Of the arrays of the model."""
        return [name for name in self.arrays if name not in ("document", "sha256")]

    @property
    def load(self) -> Callable[[Path], Any]:
        return persistence.load_result if "Result" in self.document["content"] else persistence.load


@cache
def originals() -> tuple[Original, ...]:
    """An exact fit of arrays, a noisy one of frames with labels and encoded features, and a Result."""
    import pandas as pd

    rng = np.random.default_rng(11)
    F1, F2 = rng.standard_normal((12, 3)), rng.standard_normal((9, 2))
    M = F1[:, :2] @ F2.T
    M[3, 4] += 9
    days = pd.date_range("2024-02-27", periods=12, freq="D", name="day")
    N = pd.DataFrame(M + 0.1 * rng.standard_normal(M.shape), days, [f"c{j}" for j in range(9)])
    N.iloc[5, 6] = np.nan
    rows = pd.DataFrame({"kind": ["a", "b", None] * 4, "size": F1[:, 0], "since": days}, index=days)
    quick: Any = {"max_iter": 3, "rank": 1, "extra_rank": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = irpca.InductiveRobustPCA(random_state=np.random.default_rng(0)).fit(M, row_features=F1, col_features=F2)
        framed = irpca.InductiveRobustPCA(solver_options={"noise": 0.1}, **quick).fit(N, row_features=rows)
        result = irpca.solve(M, F1, F2, solver="irpca_iht", rank=1)
        return Original.of(exact, M), Original.of(framed, N), Original.of(result, M)


# Damages. Each takes an original and a source of chance, and says what it did in words that make it again.

Damage = tuple[str, dict[str, bytes] | bytes]  # what was done; parts, with a checksum to be made, or a whole file


def cut(original: Original, chance: random.Random) -> Damage:
    at = chance.randrange(len(original.content))
    return f"content[:{at}]", original.content[:at]


def flipped(original: Original, chance: random.Random) -> Damage:
    damaged, size = bytearray(original.content), len(original.content)
    first = size - 3000 if chance.random() < 0.4 else 0  # the directory of the archive
    done = [(chance.randrange(first, size), _byte(chance)) for _ in range(_few(chance))]
    for at, byte in done:
        damaged[at] = byte
    return f"content with bytes {done}", bytes(damaged)


def spliced(original: Original, chance: random.Random) -> Damage:
    """Some of it twice, elsewhere, left out, or from another file."""
    content, other = original.content, chance.choice(originals()).content
    a, b = sorted(chance.choices(range(len(content)), k=2))
    c = chance.randrange(len(other))
    d = min(len(other), c + chance.randrange(1, 400))
    return f"content[:{a}] + other[{c}:{d}] + content[{b}:]", content[:a] + other[c:d] + content[b:]


def noise(original: Original, chance: random.Random) -> Damage:
    start = original.content[: chance.randrange(200)] if chance.random() < 0.5 else b""
    end = original.content[-3000:] if chance.random() < 0.5 else b""
    middle = chance.randbytes(chance.randrange(2000))
    return f"{len(start)} bytes of the start, {len(middle)} of noise, {len(end)} of the end", start + middle + end


def array_bytes(original: Original, chance: random.Random) -> Damage:
    """Bytes of an array, mostly of its description."""
    name = chance.choice(original.names)
    damaged = bytearray(original.parts[name])
    reach = min(128 if chance.random() < 0.5 else len(damaged), len(damaged))
    done = [(chance.randrange(reach), _byte(chance)) for _ in range(_few(chance))]
    for at, byte in done:
        damaged[at] = byte
    return f"{name} with bytes {done}", {name: bytes(damaged)}


NUMBERS = [0.0, -0.0, 1.0, -1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf"), 1e160, 2.0**53]
INTEGERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 255, 1 << 40]
SHAPES = ["", "0,", "1,", "0, 5", "5, 0", "2147483648,", "1099511627775, 0", "3, 3, 3", "1, 1, 1, 1, 1, 1, 1, 1, 1"]
TYPES = ["<f8", "<f4", ">f8", "<f2", "<i8", "<i4", "|b1", "|u1", "<U1", "|S1", "<M8[ns]", "<m8[D]", "<c16", "|O", "<U0"]


def array_values(original: Original, chance: random.Random) -> Damage:
    """Odd numbers in an array, or another type or shape."""
    name = chance.choice(original.names)
    array = original.arrays[name]
    how = chance.randrange(4)
    if how == 0 and array.size and array.dtype.kind in "fi":
        at = chance.randrange(array.size)
        value = chance.choice(NUMBERS if array.dtype.kind == "f" else INTEGERS)
        array = array.copy(order="K")
        with np.errstate(all="ignore"):
            array.reshape(-1)[at] = np.array(value).astype(array.dtype)
        what = f"{name} with [{at}] = {value}"
    elif how == 1:
        array = array[:-1] if array.ndim else array.reshape(1)
        what = f"{name} shortened"
    elif how == 2:
        other = chance.choice(original.names)
        array, what = original.arrays[other], f"{other} in the place of {name}"
    else:
        kind, shape = chance.choice(TYPES), chance.choice(SHAPES)
        text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n".encode()
        data = original.parts[name][128:]
        part = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data[: chance.choice([0, 8, len(data)])]
        return f"{name} as {kind} of shape ({shape}), {len(part)} bytes", {name: part}
    return what, {name: npy_of(array)}


def npy_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    return file.getvalue()


ODD: list[Any] = [None, True, -1, 0, 1, 10**30, 2**31, 1.5, -1e308, "", "x", "__class__", "auto", [], {}, [[]]]
ODD += [float("nan"), float("inf"), {"array": "a0"}, {"array": "a1"}, {"array": 0}, {"array": "document"}]
ODD += [{"tuple": []}, {"tuple": {"array": "a0"}}, {"dict": []}, {"dict": [[[], 1]]}, {"scalar": {"array": "a2"}}]
ODD += [{"objects": [[], [10**9, 0]]}, {"objects": [{"array": "a1"}, [3]]}, {"date": "x"}, {"datetime": "2020-01-01"}]
ODD += [{"pandas": ["Index", [], []]}, {"pandas": ["RangeIndex", [0, 10**15, 1], [None]]}, {"pandas": "os"}]
ODD += [{"labels": {"pandas": ["RangeIndex", [0, 10**15, 1], [None]]}}, {"labels": [1, "x"]}, {"status": "CONVERGED"}]
ODD += [{"pandas": ["DatetimeIndex", [{"array": "a1"}, "dateutil//etc/passwd", "D"], [None]]}, {"Labels": {}}]
ODD += [{"status": "mro"}, {"generator": {"dict": [["bit_generator", "PCG64"]]}}, {"generator": 1}, {"Result": {}}]
ODD += [{"eval": "1"}, {"a": 1, "b": 2}, {"Term": None}, {"InductiveRobustPCA": {}}]


def fields(original: Original, chance: random.Random) -> Damage:
    """Fields of the document left out, replaced, exchanged or renamed."""
    document = copy.deepcopy(original.document)
    done = "; ".join(_edited(document, original.places, chance) for _ in range(_few(chance)))
    return f"document with {done}", {"document": _packed_text(json.dumps(document).encode())}


def document_bytes(original: Original, chance: random.Random) -> Damage:
    damaged = bytearray(original.arrays["document"].tobytes())
    done = [(chance.randrange(len(damaged)), _byte(chance)) for _ in range(_few(chance))]
    for at, byte in done:
        damaged[at] = byte
    return f"document with bytes {done}", {"document": _packed_text(damaged)}


def _packed_text(text: bytes | bytearray) -> bytes:
    return npy_of(np.frombuffer(bytes(text), np.uint8))


def _edited(document: dict[str, Any], places: list[Place], chance: random.Random) -> str:
    at = chance.choice(places)
    how = chance.randrange(4)
    try:
        holder = _follow(document, at[:-1])
        holder[at[-1]]
        if how == 0:
            del holder[at[-1]]
            return f"{at} left out"
        if how == 1:
            value = chance.choice(ODD)
            holder[at[-1]] = copy.deepcopy(value)
            return f"{at} = {value!r}"
        if how == 2:
            other = chance.choice(places)
            holder[at[-1]] = copy.deepcopy(_follow(document, other))
            return f"{at} = {other}"
    except (LookupError, TypeError):  # an earlier change took it away
        return "nothing"
    if isinstance(holder, dict):
        holder[str(chance.randrange(100))] = holder.pop(at[-1])
        return f"{at} renamed"
    if not isinstance(holder, list):
        return "nothing"
    holder.reverse()
    return f"{at[:-1]} reversed"


def _places(node: Any, at: Place = ()) -> Iterator[Place]:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield (*at, key)
        if isinstance(node[key], dict | list):
            yield from _places(node[key], (*at, key))


def _follow(node: Any, at: Place) -> Any:
    for key in at:
        node = node[key]
    return node


def _few(chance: random.Random) -> int:
    return 1 if chance.random() < 0.7 else chance.randrange(2, 6)


def _byte(chance: random.Random) -> int:
    return chance.choice((0, 1, 127, 128, 255)) if chance.random() < 0.3 else chance.randrange(256)


DAMAGES: tuple[Callable[[Original, random.Random], Damage], ...] = (
    *(cut, flipped, spliced, noise),
    *(array_bytes, array_values, fields, fields, document_bytes),
)


def damaged(seed: int, number: int) -> tuple[str, Original, Damage, bool]:
    """Damage of this number: its name, the original, what was done, and whether it goes through a whole file."""
    chance = random.Random(seed * 1_000_003 + number)
    damage, original = chance.choice(DAMAGES), chance.choice(originals())
    return damage.__name__, original, damage(original, chance), chance.randrange(WHOLE) == 0


def with_digest(arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays with the right checksum."""
    others = {name: array for name, array in arrays.items() if name != "sha256"}
    return {**others, "sha256": digest_of(others)}


def packed(original: Original, given: dict[str, bytes]) -> bytes:
    """A model file with some other parts, and the right checksum if these are arrays at all."""
    parts = {**original.parts, **given}
    with suppress(Exception):
        arrays = {name: read_array(bytearray(part), name) for name, part in parts.items()}
        parts["sha256"] = npy_of(with_digest(arrays)["sha256"])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), part)
    return file.getvalue()


def read_whole(original: Original, content: bytes, path: Path) -> Any:
    path.write_bytes(content)
    with Watch.on():
        return original.load(path)


def read_parts(original: Original, parts: dict[str, bytes], path: Path) -> Any:
    """The same behind the archive."""
    with Watch.on(), refusing(path):
        new = {name: read_array(bytearray(part), name) for name, part in parts.items()}
        return put_together(with_digest({**original.arrays, **new}))


def is_same(model: Any, original: Original) -> bool:
    """Whether a model is to the bit the one that was saved."""
    return np.array_equal(persistence.take_apart(model)["sha256"], original.arrays["sha256"])


class Watch:
    """Sees what Python reports of itself: code that is executed, imports, processes, files that are changed."""

    watching = False
    installed = False
    seen: list[str] = []  # noqa: RUF012

    @classmethod
    @contextmanager
    def on(cls) -> Iterator[None]:
        if not cls.installed:  # it cannot be taken away again
            sys.addaudithook(cls.hook)
            cls.installed = True
        cls.watching = True
        try:
            yield
        finally:
            cls.watching = False

    @classmethod
    def hook(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if not cls.watching:
            return
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if writes or (event.startswith(FORBIDDEN) and event not in FINE):
            cls.seen.append(f"{event} {arguments[:2]!r}"[:200])


@contextmanager
def little_memory() -> Iterator[None]:
    """No more than ``ALLOWANCE`` bytes beyond those that are in use: who asks for more gets a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWANCE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def ask(model: Any, M: Any) -> None:
    """All that may be asked of it: answers, or a ValueError that says why not."""
    questions: list[Callable[[], Any]] = [model.summary]
    if hasattr(model, "outliers"):
        questions += [model.outliers, model.expected, model.outlier_rows, model.outlier_columns]
        questions += [lambda: model.transform(M), lambda: model.score(M), lambda: model.outliers(M)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for question in questions:
            with suppress(ValueError, FloatingPointError):  # the latter says that L is beyond all numbers
                question()


def run(tally: Tally) -> None:
    for original in originals():  # whatever is imported on first use is imported now
        ask(read_parts(original, {}, Path("m.irpca")), original.M)
    with suppress(LookupError, ValueError):
        zoneinfo.ZoneInfo("nowhere")  # tzdata, where the system has no time zones
    Watch.seen.clear()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder, little_memory():
        for number in tally.numbers():
            if tally.over():
                break
            try_one(tally, number, Path(folder) / "damaged.irpca")


def try_one(tally: Tally, number: int, path: Path) -> None:
    kind, original, (done, given), whole = damaged(tally.seed, number)
    reproducer = f"lab.soak.models.damaged({tally.seed}, {number}): {done[:300]}"
    try:
        if isinstance(given, bytes):
            model = read_whole(original, given, path)
        elif whole:
            model = read_whole(original, packed(original, given), path)
        else:
            model = read_parts(original, given, path)
    except ModelFileError as error:
        tally.outcomes["refused"] += 1
        if not str(error).startswith(str(path)):
            tally.fail(f"{kind}: a message that does not name the file", f"{reproducer}: {error}")
    except BaseException as error:
        tally.outcomes["broken"] += 1
        tally.fail(f"{kind}: {type(error).__name__}: {str(error)[:80]}", reproducer)
        if isinstance(error, KeyboardInterrupt):
            raise
    else:
        tally.outcomes["loaded"] += 1
        if isinstance(given, bytes) and not is_same(model, original):
            tally.fail(f"{kind}: loaded, and differs from what was saved", reproducer)
        if number % ANSWERS == 0:
            try:
                ask(model, original.M)
            except Exception as error:
                tally.fail(f"{kind}: loaded, and then {type(error).__name__}: {str(error)[:80]}", reproducer)
    if Watch.seen:
        tally.fail(f"{kind}: while it was read: {Watch.seen[0]}", reproducer)
        Watch.seen.clear()
