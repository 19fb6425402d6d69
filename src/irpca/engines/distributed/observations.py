"""Long tables of (row, column, value) that are read part by part, and brought together by rows."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from scipy.sparse import coo_array

from ...lowrank import Array
from ...wording import count, few
from .. import holes
from .sources import Edges, Reading, Source, attempt, grouped, mapped, natural, place_of, spans, tasks

BAND_ENTRIES = 1 << 22  # of a band of rows: 64 MiB of CSR array
FAN_IN = 8  # parts whose ids are united at once
# Names of columns, in small letters and without _ and id at the end: user_id, movieId.
NAMES = {"row": ("row", "user"), "column": ("column", "col", "item", "movie"), "value": ("value", "val", "rating")}


@dataclass(frozen=True, eq=False)
class Seen:
    """What a first pass has seen of a table, or of a part of it."""

    rows: Array  # ids, sorted
    counts: Array  # entries of each row
    cols: Array
    single: bool  # all values are float32
    parts: tuple[tuple[Any, Any, int], ...]  # first row, last row and entries of each
    faults: Array  # ids missing of rows, ids missing of columns, values NaN, values infinite


def from_frame(M: Any) -> Source:
    """A dask DataFrame."""
    names = columns_of(list(M.columns), "M is a dask DataFrame")
    return _source(M[list(names)].to_delayed(), names, "dask DataFrame")


def from_parquet(path: Path) -> Source:
    """A Parquet file, or a folder of them; their footers are read here."""
    from pyarrow import parquet

    folder = path.is_dir()
    files = (
        sorted((file for file in path.rglob("*.parquet")), key=lambda file: natural(str(file))) if folder else [path]
    )
    call = tasks(_read_parquet, "irpca-read-parquet")
    parts: list[Any] = []
    names: tuple[str, str, str] | None = None
    for file in files:
        try:
            footer = parquet.read_metadata(file)
            found = [name for name in footer.schema.to_arrow_schema().names if not name.startswith("__index_level_")]
        except Exception as error:  # damaged files raise almost anything
            raise ValueError(f"M: {file} is no Parquet file, or damaged: {error}") from None
        names = columns_of(found, f"M: {file}") if names is None else names
        if not set(names) <= set(found):
            raise ValueError(f"M: {file} has the columns {few(found)}, and {files[0]} has {few(names)}")
        lengths = [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]
        parts += [call((len(parts), k[0]), str(file), k, names) for k in grouped(lengths, BAND_ENTRIES)]
    assert names is not None
    return _source(parts, names, "folder of Parquet files" if folder else "Parquet file")


def _read_parquet(file: str, groups: list[int], names: tuple[str, str, str]) -> Any:
    from pyarrow import parquet

    def read() -> Any:
        with parquet.ParquetFile(file) as opened:
            return opened.read_row_groups(groups, list(names)).to_pandas(ignore_metadata=True)[list(names)]

    return attempt(read, f"row groups {groups[0]} to {groups[-1]} of {file}")


def columns_of(found: list[Any], what: str) -> tuple[Any, Any, Any]:
    """The columns with the ids of rows, those of columns, and values: by their names, else in this order."""
    plain = {name: str(name).lower().removesuffix("id").removesuffix("_") for name in found}
    matches = [[name for name in found if plain[name] in known] for known in NAMES.values()]
    if all(len(match) == 1 for match in matches):
        return matches[0][0], matches[1][0], matches[2][0]
    if len(found) == 3:
        return found[0], found[1], found[2]
    raise ValueError(
        f"{what}, with the columns {few(found)}. Three are needed, row, column and value: rename them so, or "
        "pass only these three, in this order. If M has a column for each of its own, pass it as a dask array, with "
        "M.to_dask_array(lengths=True)"
    )


def _source(parts: Sequence[Any], names: tuple[Any, Any, Any], name: str) -> Source:
    seen = _first_pass(parts, names)
    labels = seen.rows, seen.cols
    dtype = np.dtype(np.float32 if seen.single else np.float64)
    row_edges, read, folder = _by_rows(parts, seen, names, dtype)
    shape = len(seen.rows), len(seen.cols)
    source = Source(shape, dtype, row_edges, (0, shape[1]), True, name, labels, read=read)
    if folder is not None:
        weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return source


def _first_pass(parts: Sequence[Any], names: tuple[Any, Any, Any]) -> Seen:
    """All ids, and what is wrong with the table as a whole."""
    look, unite = (
        tasks(partial(_look, names=names), "irpca-read-ids"),
        tasks(partial(_united, names=names), "irpca-ids"),
    )
    found, level = [look((k,), part) for k, part in enumerate(parts)], 0
    while len(found) > 1:
        level += 1
        found = [unite((level, k), found[k : k + FAN_IN]) for k in range(0, len(found), FAN_IN)]
    seen: Seen | None = dask.compute(*found)[0] if found else None
    if seen is None or not (seen.counts.size or seen.faults.any()):
        raise ValueError(f"M is empty: there are no observations in the columns {few(names)}")
    for name, missing in zip(names, seen.faults[:2], strict=False):
        if missing:
            raise ValueError(
                f"M: {count(missing, 'id is', 'ids are')} missing in the column {name!r}. These observations belong to "
                f"no cell: drop them, with M.dropna(subset=[{name!r}])"
            )
    for what, bad in zip(("NaN", "infinite"), seen.faults[2:], strict=True):
        if bad:
            raise ValueError(
                f"M: {count(bad, 'value is', 'values are')} {what} in the column {names[2]!r}; leave out what was "
                f"not observed: drop it, with M[np.isfinite(M[{names[2]!r}])]"
            )
    return seen


def _look(part: Any, names: tuple[Any, Any, Any]) -> Seen:
    rows, cols, values, faults = _triple(part, names)
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    unique, counts = _unique(rows, np.ones(len(rows), np.int64), names[0])
    where = ((unique[0], unique[-1], int(counts.sum())) if len(unique) else (None, None, 0),)
    columns = _unique(cols, np.ones(len(cols), np.int64), names[1])[0]
    single = values.dtype == np.float32 or not len(values)
    return Seen(unique, counts, columns, single, where, np.array([*faults, nan, infinite]))


def _united(many: list[Seen], names: tuple[Any, Any, Any]) -> Seen:
    counts = np.concatenate([one.counts for one in many])
    rows, counts = _unique(_joined([one.rows for one in many], names[0]), counts, names[0])
    cols = _joined([one.cols for one in many], names[1])
    cols = _unique(cols, np.ones(len(cols), np.int64), names[1])[0]
    single, parts = all(one.single for one in many), sum((one.parts for one in many), ())
    return Seen(rows, counts, cols, single, parts, np.sum([one.faults for one in many], axis=0))


def _joined(many: list[Array], name: Any) -> Array:
    """Ids of several parts; an empty part may have lost what kind they are of."""
    many = [ids for ids in many if len(ids)] or many[:1]
    kinds = {ids.dtype.kind for ids in many}
    joined = np.concatenate(many)
    if len(kinds) > 1 and not (kinds == {"i", "u"} and joined.dtype.kind in "iu"):
        found = few(sorted({str(ids.dtype) for ids in many}))
        raise ValueError(f"M: the ids in the column {name!r} are of several kinds, {found}; make them one kind")
    return joined


def _unique(ids: Array, counts: Array, name: Any) -> tuple[Array, Array]:
    """Sorted ids, each once, and the sums of what is counted of each."""
    codes, unique = pd.factorize(ids)
    try:
        order = np.argsort(unique, kind="stable")
    except TypeError as error:
        raise ValueError(f"M: the ids in the column {name!r} cannot be sorted ({error}); make them one kind") from None
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, codes, counts)
    return unique[order], sums[order]


def _triple(part: Any, names: tuple[Any, Any, Any]) -> tuple[Array, Array, Array, tuple[int, int]]:
    """Ids and values of a part, without the lines whose ids are missing, and how many ids were."""
    rows, cols, values = (part[name] for name in names)
    absent = rows.isna().to_numpy(bool), cols.isna().to_numpy(bool)
    there = ~(absent[0] | absent[1])
    if not there.all():
        rows, cols, values = rows[there], cols[there], values[there]
    faults = int(absent[0].sum()), int(absent[1].sum())
    return _ids(rows, faults[0]), _ids(cols, faults[1]), _numbers(values, names[2]), faults


def _ids(column: Any, missing: int) -> Array:
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.dtype.categories.dtype)
    if pd.api.types.is_integer_dtype(column.dtype):
        return column.to_numpy(np.uint64 if pd.api.types.is_unsigned_integer_dtype(column.dtype) else np.int64)
    ids: Array = column.to_numpy() if column.dtype.kind in "fbM" else column.to_numpy(object)
    # An integer column with missing ids is one of floats in pandas.
    return ids.astype(np.int64) if missing and ids.dtype.kind == "f" and (ids == np.floor(ids)).all() else ids


def _numbers(values: Any, name: Any) -> Array:
    """float32 as it is, other numbers as float64, and what is missing as NaN."""
    if not pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_complex_dtype(values.dtype):
        if len(values):
            raise ValueError(f"M: the values in the column {name!r} must be real numbers, got {values.dtype}")
        return np.empty(0)
    single = str(values.dtype).lower().startswith("float32")
    return values.to_numpy(dtype=np.float32 if single else np.float64, na_value=np.nan)


def _positions(ids: Array, labels: Array, name: Any) -> Array:
    """Where ids are among all of them, which are sorted."""
    if not len(ids):
        return np.empty(0, np.int32)
    codes, unique = pd.factorize(ids)
    places = np.searchsorted(labels, unique)
    if not np.array_equal(labels[np.minimum(places, len(labels) - 1)], unique):
        raise ValueError(f"M has changed since it was first read: there are other ids in the column {name!r}")
    return places.astype(np.int32 if len(labels) <= holes.LONGEST else np.int64)[codes]


def _shared(ids: Array) -> Any:
    """Ids that many tasks need, once in the graph: what is scattered is lost with its worker."""
    return dask.delayed(ids, name=f"irpca-ids-{uuid.uuid4().hex}", traverse=False)


def _by_rows(
    parts: Sequence[Any], seen: Seen, names: tuple[Any, Any, Any], dtype: np.dtype[Any]
) -> tuple[Edges, Callable[[int, int], Any], str | None]:
    """Bands of rows, how one is read, and the folder where they are, if they are in one."""
    there = [k for k, (_, _, entries) in enumerate(seen.parts) if entries]
    lasts, firsts = [seen.parts[k][1] for k in there], [seen.parts[k][0] for k in there]
    if all(last < first for last, first in zip(lasts[:-1], firsts[1:], strict=True)):
        return _as_they_are([parts[k] for k in there], [seen.parts[k] for k in there], seen, names, dtype)
    edges, client = _bands(seen.counts), _client()
    folder = tempfile.mkdtemp(prefix="irpca-", dir=dask.config.get("temporary-directory", None))
    try:
        if client is None or _shares(client, folder):
            return edges, _through_files(parts, seen, edges, names, dtype, folder), folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    os.rmdir(folder)
    return edges, _through_workers(parts, seen, edges, names, dtype), None


def _bands(counts: Array) -> Edges:
    """Rows with about as many entries in each band."""
    ends = np.cumsum(counts)
    number = max(1, round(ends[-1] / BAND_ENTRIES))
    cuts = np.searchsorted(ends, ends[-1] * (np.arange(1, number) / number)) + 1
    return tuple(np.unique([0, *cuts, len(counts)]).tolist())


def _client() -> Any:
    """The distributed client that will run the tasks, if there is one."""
    if "distributed" not in sys.modules:
        return None
    from distributed import Client

    owner = getattr(dask.base.get_scheduler(), "__self__", None)
    return owner if isinstance(owner, Client) else None


def _shares(client: Any, folder: str) -> bool:
    """Whether every worker sees this folder."""
    answers = client.run(os.path.isdir, folder)
    return bool(answers) and all(answers.values())


def _as_they_are(
    parts: list[Any], found: list[Any], seen: Seen, names: tuple[Any, Any, Any], dtype: np.dtype[Any]
) -> tuple[Edges, Callable[[int, int], Any], None]:
    """Parts that are bands of rows already; small neighbours are read together."""
    together = grouped([entries for _, _, entries in found], BAND_ENTRIES)
    firsts = np.empty(len(together), seen.rows.dtype)
    firsts[:] = [found[group[0]][0] for group in together]
    edges = (*np.searchsorted(seen.rows, firsts).tolist(), len(seen.rows))
    call, cols = tasks(partial(_placed, names=names, dtype=dtype)), _shared(seen.cols)

    def read(i: int, j: int) -> Any:
        return call((i, j), [parts[k] for k in together[i]], seen.rows[edges[i] : edges[i + 1]], cols)

    return edges, read, None


def _placed(parts: list[Any], rows: Array, cols: Array, *, names: tuple[Any, Any, Any], dtype: np.dtype[Any]) -> Any:
    return _band([_placed_part(part, rows, cols, names, dtype) for part in parts], rows, cols, names)


def _placed_part(
    part: Any, rows: Array, cols: Array, names: tuple[Any, Any, Any], dtype: np.dtype[Any]
) -> tuple[Array, Array, Array]:
    """Positions and values of a part."""
    row_ids, col_ids, values, _ = _triple(part, names)
    at_row, at_col = _positions(row_ids, rows, names[0]), _positions(col_ids, cols, names[1])
    return at_row, at_col, values.astype(dtype, copy=False)


def _band(found: Sequence[tuple[Array, Array, Array]], rows: Array, cols: Array, names: tuple[Any, Any, Any]) -> Any:
    """A band of rows from positions in it and values; every cell is there once."""
    at_row, at_col, values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    band = coo_array((values, (at_row, at_col)), (len(rows), len(cols))).tocsr()  # adds up what is there twice
    if band.nnz < len(values):
        raise ValueError(_twice(at_row, at_col, values, rows, cols, names))
    return _canonical(band.indptr, band.indices, band.data, band.shape)


def _canonical(ends: Array, indices: Array, values: Array, shape: tuple[int, int]) -> Any:
    band = holes.compressed(values, indices, ends, shape)
    band.has_canonical_format = True
    return band


def _twice(at_row: Array, at_col: Array, values: Array, rows: Array, cols: Array, names: tuple[Any, Any, Any]) -> str:
    order = np.lexsort((at_col, at_row))
    ordered = at_row[order], at_col[order]
    again = np.argmax((ordered[0][1:] == ordered[0][:-1]) & (ordered[1][1:] == ordered[1][:-1]))
    row, col = ordered[0][again], ordered[1][again]
    same = values[(at_row == row) & (at_col == col)]
    cell = f"[{names[0]!r}, {names[1]!r}]"
    shown = ", ".join(repr(value.item()) for value in same[:3]) + (" …" if len(same) > 3 else "")
    row, col = (repr(label.item() if isinstance(label, np.generic) else label) for label in (rows[row], cols[col]))
    return (
        f"M: row {row}, column {col} is there {len(same)} times, with values {shown}; only you can say which value "
        f"counts. M.drop_duplicates({cell}) keeps one, M.groupby({cell})[{names[2]!r}].mean().reset_index() the mean"
    )


def _through_files(
    parts: Sequence[Any], seen: Seen, edges: Edges, names: tuple[Any, Any, Any], dtype: np.dtype[Any], folder: str
) -> Callable[[int, int], Any]:
    """Every part is written band by band, and each band put together from a stretch of every part."""
    rows, cols = _shared(seen.rows), _shared(seen.cols)
    write = tasks(partial(_write_part, edges=edges, names=names, dtype=dtype, folder=folder), "irpca-sort")
    dask.compute(*[write((k,), f"part-{k}", part, rows, cols) for k, part in enumerate(parts)])
    bind = tasks(partial(_write_band, parts=len(parts), names=names, folder=folder), "irpca-bind")
    bands = enumerate(spans(edges))
    dask.compute(*[bind((k,), k, a, seen.rows[a:b], cols) for k, (a, b) in bands])
    for file in Path(folder).glob("part-*.npy"):
        file.unlink()
    return lambda i, j: Reading(_read_band, f"band-{i}", edges[i], edges[i + 1], folder=folder, n2=len(seen.cols))


def _write_part(
    name: str,
    part: Any,
    rows: Array,
    cols: Array,
    *,
    edges: Edges,
    names: tuple[Any, Any, Any],
    dtype: np.dtype[Any],
    folder: str,
) -> None:
    found = _placed_part(part, rows, cols, names, dtype)
    bands = np.searchsorted(edges, found[0], side="right") - 1
    ends = np.append(0, np.cumsum(np.bincount(bands, minlength=len(edges) - 1)))
    order = np.argsort(bands.astype(np.min_scalar_type(len(edges))), kind="stable")  # short integers: a radix sort
    _save(folder, name, *(array[order] for array in found), ends)


def _write_band(
    k: int, first: int, rows: Array, cols: Array, *, parts: int, names: tuple[Any, Any, Any], folder: str
) -> None:
    stretches = []
    for part in range(parts):
        at_row, at_col, values, ends = _load(folder, f"part-{part}", 4)
        to = slice(ends[k], ends[k + 1])
        stretches.append((at_row[to] - at_row.dtype.type(first), at_col[to], values[to]))
    band = _band(stretches, rows, cols, names)
    _save(folder, f"band-{k}", band.indptr, band.indices, band.data)


def _save(folder: str, name: str, *arrays: Array) -> None:
    """Each under its name when it is whole: a task may run twice, or be killed."""
    try:
        for k, array in enumerate(arrays):
            beginning = os.path.join(folder, f"{name}-{k}-{uuid.uuid4().hex}.tmp")
            with open(beginning, "wb") as file:
                np.save(file, array)
            os.replace(beginning, os.path.join(folder, f"{name}-{k}.npy"))
    except OSError as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        return
    raise OSError(
        f"M is not sorted by rows, and its entries cannot be written to {folder} in this order. {reason}. Another "
        'folder is set by dask.config.set({"temporary-directory": …})'
    )


def _load(folder: str, name: str, number: int) -> list[Array]:
    return [mapped(os.path.join(folder, f"{name}-{k}.npy")) for k in range(number)]


def _read_band(name: str, first: int, last: int, *, folder: str, n2: int) -> Any:
    where = f"{place_of((first, last), (0, n2))}, in {folder}"
    ends, indices, values = attempt(lambda: [np.array(array) for array in _load(folder, name, 3)], where)
    return _canonical(ends, indices, values, (last - first, n2))


def _through_workers(
    parts: Sequence[Any], seen: Seen, edges: Edges, names: tuple[Any, Any, Any], dtype: np.dtype[Any]
) -> Callable[[int, int], Any]:
    """The parts are exchanged between workers, which share no disk, and the bands stay with them."""
    import dask.dataframe as dd

    rows, cols = _shared(seen.rows), _shared(seen.cols)
    place = tasks(partial(_placed_frame, names=names, dtype=dtype), "irpca-place")
    meta = pd.DataFrame({"row": np.empty(0, np.int64), "column": np.empty(0, np.int64), "value": np.empty(0, dtype)})
    frame = dd.from_delayed(
        [place((k,), part, rows, cols) for k, part in enumerate(parts)], meta=meta, verify_meta=False
    )
    # The last division belongs to the last part; one band alone needs no exchange, but dask no special case.
    sorted_parts = frame.set_index("row", divisions=list(edges), shuffle_method="p2p").to_delayed()
    bind = tasks(partial(_band_of_frame, names=names))
    bands = zip(sorted_parts, spans(edges), strict=True)
    kept = dask.persist(*[bind((k, 0), part, a, seen.rows[a:b], cols) for k, (part, (a, b)) in enumerate(bands)])
    return lambda i, j: kept[i]


def _placed_frame(part: Any, rows: Array, cols: Array, *, names: tuple[Any, Any, Any], dtype: np.dtype[Any]) -> Any:
    at_row, at_col, values = _placed_part(part, rows, cols, names, dtype)
    return pd.DataFrame({"row": at_row.astype(np.int64), "column": at_col.astype(np.int64), "value": values})


def _band_of_frame(part: Any, first: int, rows: Array, cols: Array, *, names: tuple[Any, Any, Any]) -> Any:
    found = part.index.to_numpy() - first, part["column"].to_numpy(), part["value"].to_numpy()
    return _band([found], rows, cols, names)
