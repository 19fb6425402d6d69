"""Long tables of (row, column, value) that are read part by part, and brought together by rows."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from scipy.sparse import coo_array

from ...lowrank import Array
from ...wording import count, few
from .. import holes
from .sources import (
    Edges,
    Reading,
    Source,
    add_in_tree,
    attempt,
    client_of_dask,
    mapped,
    naturally_sorted,
    place_of,
    tasks,
)

BAND_ENTRIES = 1 << 22  # of a band of rows: 64 MiB of CSR array
# Names of columns, in small letters and without _ and id at the end: user_id, movieId.
NAMES = {"row": ("row", "user"), "column": ("column", "col", "item", "movie"), "value": ("value", "val", "rating")}

Names = tuple[Any, Any, Any]
Given = tuple[Any, Any, Names, np.dtype[Any]]  # what a part is placed by: all ids of rows and of columns, names, dtype
Triple = tuple[Array, Array, Array]  # rows, columns and values


def from_frame(M: Any) -> Source:
    """A dask DataFrame."""
    names = _columns_of(list(M.columns), "M is a dask DataFrame")
    return _source(M[list(names)].to_delayed(), names, "dask DataFrame")


def from_parquet(path: Path) -> Source:
    """A Parquet file, or a folder of them; their footers are read here.

    ``dask.dataframe.read_parquet`` does not say which file, and where in it, cannot be read.
    """
    from pyarrow import parquet

    folder = path.is_dir()
    files = naturally_sorted(path.rglob("*.parquet")) if folder else [path]
    read, parts = tasks(_read_parquet, "irpca-read-parquet"), []
    names: Names | None = None
    for file in files:
        try:
            footer = parquet.read_metadata(file)
            found = [name for name in footer.schema.to_arrow_schema().names if not name.startswith("__index_level_")]
        except Exception as error:  # damaged files raise almost anything
            raise ValueError(f"M: {file} is no Parquet file, or damaged: {error}") from None
        names = _columns_of(found, f"M: {file}") if names is None else names
        if not set(names) <= set(found):
            raise ValueError(f"M: {file} has the columns {few(found)}, and {files[0]} has {few(names)}")
        lengths = [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]
        parts += [read(str(file), groups, names) for groups in _group(lengths) if groups]
    assert names is not None
    return _source(parts, names, "folder of Parquet files" if folder else "Parquet file")


def _group(lengths: Sequence[int]) -> list[list[int]]:
    """Neighbours that are read together: about as many as make a band."""
    bands = (np.cumsum(lengths) - 1) // BAND_ENTRIES
    return [group.tolist() for group in np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(bands)) + 1)]


def _read_parquet(file: str, groups: list[int], names: Names) -> Any:
    from pyarrow import parquet

    def read() -> Any:
        with parquet.ParquetFile(file) as opened:
            return opened.read_row_groups(groups, list(names)).to_pandas(ignore_metadata=True)[list(names)]

    return attempt(read, f"row groups {groups[0]} to {groups[-1]} of {file}")


def named_columns(found: list[Any]) -> Names | None:
    """The columns with the ids of rows, those of columns, and values, by their names; None if these do not tell."""
    plain = {name: str(name).lower().removesuffix("id").removesuffix("_") for name in found}
    matches = [[name for name in found if plain[name] in known] for known in NAMES.values()]
    return None if any(len(match) != 1 for match in matches) else (matches[0][0], matches[1][0], matches[2][0])


def _columns_of(found: list[Any], what: str) -> Names:
    """The same; if names do not tell, three columns in this order."""
    if (names := named_columns(found)) is not None:
        return names
    if len(found) == 3:
        return found[0], found[1], found[2]
    raise ValueError(
        f"{what}, with the columns {few(found)}. Three are needed, row, column and value: rename them so, or "
        "pass only these three, in this order. If M has a column for each of its own, pass it as a dask array, with "
        "M.to_dask_array(lengths=True)"
    )


def _source(parts: Sequence[Any], names: Names, name: str) -> Source:
    seen = _first_pass(parts, names)
    (rows, counts), (cols, _) = seen.ids
    dtype = np.dtype(np.float32 if seen.single else np.float64)
    # Ids that many tasks need, once in the graph: what is scattered is lost with its worker.
    all_rows, all_cols = (
        dask.delayed(ids, name=f"irpca-ids-{uuid.uuid4().hex}", traverse=False) for ids in (rows, cols)
    )
    there = [k for k, (_, _, entries) in enumerate(seen.parts) if entries]
    folder = None
    if all(seen.parts[k][1] < seen.parts[m][0] for k, m in pairwise(there)):  # in bands already
        groups = [[there[k] for k in group] for group in _group([seen.parts[k][2] for k in there])]
        firsts = np.empty(len(groups), rows.dtype)
        firsts[:] = [seen.parts[group[0]][0] for group in groups]
        edges = (*np.searchsorted(rows, firsts).tolist(), len(rows))
        read = tasks(_read_parts)
        bands = [
            read([parts[m] for m in group], rows[slice(*edges[k : k + 2])], all_cols, names, dtype)
            for k, group in enumerate(groups)
        ]
    else:
        edges = _even_edges(counts)
        bands, folder = _exchange(parts, (all_rows, all_cols, names, dtype), edges, rows)
    source = Source(dtype, edges, (0, len(cols)), name, lambda i, j: bands[i], True, (rows, cols))
    if folder is not None:
        weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return source


# The first pass


@dataclass(frozen=True, eq=False)
class Seen:
    """What a first pass has seen of a table, or of a part of it."""

    ids: tuple[tuple[Array, Array], tuple[Array, Array]]  # of rows, and of columns: sorted; how many entries each has
    single: bool  # all values are float32
    parts: tuple[tuple[Any, Any, int], ...]  # first row, last row and entries of each
    faults: Array  # ids missing of rows, ids missing of columns, values NaN, values infinite


def _first_pass(parts: Sequence[Any], names: Names) -> Seen:
    """All ids, and what is wrong with the table as a whole."""
    look, unite = tasks(_look, "irpca-read-ids"), tasks(_unite, "irpca-ids")
    seen: Seen | None = add_in_tree(unite, [look(part, names) for part in parts], names).compute() if parts else None
    if seen is None or not (len(seen.ids[0][0]) or seen.faults.any()):
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


def _look(part: Any, names: Names) -> Seen:
    *ids, values, faults = _triple(part, names)
    rows, cols = (_count([one], [np.ones(len(one), np.int64)], name) for one, name in zip(ids, names, strict=False))
    where = (rows[0][0], rows[0][-1], len(values)) if len(values) else (None, None, 0)
    single = values.dtype == np.float32 or not len(values)
    return Seen((rows, cols), single, (where,), np.array([*faults, np.isnan(values).sum(), np.isinf(values).sum()]))


def _unite(many: list[Seen], names: Names) -> Seen:
    rows, cols = (_count([one.ids[k][0] for one in many], [one.ids[k][1] for one in many], names[k]) for k in (0, 1))
    parts, faults = sum((one.parts for one in many), ()), np.sum([one.faults for one in many], axis=0)
    return Seen((rows, cols), all(one.single for one in many), parts, faults)


def _count(many: Sequence[Array], counts: Sequence[Array], name: Any) -> tuple[Array, Array]:
    """The ids of several parts, sorted and each once, and the sums of what is counted of each."""
    full = [ids for ids in many if len(ids)] or many[:1]  # an empty part may have lost what kind they are of
    kinds, joined = {ids.dtype.kind for ids in full}, np.concatenate(full)
    if len(kinds) > 1 and not (kinds == {"i", "u"} and joined.dtype.kind in "iu"):
        found = few(sorted({str(ids.dtype) for ids in full}))
        raise ValueError(f"M: the ids in the column {name!r} are of several kinds, {found}; make them one kind")
    codes, unique = pd.factorize(joined)
    try:
        order = np.argsort(unique, kind="stable")
    except TypeError as error:
        raise ValueError(f"M: the ids in the column {name!r} cannot be sorted ({error}); make them one kind") from None
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, codes, np.concatenate(counts))
    return unique[order], sums[order]


def _triple(part: Any, names: Names) -> tuple[Array, Array, Array, tuple[int, int]]:
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


# Bands of rows


def _even_edges(counts: Array) -> Edges:
    """Rows with about as many entries in each band."""
    ends = np.cumsum(counts)
    number = max(1, round(ends[-1] / BAND_ENTRIES))
    cuts = np.searchsorted(ends, ends[-1] * (np.arange(1, number) / number)) + 1
    return tuple(np.unique([0, *cuts, len(counts)]).tolist())


def _place(part: Any, rows: Array, cols: Array, names: Names, dtype: np.dtype[Any]) -> Triple:
    """Positions and values of a part."""
    row_ids, col_ids, values, _ = _triple(part, names)
    at_row, at_col = _positions(row_ids, rows, names[0]), _positions(col_ids, cols, names[1])
    return at_row, at_col, values.astype(dtype, copy=False)


def _positions(ids: Array, labels: Array, name: Any) -> Array:
    """Where ids are among all of them, which are sorted."""
    if not len(ids):
        return np.empty(0, np.int32)
    codes, unique = pd.factorize(ids)
    places = np.searchsorted(labels, unique)
    if not np.array_equal(labels[np.minimum(places, len(labels) - 1)], unique):
        raise ValueError(f"M has changed since it was first read: there are other ids in the column {name!r}")
    return places.astype(np.int32 if len(labels) <= holes.LONGEST else np.int64)[codes]


def _read_parts(parts: list[Any], rows: Array, cols: Array, names: Names, dtype: np.dtype[Any]) -> Any:
    return _band([_place(part, rows, cols, names, dtype) for part in parts], rows, cols, names)


def _band(found: Sequence[Triple], rows: Array, cols: Array, names: Names) -> Any:
    """A band of rows from positions in it and values; every cell is there once."""
    at_row, at_col, values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    band = coo_array((values, (at_row, at_col)), (len(rows), len(cols))).tocsr()  # adds up what is there twice
    if band.nnz < len(values):
        raise ValueError(_twice(at_row, at_col, values, rows, cols, names))
    return band


def _twice(at_row: Array, at_col: Array, values: Array, rows: Array, cols: Array, names: Names) -> str:
    lines = pd.DataFrame({"row": at_row, "column": at_col, "value": values})
    again = lines[lines.duplicated(["row", "column"], keep=False)]
    (row, col), same = next(iter(again.groupby(["row", "column"])["value"]))
    cell = f"[{names[0]!r}, {names[1]!r}]"
    shown = ", ".join(map(repr, same[:3].tolist())) + (" …" if len(same) > 3 else "")
    row, col = (repr(label.item() if isinstance(label, np.generic) else label) for label in (rows[row], cols[col]))
    return (
        f"M: row {row}, column {col} is there {len(same)} times, with values {shown}; only you can say which value "
        f"counts. M.drop_duplicates({cell}) keeps one, M.groupby({cell})[{names[2]!r}].mean().reset_index() the mean"
    )


# The exchange of entries between parts and bands


def _exchange(parts: Sequence[Any], given: Given, edges: Edges, rows: Array) -> tuple[list[Any], str | None]:
    """How each band is read, and the folder where they are, if they are in one.

    Through files where all see the same disk: the shuffle of dask that goes through disk takes 2.5 times as long and
    twice the memory. Else workers exchange the entries, and the bands stay with them.
    """
    client = client_of_dask()
    folder = tempfile.mkdtemp(prefix="irpca-", dir=dask.config.get("temporary-directory", None))
    try:
        if client is None or _is_shared(client, folder):
            return _through_files(parts, given, edges, rows, folder), folder
    except BaseException:
        with suppress(OSError):  # elsewhere, tasks that are still under way find no folder to write to
            folder = str(Path(folder).rename(f"{folder}-left"))
        shutil.rmtree(folder, ignore_errors=True)
        raise
    os.rmdir(folder)
    return _through_workers(parts, given, edges, rows), None


def _is_shared(client: Any, folder: str) -> bool:
    """Whether every worker sees this folder."""
    answers = client.run(os.path.isdir, folder)
    return bool(answers) and all(answers.values())


def _through_files(parts: Sequence[Any], given: Given, edges: Edges, rows: Array, folder: str) -> list[Any]:
    """Every part is written band by band, and each band put together from a stretch of every part."""
    write, bind = tasks(_write_part, "irpca-sort"), tasks(_write_band, "irpca-bind")
    _, cols, names, _ = given
    dask.compute(*(write(folder, f"part-{k}", edges, part, *given) for k, part in enumerate(parts)))
    bands = enumerate(pairwise(edges))
    found = [bind(folder, len(parts), k, first, rows[first:last], cols, names) for k, (first, last) in bands]
    shapes = dask.compute(*found)
    for file in Path(folder).glob("part-*.npy"):
        file.unlink()
    return [Reading(_read_band, folder, f"band-{k}", edges[k], shape) for k, shape in enumerate(shapes)]


def _write_part(folder: str, name: str, edges: Edges, part: Any, *given: Any) -> None:
    found = _place(part, *given)
    bands = np.searchsorted(edges, found[0], side="right") - 1
    ends = np.append(0, np.cumsum(np.bincount(bands, minlength=len(edges) - 1)))
    order = np.argsort(bands.astype(np.min_scalar_type(len(edges))), kind="stable")  # short integers: a radix sort
    _save(folder, name, *(array[order] for array in found), ends)


def _write_band(folder: str, parts: int, k: int, first: int, rows: Array, cols: Array, names: Names) -> tuple[int, int]:
    found = []
    for part in range(parts):
        *arrays, ends = _load(folder, f"part-{part}", 4)
        at_row, at_col, values = (array[ends[k] : ends[k + 1]] for array in arrays)
        found.append((at_row - at_row.dtype.type(first), at_col, values))
    band = _band(found, rows, cols, names)
    _save(folder, f"band-{k}", band.indptr, band.indices, band.data)
    return band.shape


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


def _read_band(folder: str, name: str, first: int, shape: tuple[int, int]) -> Any:
    where = f"{place_of((first, first + shape[0]), (0, shape[1]))}, in {folder}"
    ends, indices, values = attempt(lambda: [np.array(array) for array in _load(folder, name, 3)], where)
    band = holes.compressed(values, indices, ends, shape)
    band.has_canonical_format = True
    return band


def _through_workers(parts: Sequence[Any], given: Given, edges: Edges, rows: Array) -> list[Any]:
    import dask.dataframe as dd

    place, bind = tasks(_place_in_frame, "irpca-place"), tasks(_band_of_frame)
    _, cols, names, dtype = given
    meta = pd.DataFrame({"row": np.empty(0, np.int64), "column": np.empty(0, np.int64), "value": np.empty(0, dtype)})
    placed = dd.from_delayed([place(part, *given) for part in parts], meta=meta, verify_meta=False)
    # The last division belongs to the last part; one band alone needs no exchange, but dask no special case.
    sorted_parts = placed.set_index("row", divisions=list(edges), shuffle_method="p2p").to_delayed()
    bands = zip(sorted_parts, pairwise(edges), strict=True)
    return list(dask.persist(*(bind(part, a, rows[a:b], cols, names) for part, (a, b) in bands)))


def _place_in_frame(part: Any, *given: Any) -> Any:
    at_row, at_col, values = _place(part, *given)
    return pd.DataFrame({"row": at_row.astype(np.int64), "column": at_col.astype(np.int64), "value": values})


def _band_of_frame(part: Any, first: int, rows: Array, cols: Array, names: Names) -> Any:
    found = part.index.to_numpy() - first, part["column"].to_numpy(), part["value"].to_numpy()
    return _band([found], rows, cols, names)
