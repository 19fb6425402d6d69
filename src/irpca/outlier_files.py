"""Outliers written to Parquet files, one for each piece of M: for tables whose S is too large for memory.

A target ``S.parquet`` is a folder of Parquet files that pandas, polars, pyarrow and dask read as one table. While it is
unfinished there is ``S.parquet.part`` in its place, with ``_plan.json``, which says what fit it is of, and ``parts``,
which becomes the target by one rename. A file appears under its name whole or not at all.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .durable import digest, need_folder, sync_folder, write_whole
from .lowrank import Array, LowRank
from .model.entry_scale import Judge
from .wording import count

FORMAT = 1
PLAN, PARTS, TEMPORARY = "_plan.json", "parts", ".tmp"
REPEATED = ["row", "column", "probability"]  # columns of few distinct values, which are stored once
KEY = b"irpca"


@dataclass(frozen=True, eq=False)
class OutlierFiles:
    """Where the outliers of a fit go, piece by piece: a sink for :meth:`irpca.engines.base.Engine.write`.

    It may be pickled, and used in other processes and on other machines that see the same folder. One piece may be
    written several times, also at once.
    """

    target: Path  # of the finished folder
    shape: tuple[int, int]  # of M, as dtype
    dtype: np.dtype[Any]
    solver: str = ""
    labels: tuple[Any, Any] = (None, None)  # arrays of pyarrow, None where there are no labels
    judge: Judge = field(default_factory=lambda: Judge(0.0))  # says which candidates are outliers, and how probably
    fingerprint: str = ""  # the same for the same fit, and for no other

    @classmethod
    def at(
        cls,
        path: str | os.PathLike[str],
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        solver: str = "",
        labels: tuple[Any, Any] = (None, None),
    ) -> OutlierFiles:
        """Files that can be written there: all that can be known before a fit is checked."""
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            advice = 'outliers_to writes Parquet files with pyarrow, which is not installed: pip install "irpca[files]"'
            raise ImportError(advice) from error
        target = Path(os.path.abspath(path))
        if os.path.lexists(target):
            advice = "outliers_to is there already; delete it, or choose another name"
            raise FileExistsError(errno.EEXIST, advice, str(target))
        need_folder(target, "outliers_to")
        try:
            os.rmdir(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        except OSError as error:
            advice = f"nothing can be written in the folder of outliers_to ({error.strerror}); choose another"
            raise OSError(error.errno, advice, str(target.parent)) from error
        files = cls(target, shape, np.dtype(dtype), solver, (_to_arrow(labels[0]), _to_arrow(labels[1])))
        files._refuse_foreign(("shape", "dtype", "solver"))
        return files

    def of(self, L: LowRank, judge: Judge, edges: Any = None) -> OutlierFiles:
        """The same for one fit. ``edges`` are those of the pieces of M, if it comes in pieces."""
        parts: list[Any] = [self.shape, self.dtype.str, judge.exact, judge.limit, L.left, L.core, L.right]
        parts += [*map(np.asarray, edges or ()), *(judge.known or ())]
        parts += chain(*judge.scale.sides) if judge.scale else ()
        parts += [judge.calibration.edges, judge.calibration.levels] if judge.calibration else ()
        for side in self.labels:
            parts.append(None if side is None else str(side.type))
            parts += () if side is None else (np.frombuffer(part or b"", np.uint8) for part in side.buffers())
        return replace(self, judge=judge, fingerprint=digest(*parts))

    @property
    def folder(self) -> Path:
        """Where the files are until all are there."""
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def _plan(self) -> dict[str, Any]:
        """What fit the files are of."""
        fit = {"shape": list(self.shape), "dtype": self.dtype.str, "solver": self.solver}
        return {"format": FORMAT, **fit, "fingerprint": self.fingerprint}

    def begin(self) -> None:
        """Make the folder, or go on with what an earlier run of the same fit has left there."""
        self._refuse_foreign(("fingerprint",))
        with self._explain_errors():
            (self.folder / PARTS).mkdir(parents=True, exist_ok=True)
            self._sweep()
            with write_whole(self.folder / PLAN, TEMPORARY) as file:
                file.write(json.dumps(self._plan, indent=1).encode())

    def write(self, place: tuple[int, int], rows: Array, cols: Array, observed: Array, expected: Array) -> Array:
        """Write the outliers among the candidates of one piece of M; says which of them are.

        Where columns are mapped, ``observed`` and ``expected`` are latent values; the files are in units of M.
        """
        residuals = np.asarray(observed, float) - expected
        kept: Array = self.judge.is_outlier(residuals, rows, cols)
        self.put(place, *(np.asarray(part)[kept] for part in (rows, cols, observed, expected, residuals)))
        return kept

    def put(
        self, place: tuple[int, int], rows: Array, cols: Array, observed: Array, expected: Array, residuals: Array
    ) -> None:
        """Write outliers of one piece of M, unless they are there already."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        order = np.lexsort((cols, rows))
        rows, cols, observed, expected, residuals = (
            part[order] for part in (rows, cols, observed, expected, residuals)
        )
        probability = self.judge.probability(residuals, rows, cols)
        if self.judge.scale is not None and (maps := self.judge.scale.maps) is not None:  # these are latent values
            observed, expected = maps.observed(observed, cols), maps.expected(expected, cols)
        key = f"{self.fingerprint} {place} {digest(rows, cols, observed, probability)}".encode()
        path = self.folder / PARTS / f"part-{place[0]:05d}-{place[1]:05d}.parquet"
        if _holds(path, key):
            return
        if not path.parent.is_dir():
            advice = "the folder of outliers_to is not there: every worker has to see it under this name"
            raise FileNotFoundError(errno.ENOENT, advice, str(path.parent))
        columns = {
            "row": self._take_labels(0, rows),
            "column": self._take_labels(1, cols),
            "observed": observed.astype(self.dtype, copy=False),
            "expected": expected.astype(self.dtype, copy=False),
            "probability": probability.astype(np.float64, copy=False),
        }
        table = pa.table(columns).replace_schema_metadata({KEY: key})
        with self._explain_errors(), write_whole(path, TEMPORARY) as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=REPEATED, write_page_checksum=True)

    def finish(self, count: int) -> str:
        """Give the folder its name, once it holds as many outliers as were found in all pieces; the path."""
        import pyarrow.parquet as pq

        written = sum(pq.read_metadata(path).num_rows for path in self._list_parts())
        if written != count:
            raise OSError(
                errno.EIO,
                f"the files hold {written} outliers, {count} were found: some are of pieces of M that this fit did not "
                "have. Delete the folder, and solve again",
                str(self.folder),
            )
        if os.path.lexists(self.target):
            advice = f"outliers_to has been made by someone else; the outliers are in {self.folder / PARTS}"
            raise FileExistsError(errno.EEXIST, advice, str(self.target))
        self._sweep()
        sync_folder(self.folder / PARTS)
        os.replace(self.folder / PARTS, self.target)
        sync_folder(self.target.parent)
        shutil.rmtree(self.folder, ignore_errors=True)
        return str(self.target)

    def _take_labels(self, axis: int, positions: Array) -> Any:
        """Labels of some lines; positions where there are none."""
        labels = self.labels[axis]
        return np.asarray(positions, np.int64) if labels is None else labels.take(_to_arrow(np.asarray(positions)))

    def _list_parts(self) -> list[Path]:
        return sorted((self.folder / PARTS).glob("part-*.parquet"))

    def _is_foreign(self, names: tuple[str, ...]) -> bool:
        """Whether the folder holds files of another fit, as far as these entries of its plan tell."""
        if not os.path.lexists(self.folder):
            return False
        if not self.folder.is_dir():
            return True
        if not self._list_parts():  # there is nothing to lose
            return False
        try:
            plan = json.loads((self.folder / PLAN).read_text())
            return any(plan[name] != self._plan[name] for name in ("format", *names))
        except (OSError, ValueError, KeyError, TypeError):
            return True

    def _refuse_foreign(self, names: tuple[str, ...]) -> None:
        if self._is_foreign(names):
            advice = "this folder holds part of another fit; delete it, or choose another name for outliers_to"
            raise FileExistsError(errno.EEXIST, advice, str(self.folder))

    def _sweep(self) -> None:
        """Delete what writers that were killed have left."""
        for path in self.folder.rglob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            n = len(self._list_parts())
            text = f"outliers cannot be written ({error.strerror or error}); {count(n, 'piece is', 'pieces are')} "
            text += "there. Make room, and solve again with the same arguments: it goes on from there"
            raise OSError(error.errno or errno.EIO, text, str(self.folder)) from error


def _to_arrow(values: Any) -> Any:
    """Labels as an array of pyarrow; those that have no type of their own there become text."""
    import pyarrow as pa

    if values is None:
        return None
    listed = np.asarray(values)
    listed = listed.astype(object) if listed.dtype.kind in "UT" else listed
    with suppress(pa.ArrowException, TypeError, ValueError):
        made = pa.array(listed)
        if not pa.types.is_nested(made.type):
            return made
    return pa.array([str(value) for value in listed.tolist()])


def _holds(path: Path, key: bytes) -> bool:
    """Whether a file is there, whole, and of that content."""
    import pyarrow.parquet as pq

    try:
        if pq.read_schema(path).metadata.get(KEY) != key:
            return False
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            file.read()
    except Exception:  # a damaged file may fail in any way
        return False
    return True
