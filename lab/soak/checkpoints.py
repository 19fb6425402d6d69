"""Damaged checkpoints: a resumed solve is refused with the documented error, or ends with the same answer."""

from __future__ import annotations

import logging
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import irpca
from irpca.checkpoint import RecordFile, _digest_part

from .models import MEMORY, Watch, _byte, _few, little_memory
from .tally import Tally


@cache
def original() -> tuple[bytes, dict[str, Any], Any]:
    """A whole checkpoint, what was solved, and L."""
    rng = np.random.default_rng(5)
    F1, F2 = rng.standard_normal((14, 3)), rng.standard_normal((11, 2))
    M = F1[:, :2] @ F2.T
    M[3, 4] += 9
    asked: dict[str, Any] = {"M": M, "F1": F1, "F2": F2, "rank": 2, "solver": "irpca_iht", "max_iter": 6}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.checkpoint"
        result = irpca.solve(**asked, callbacks=irpca.callbacks.checkpoint(path))
        return path.read_bytes(), asked, result.L.dense()


@cache
def parts() -> list[tuple[int, int, bytes]]:
    """Of the whole checkpoint: number of the record and of the part, and what it holds."""
    with opened(original()[0]) as path, closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT record, part, data FROM checkpoint_2 ORDER BY record, part").fetchall()


def packed(parts: list[tuple[int, int, bytes]]) -> bytes:
    """A checkpoint of these parts, with digests that are right."""
    with opened(b"") as path:
        with closing(RecordFile(path, new=False)) as file:
            for record, part, data in parts:
                row = record, part, data, _digest_part(record, part, data)
                file._db.execute("INSERT INTO checkpoint_2 VALUES (?, ?, ?, ?)", row)
        return path.read_bytes()


@contextmanager
def opened(content: bytes) -> Iterator[Path]:
    """The path of a file with this content, for a while."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "c.checkpoint"
        path.write_bytes(content)
        yield path


def damaged(seed: int, number: int) -> tuple[str, bytes, bool]:
    """What was done, the file, and whether its digests are right although it was changed."""
    chance = random.Random(seed * 1_000_003 + number)
    content, *_ = original()
    how = chance.randrange(5)
    if how == 0:
        at = chance.randrange(len(content))
        return f"content[:{at}]", content[:at], False
    if how == 1:
        done, changed = _flipped(content, chance)
        return f"content with bytes {done}", changed, False
    if how == 2:
        a, b = sorted(chance.choices(range(len(content)), k=2))
        c = chance.randrange(len(content))
        changed = content[:a] + content[c : c + 99] + content[b:]
        return f"content[:{a}] + content[{c}:{c + 99}] + content[{b}:]", changed, False
    held = list(parts())
    k = chance.randrange(len(held))
    record, part, data = held[k]
    if how == 3:
        other = chance.randrange(len(held))
        held[k] = record, part, held[other][2]
        return f"part {other} in the place of part {k}", packed(held), True
    done, data = _flipped(data, chance)
    held[k] = record, part, data
    return f"part {k} with bytes {done}", packed(held), True


def _flipped(content: bytes, chance: random.Random) -> tuple[list[tuple[int, int]], bytes]:
    changed = bytearray(content)
    done = [(chance.randrange(len(changed)), _byte(chance)) for _ in range(_few(chance))]
    for at, byte in done:
        changed[at] = byte
    return done, bytes(changed)


def run(tally: Tally) -> None:
    _, asked, L = original()
    logging.getLogger("irpca").setLevel(logging.ERROR)
    scale = float(np.abs(L).max())
    try_one(tally, b"", "nothing", False, asked, L, scale)
    tally.outcomes.clear()
    tally.failures.clear()
    Watch.seen.clear()
    with little_memory():
        for number in tally.numbers():
            if tally.over():
                break
            done, content, honest = damaged(tally.seed, number)
            where = f"lab.soak.checkpoints.damaged({tally.seed}, {number}): {done[:300]}"
            try_one(tally, content, where, honest, asked, L, scale)


def try_one(
    tally: Tally, content: bytes, where: str, honest: bool, asked: dict[str, Any], L: Any, scale: float
) -> None:
    with opened(content) as path:
        try:
            found = irpca.solve(**asked, resume=path)
        except (ValueError, OSError) as error:
            tally.outcomes["refused"] += 1
            if str(path) not in str(error) and not honest:  # a forged answer may lead a solver to any value
                tally.fail("a message that does not name the file", f"{where}: {error}")
        except Exception as error:
            tally.outcomes["broken"] += 1
            tally.fail(f"{type(error).__name__}: {str(error)[:80]}", where)
        else:
            tally.outcomes["resumed"] += 1
            if not honest and not np.abs(found.L.dense() - L).max() <= 1e-12 * scale:
                tally.fail("another answer", where)
