"""Damaged model files: each is refused with the documented error, or is the model that was saved.

Bytes are changed, cut off and spliced. Arrays and fields of the document are also changed with the digests made again,
or only the outermost check would ever be tried: such a file may be read, but as any file without that anything is
executed, imported, started or written, or more than ``ALLOWANCE`` bytes are asked for.
"""

from __future__ import annotations

import copy
import io
import json
import random
import resource
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
from irpca.durable import digest
from irpca.persistence import ModelFileError

from .tally import Tally

ALLOWANCE = 1 << 28  # bytes; a file here has some ten thousand
UNFORGED = ("cut", "flipped", "spliced", "noise")  # damages of files whose digests stay as they are
ANSWERS = 50  # one model in so many is asked for its answers
FORBIDDEN = ("exec", "import", "os.", "subprocess.", "pickle.", "ctypes.", "socket.", "shutil.", "marshal.")
FINE = ("os.listdir", "os.scandir")
MEMORY = Path("/dev/shm")

Place = tuple[str | int, ...]  # of a field in the document


@dataclass(frozen=True)
class Original:
    """A file that is right, its arrays as bytes, and its document."""

    content: bytes
    parts: dict[str, bytes]
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
        document = json.loads(_array_of(parts["document"]).tobytes())
        return cls(content, parts, document, list(_places(document)), M)

    @property
    def load(self) -> Callable[[Path], Any]:
        return persistence.load_result if self.document["class"] == "Result" else persistence.load


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

Damage = tuple[str, bytes]  # what was done, and the file


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
    name = chance.choice([name for name in original.parts if name not in ("document", "digest")])
    damaged = bytearray(original.parts[name])
    reach = min(128 if chance.random() < 0.5 else len(damaged), len(damaged))
    done = [(chance.randrange(reach), _byte(chance)) for _ in range(_few(chance))]
    for at, byte in done:
        damaged[at] = byte
    named = "damaged"
    with suppress(Exception):
        array = _array_of(damaged)
        named = persistence._name_array(array)
    text = json.dumps(original.document).replace(f'"{name}"', f'"{named}"')
    return f"{name} with bytes {done}", packed(original, text.encode(), {named: bytes(damaged)})


ODD: list[Any] = [None, True, -1, 0, 1, 10**30, 2**31, 1.5, -1e308, "", "x", "__class__", "auto", [], {}, [[]]]
ODD += [float("nan"), float("inf"), {"array": "no"}, {"array": 0}, {"array": "document"}, {"scalar": {"array": "no"}}]
ODD += [{"tuple": []}, {"dict": []}, {"dict": [[[], 1]]}, {"pairs": [[[], 1]]}, {"objects": [[10**9, 0], []]}]
ODD += [{"date": "x"}, {"datetime": "2020-01-01"}, {"index": [[], "", None, None]}, {"index": "os"}, {"labels": [1]}]
ODD += [{"index": [[0, 10**15, 1], "range", None, None]}, {"status": "CONVERGED"}, {"status": "mro"}, {"Term": None}]
ODD += [{"eval": "1"}, {"a": 1, "b": 2}, {"Result": {}}, {"InductiveRobustPCA": {}}]


def fields(original: Original, chance: random.Random) -> Damage:
    """Fields of the document left out, replaced, exchanged or renamed."""
    document = copy.deepcopy(original.document)
    done = "; ".join(_edited(document, original.places, chance) for _ in range(_few(chance)))
    return f"document with {done}", packed(original, json.dumps(document).encode())


def document_bytes(original: Original, chance: random.Random) -> Damage:
    damaged = bytearray(json.dumps(original.document).encode())
    done = [(chance.randrange(len(damaged)), _byte(chance)) for _ in range(_few(chance))]
    for at, byte in done:
        damaged[at] = byte
    return f"document with bytes {done}", packed(original, bytes(damaged))


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
    *(array_bytes, fields, fields, document_bytes),
)


def damaged(seed: int, number: int) -> tuple[str, Original, Damage]:
    """Damage of this number: its name, the original, and what was done."""
    chance = random.Random(seed * 1_000_003 + number)
    damage, original = chance.choice(DAMAGES), chance.choice(originals())
    return damage.__name__, original, damage(original, chance)


def packed(original: Original, document: bytes, given: dict[str, bytes] | None = None) -> bytes:
    """A model file with another document, of which the digest is right, and some more arrays."""
    text = np.frombuffer(document, np.uint8)
    made = {"document": _npy_of(text), "digest": _npy_of(persistence._as_array(digest(text)))}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in {**original.parts, **made, **(given or {})}.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), part)
    return file.getvalue()


def _npy_of(array: Any) -> bytes:
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


def _array_of(part: bytes | bytearray) -> Any:
    return np.load(io.BytesIO(part), allow_pickle=False)


def read(original: Original, content: bytes, path: Path) -> Any:
    path.write_bytes(content)
    with Watch.on():
        return original.load(path)


def is_same(model: Any, original: Original, path: Path) -> bool:
    """Whether a model is to the bit the one that was saved."""
    persistence.save(model, path)
    return path.read_bytes() == original.content


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
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "damaged.irpca"
        for original in originals():  # whatever is imported on first use is imported now
            ask(read(original, original.content, path), original.M)
        with suppress(LookupError, ValueError):
            zoneinfo.ZoneInfo("nowhere")  # tzdata, where the system has no time zones
        Watch.seen.clear()
        with little_memory():
            for number in tally.numbers():
                if tally.over():
                    break
                try_one(tally, number, path)


def try_one(tally: Tally, number: int, path: Path) -> None:
    kind, original, (done, content) = damaged(tally.seed, number)
    reproducer = f"lab.soak.models.damaged({tally.seed}, {number}): {done[:300]}"
    try:
        model = read(original, content, path)
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
        if kind in UNFORGED:
            if not is_same(model, original, path):
                tally.fail(f"{kind}: loaded, and differs from what was saved", reproducer)
            elif number % ANSWERS == 0:
                ask(model, original.M)
    if Watch.seen:
        tally.fail(f"{kind}: while it was read: {Watch.seen[0]}", reproducer)
        Watch.seen.clear()
