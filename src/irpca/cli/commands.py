"""What each command of ``irpca`` does. Each takes the arguments of the command line and returns an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from .. import datasets, readers
from ..labels import Labels
from ..labels import texts as texts_of
from ..readers import PACKED, Data, FileTable, Options, ReaderError
from ..readers.table import no_column
from . import FOUND, USABLE, USAGE, findings, main, printed, writers


class UsageError(ValueError):
    """Arguments that do not go together."""

    exit_code = USAGE


def fit(arguments: Namespace) -> int:
    from ..callbacks import Progress
    from ..estimator import InductiveRobustPCA

    _refuse_together(arguments)
    _refuse_kinds(arguments)
    folder = arguments.out or f"{_strip_endings(arguments.data)}-irpca"
    names = ["outliers.csv", "repaired.csv", "model.irpca", *["report.html"] * arguments.report]
    with writers.staged(folder, names, arguments.force) as place:
        data = _read_data(arguments)
        rows, row_notes = _read_features(arguments, arguments.rows, data.rows, data.shape[0], "--rows")
        cols, col_notes = _read_features(arguments, arguments.cols, data.columns, data.shape[1], "--cols")
        notes = [*data.notes, *row_notes, *col_notes]
        watched = sys.stderr.isatty() and not arguments.quiet
        model = InductiveRobustPCA(
            arguments.rank,
            columns=_take_kinds(arguments, data),
            time_budget=arguments.time_budget,
            callbacks=Progress(sys.stderr) if watched else None,
            random_state=arguments.seed,
        )
        with _note_warnings(notes), _naming_kinds():
            model.fit(data.M, row_features=data.features if rows is None else rows, col_features=cols)
        found = findings.outliers(model, data, {**_collect_criterion(arguments), "explain": arguments.explain})
        findings.write_outliers(place / "outliers.csv", found)
        findings.write_repaired(place / "repaired.csv", model, data, _collect_criterion(arguments))
        model.save(place / "model.irpca")
        if arguments.report:
            from .. import report as reports

            about = {"title": Path(data.name).name, "command": arguments.command_line}
            reports.write(model, place / "report.html", **about, **_collect_criterion(arguments))
    printed.say_fit(arguments, model, data, found, notes, {name: str(Path(folder, name)) for name in names})
    return printed.code_of(model)


def demo(arguments: Namespace) -> int:
    """A fit of the table that comes with the package."""
    with as_file(files(datasets) / "data" / "life_expectancy.csv.gz") as table:
        words = ["fit", str(table), "--drop", "region", "--cols", "index", "--report", "--out", arguments.out]
        switches = [name for name in ("debug", "quiet", "explain", "force", "json") if getattr(arguments, name)]
        return main([*words, *(f"--{name}" for name in switches)])


@contextmanager
def _note_warnings(notes: list[str]) -> Iterator[None]:
    """Warnings become notes, but for that of a fit that is not to be used, which the verdict says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    own = [warning for warning in caught if warning.category.__name__ != "DoNotUseWarning"]
    notes += dict.fromkeys(" ".join(str(warning.message).split()) for warning in own)


@contextmanager
def _naming_kinds() -> Iterator[None]:
    """A column that cannot be what --column says."""
    from ..model.kinds import ColumnError

    try:
        yield
    except ColumnError as error:
        kind = error.wanted.replace(" ", "-")
        raise ReaderError(f"--column {error.column}={kind}: {error.why}; give it another kind") from error


def _take_kinds(arguments: Namespace, data: Data) -> Any:
    """The kinds of columns as the estimator takes them."""
    if not arguments.column:
        return arguments.columns.replace("-", " ")
    names = texts_of(data.columns, data.shape[1]) if data.columns is None else data.columns.spell()
    keys, kinds = range(len(names)) if data.columns is None else list(data.columns), {}
    for name, kind in arguments.column:
        if name not in names:
            raise ReaderError(no_column(data.name, name, names, "--column"))
        kinds[keys[names.index(name)]] = kind
    return kinds


def check(arguments: Namespace) -> int:
    target = Path(arguments.out or f"{_strip_endings(arguments.data)}-outliers.csv")
    _refuse_together(arguments)
    with writers.staged(target.parent, [target.name], arguments.force) as place:
        model = _load_model(arguments.model)
        data = _read_data(arguments, model.col_labels_)
        rows, row_notes = _read_features(arguments, arguments.rows, data.rows, data.shape[0], "--rows")
        notes = [*data.notes, *row_notes]
        with _note_warnings(notes):
            features = data.features if rows is None else rows
            options = _collect_criterion(arguments) | {"explain": arguments.explain}
            found = findings.outliers(model, data, {**options, "M": data.M, "row_features": features})
        findings.write_outliers(place / target.name, found)
    printed.say_check(arguments, model, data, found, notes, str(target))
    return printed.code_of(model) or (FOUND if found["row"] else USABLE)


def report(arguments: Namespace) -> int:
    target = Path(arguments.out)
    with writers.staged(target.parent, [target.name], arguments.force) as place:
        model = _load_model(arguments.model)
        data = _read_data(arguments, model.col_labels_)
        if data.shape != model.low_rank_.shape:
            shapes = [f"{n1} × {n2}" for n1, n2 in (data.shape, model.low_rank_.shape)]
            raise ReaderError(f"{data.name} is {shapes[0]}, and the model was fitted to {shapes[1]}: give that table")
        from .. import report as reports

        title = Path(data.name).name
        reports.write(model, place / target.name, data.M, title=title, command=arguments.command_line)
    printed.say(arguments, f"{printed.verdict(model)}\nReport: {target}")
    return printed.code_of(model)


def predict(arguments: Namespace) -> int:
    if arguments.rows is None and arguments.cols is None:
        raise UsageError("predict needs --rows, --cols or both: the features of what is new. See irpca predict --help")
    if arguments.out is None:
        writers.csv_lines(sys.stdout, ("row", "column", "expected", "std"), list(_predict_lines(arguments)))
        return USABLE
    target = Path(arguments.out)
    with writers.staged(target.parent, [target.name], arguments.force) as place:
        writers.write_csv(place / target.name, ("row", "column", "expected", "std"), _predict_lines(arguments))
    printed.say(arguments, f"Expected values: {target}")
    return USABLE


def _predict_lines(arguments: Namespace) -> Iterator[tuple[str, ...]]:
    """The lines of a long table."""
    model = _load_model(arguments.model)
    if not hasattr(model, "predict"):
        raise ReaderError(f"{arguments.model} was fitted without features (--rows, --cols): it cannot predict")
    rows, row_texts = _read_new_features(arguments, arguments.rows, model, 0)
    cols, col_texts = _read_new_features(arguments, arguments.cols, model, 1)
    expected, std = model.predict(row_features=rows, col_features=cols, return_std=True)
    expected, std = (np.asarray(getattr(table, "values", table)) for table in (expected, std))
    for text, means, deviations in zip(row_texts, expected.tolist(), std.tolist(), strict=True):
        written = zip(col_texts, writers.rounded(means), writers.rounded(deviations), strict=True)
        yield from ((text, *cell) for cell in written)


def _read_new_features(arguments: Namespace, path: str | None, model: Any, axis: int) -> tuple[Any, Sequence[str]]:
    """Features of new rows (0) or columns as predict() takes them, and what to call these."""
    side = (model._rows, model._cols)[axis]
    if path is None:
        return None, texts_of(side.labels, model.low_rank_.shape[axis])
    table = _read_table(path, _make_options(arguments))
    used = _choose_used(table, side)
    label = next((name for name in table.columns if name not in used), None)
    texts = [str(i) for i in range(len(table))] if label is None else table.spell(label)
    if side.by_index:
        return readers.as_labels(texts, label).levels[0], texts
    features = {name: table.columns[name] for name in table.columns if name in used}
    return (np.column_stack(list(features.values())) if side.encoder is None else features), texts


def _choose_used(table: FileTable, side: Any) -> list[str]:
    """Which columns are features: those that the fit had; of a fit to plain numbers, the last ones, as many."""
    if side.by_index:
        return []
    if side.encoder is not None:
        return list(side.encoder.columns_)
    numeric = [name for name, values in table.columns.items() if values.dtype.kind in "fb"]
    return numeric[-len(side.expected.coefficients) :] if side.expected is not None else numeric


def _refuse_together(arguments: Namespace) -> None:
    if arguments.long and (arguments.index or arguments.feature):
        raise UsageError("--long takes one line for each observation: --index and --feature are for wide tables")
    if arguments.feature and arguments.rows:
        raise UsageError("give the features of the rows by --feature or by --rows, not both")


def _refuse_kinds(arguments: Namespace) -> None:
    from ..model.kinds import CHOICES

    names = [name for name, _ in arguments.column]
    for name, kind in arguments.column:
        if kind not in CHOICES:
            known = ", ".join(choice.replace(" ", "-") for choice in CHOICES)
            raise UsageError(f"--column {name}={kind}: there is no such kind; the kinds are {known}")
        if names.count(name) > 1:
            raise UsageError(f"--column {name}: it is named {names.count(name)} times; give one kind")


def _make_options(arguments: Namespace, labels: Iterable[str] = ()) -> Options:
    return Options(
        missing=tuple(arguments.missing),
        text=tuple(arguments.text),
        labels=tuple(labels),
        delimiter=arguments.delimiter,
        decimal=arguments.decimal,
        encoding=arguments.encoding,
        header=arguments.header,
        key=getattr(arguments, "key", None),
    )


def _read_data(arguments: Namespace, columns: Labels | None = None) -> Data:
    """The table of the command line; with the columns of a model, if there is one."""
    long = arguments.long or ()
    labels = long[:2] or ((arguments.index,) if arguments.index else ())
    options = replace(_make_options(arguments, labels), drop=tuple(arguments.drop), only=tuple(long))
    found = readers.read(arguments.data, options)
    if not isinstance(found, FileTable):
        _refuse_names(arguments)
        return Data.of_matrix(arguments.data, found)
    if long:
        return readers.long(found, long, columns)
    return readers.wide(found, arguments.index, arguments.feature, columns)


def _refuse_names(arguments: Namespace) -> None:
    for option in ("index", "long", "feature", "drop"):
        if getattr(arguments, option):
            raise UsageError(f"--{option}: {arguments.data} holds a matrix, whose columns have no names")


def _read_table(path: str, options: Options) -> FileTable:
    found = readers.read(path, options)
    if isinstance(found, FileTable):
        return found
    if not isinstance(found, np.ndarray):
        raise ReaderError(f"{path} is a sparse matrix; features need a value in every cell: save them as npy or csv")
    return FileTable(path, {str(j): column for j, column in enumerate(found.T.astype(float))}, named=False)


def _read_features(
    arguments: Namespace, path: str | None, side: Labels | None, n: int, option: str
) -> tuple[Any, tuple[str, ...]]:
    """Features of the rows, or columns, of M as fit() takes them, and notes."""
    if path is None or path == "index":
        return path, ()
    labels = () if side is None else filter(None, side.names)
    options = replace(_make_options(arguments, labels), loose=True)  # --text may be about DATA
    return readers.align(_read_table(path, options), side, n, option)


def _load_model(path: str) -> Any:
    from ..persistence import load

    try:
        return load(path)
    except OSError as error:
        raise ReaderError(f"{path} cannot be read: {error.strerror or error}") from error


def _collect_criterion(arguments: Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("fdr", "probability", "threshold")}


def _strip_endings(path: str) -> str:
    """The name of DATA without its endings, in the current folder."""
    if path == "-":
        return "stdin"
    name = Path(path).name
    for ending in PACKED:
        name = name.removesuffix(ending)
    return os.path.splitext(name)[0]
