"""What people ask of a fitted model: expected and repaired values, outliers, rows and columns, a summary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, to_device
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted

from . import constants
from .arguments import flag, is_whole, number, whole
from .containers import Given, device_of, in_kind, kind_of, listing, taken
from .described import Described
from .engines import choose, is_engine
from .engines.base import LARGEST_BLOCK, Engine
from .engines.sparse_part import on_device, places, to_host
from .explain import Explainer, Explanation
from .labels import Labels, position, texts
from .lowrank import Array, LowRank
from .mistakes import cells_of, check_kinds, names_at, undone
from .model.entry_scale import REACH, EntryScale, Judge
from .model.maps import ColumnMaps
from .model.placement import Placed, Placement
from .outliers import score_lines, standardised
from .result import Result, Status
from .tables import (
    MARKS,
    BoundTable,
    Candidates,
    Criterion,
    DeviationTable,
    ExpectedTable,
    RepairedTable,
    bound,
    candidates,
    cast,
    flagged,
    in_memory,
    refuse_large,
)
from .wording import few

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .engines.sparse_part import Sparse

LOOK_ENTRIES = 1 << 17  # of the fitted table: what is kept of it shall not take more memory than it
UNKEPT = ("_M", "_device", "_said", "_explaining")  # what of a model is in no file: the table, what features say of it
READ_ENTRIES = 1 << 22  # of a table in chunks: those of as many are read together


class _IfFeatures:
    """A method that models fitted without features lack: ``hasattr`` is False, as scikit-learn expects."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self.method
        if hasattr(model, "_rows") and model._rows.expected is None and model._cols.expected is None:
            raise AttributeError(
                f"{self.method.__name__} needs a model fitted with row_features or col_features, by a solver that uses "
                "them. For the expected values of the fitted table use expected(), for new rows outliers(new_rows) or "
                "repaired(new_rows)"
            )
        return MethodType(self.method, model)


class Answers:
    """The part of the estimator that reads a fit. What it reads is set, and new rows are placed, by the estimator."""

    engine: str
    result_: Result
    low_rank_: LowRank
    sparse_: Sparse | None
    components_: Array
    status_: Status
    zeta_: float
    container_: str
    _rows: Described
    _cols: Described
    _placement: Placement
    _dims: tuple[str, str]
    _observed: Array
    _fingerprint: str
    _M: Any
    _device: str
    _said: Array
    _explaining: tuple[Result, bool, Explainer]
    if TYPE_CHECKING:
        _new_rows: Callable[[Any, Any], tuple[Engine, Array | None, Labels | None]]
        _decomposed: Callable[[Engine, Array | None, Labels | None], Result]
        _judge: Callable[..., Judge]

    @_IfFeatures
    def predict(self, row_features: Any = None, col_features: Any = None, *, return_std: bool = False) -> Any:
        """Expected values of new rows or columns from their features alone, ``row_features @ W @ col_features.T``.

        Where columns are mapped that product is of latent values, and what is returned is in units of M; new columns
        are refused then, unless all columns have the same map, since the kind of a new one is not known.

        Without arguments it is :meth:`expected`. NaN for rows and columns of the fit about which nothing is known:
        they have too few entries, and no features.

        Parameters
        ----------
        row_features, col_features : as in :meth:`fit`, for any number of rows and columns
            None: the rows, or the columns, of the M that was fitted. Where the fit used "index": labels, such as dates.
        return_std : bool
            Return the standard deviation of a clean measurement about what is expected, too: that of the noise, and of
            what features do not tell.

        Returns
        -------
        table of shape (m, k), in kind of M; with ``return_std`` two of them
        """
        check_is_fitted(self)
        return_std = flag(return_std, "return_std")
        given, sides, new = [], [], list[bool]()
        for F, side, axis in ((row_features, self._rows, 0), (col_features, self._cols, 1)):
            given.append(side.labels if F is None else side.split(F)[0])
            sides.append(self._fitted_factor(axis) if F is None else side.place(F))
            new.append(F is not None)
        vague = None if row_features is None else self._rows.vague(row_features)
        scores, V = sides
        like = replace(self._like_features(row_features, col_features), rows=given[0], columns=given[1])
        which = new[0], new[1]
        expected = self._expected(scores, V, like, which)
        if not return_std:
            return expected
        scale = self._placement.scale(self.result_.scale, scores, V, which, vague)
        return expected, self._deviation(scale, like, which)

    def _like_features(self, *features: Any) -> Given:
        """What predictions look like: the container of M or, if that is NumPy, of features from another library."""
        frames = {kind_of(F): F for F in features if F is not None}
        if self.container_ != "numpy" or not (others := set(frames) - {"numpy", "dask", "zarr"}):
            return self._like(None)
        kind = others.pop()
        return Given(None, container=kind, dims=self._dims, device=device_of(frames[kind]))

    def expected(self, return_std: bool = False) -> Any:
        """What every cell of the fitted table should be; NaN where nothing is known.

        Parameters
        ----------
        return_std : bool
            Return the standard deviation of a clean measurement about that, too: that of the noise there, and of the
            expected value. About 95 % of the cells that are no outliers lie within two of them. Where columns are
            mapped it depends on the cell, so that the difference divided by it is the standardised residual; use
            :meth:`interval` to say how far a measurement may be off.

        Returns
        -------
        table like M, with its labels; with ``return_std`` two of them
            Of a torch tensor a tensor, on its device: it is made there, of any size that fits.
            Of a dask array, one that is computed chunk by chunk, of any size. Of other tables in chunks an array, or a
            frame if there are labels; beyond 2²⁸ cells it is refused.
        """
        check_is_fitted(self)
        return_std = flag(return_std, "return_std")
        scores, V, like = self._fitted_factor(0), self._fitted_factor(1), self._like(self._rows.labels)
        expected = self._expected(scores, V, like)
        if not return_std:
            return expected
        given = (None, self._owner) if self.result_.maps is not None and hasattr(self, "_M") else None
        return expected, self._deviation(self._known_scale(self.result_), like, given=given)

    def interval(self, coverage: float = 0.95) -> Any:
        """Between which values a clean measurement of every cell of the fitted table lies; NaN where nothing is known.

        Where columns are mapped, what is expected is rarely in the middle, and both ends are within what the column can
        hold.

        Parameters
        ----------
        coverage : float between 0 and 1
            The share of the clean measurements that lie within.

        Returns
        -------
        two tables like M, of the lower and the upper end
        """
        check_is_fitted(self)
        number(coverage, "coverage", above=0, below=1)
        like, sides = self._like(self._rows.labels), (self._fitted_factor(0), self._fitted_factor(1))
        if like.device == "cpu" and self._lazy() is None:
            refuse_large(self.low_rank_.shape, "interval")
        scale, dtypes = self._known_scale(self.result_), (self.components_.dtype,)
        away = scale.reach(coverage)
        tables = (BoundTable(*sides, scale, end) for end in (-away, away))
        lower, upper = (in_kind(self._tables(table, dtypes, like)[0], like) for table in tables)
        return lower, upper

    def repaired(
        self,
        M: Any = None,
        *,
        row_features: Any = None,
        fdr: float | None = None,
        probability: float | None = None,
        threshold: float | None = None,
        kinds: bool | str | Iterable[str] = False,
        return_std: bool = False,
        return_marks: bool = False,
        force: bool = False,
    ) -> Any:
        """The table with outliers and missing cells replaced by what is expected there.

        Parameters
        ----------
        M, row_features : new rows as in :meth:`transform`, or None
            None: the table that was fitted.
        fdr, probability, threshold : float or None
            Which cells are outliers, see :meth:`outliers`.
        kinds : bool, or names of mistakes
            Outliers whose ``kind`` in :meth:`outliers` is one of these are not replaced: the mistake is undone, 5200
            that is "× 10" becomes 520. True: of all kinds that can be undone, factors, "sign", "digits swapped" and
            "swapped". Tables in chunks and tensors are refused.
        return_std : bool
            Return the standard deviation of a clean measurement about each replaced value, too; 0 where M was kept,
            or a mistake undone.
        return_marks : bool
            Return what was replaced, too: a table of "outlier", "missing" and, where M was kept, "". A cell that is
            missing and of which nothing is known stays NaN.
        force : bool
            Replace cells although the verdict on the fit is "do not use"; without it that is refused.

        Returns
        -------
        table like M; with ``return_std`` and ``return_marks`` up to three of them
            Of a torch tensor, made on its device; marks are an array in host memory. Of a dask array, chunk by chunk as
            with :meth:`expected`.
        """
        check_is_fitted(self)
        return_std, return_marks = flag(return_std, "return_std"), flag(return_marks, "return_marks")
        if self.result_.usable == "do not use" and not flag(force, "force"):
            why = self.result_.summary().partition("\n")[0]
            raise ValueError(f"cells are not replaced ({why}): repaired(force=True) does it all the same")
        result, engine, rows = self._looked_at(M, row_features)
        like, cut = self._like(rows), Criterion(fdr, probability, threshold)
        if like.device == "cpu" and self._lazy(engine) is None:
            refuse_large(result.L.shape, "repaired")
        if return_marks and like.device != "cpu":
            refuse_large(result.L.shape, "marked")  # these are an array in host memory
        S: Any = flagged(result, cut, engine)
        if like.device == "cpu":
            S = to_host(S, f"a list of cells with {cut}")
        columns = np.arange(result.L.shape[1])
        scale = self._known_scale(result) if return_std else None
        table = RepairedTable(*self._thin(result), S, columns, scale, result.maps)
        dtypes = engine().dtype, self.components_.dtype if return_std else None, np.int8 if return_marks else None
        *made, marks = self._tables(table, dtypes, like, given=(M, engine))
        if kinds is not False:
            if like.device != "cpu" or like.container == "torch" or self._lazy(engine) is not None:
                raise ValueError("kinds needs a table in host memory, as an array or a frame")
            at = places(S)[0], places(S)[1].astype(np.int64)
            cells = cells_of(result, *at, engine().entries(*at))
            names = names_at(result, *at, cells.observed)
            values = undone(cells, names, check_kinds(kinds, names.tolist()))
            some = tuple(lines[np.isfinite(values)] for lines in at)
            for one, new in zip(made, (values[np.isfinite(values)], 0.0), strict=True):
                if one is not None:
                    one[some] = new
        found = [in_kind(one, like) for one in made if one is not None]
        if marks is not None:
            text = marks.map_blocks(_text_of, dtype=object) if hasattr(marks, "map_blocks") else _text_of(marks)
            found.append(text if like.container == "torch" else in_kind(text, like))
        return tuple(found) if len(found) > 1 else found[0]

    def _thin(self, result: Result) -> tuple[Array, Array]:
        """Factors of the expected values; NaN where nothing is known."""
        left, right = result.L.thin()
        if result.known is None:
            return left, right
        left, right = (np.where(seen[:, None], B, np.nan) for B, seen in zip((left, right), result.known, strict=True))
        return left, right

    def _tensor(self, M: Any = None) -> Any:
        """New rows as given, or the table of the fit, if it is a tensor on the device of the answers; else None."""
        M = getattr(self, "_M", None) if M is None else M
        return taken(M).matrix if kind_of(M) == "torch" and device_of(M) == self._where != "cpu" else None

    def outliers(
        self,
        M: Any = None,
        *,
        row_features: Any = None,
        most: int | None = None,
        fdr: float | None = None,
        probability: float | None = None,
        threshold: float | None = None,
        explain: bool = False,
    ) -> Any:
        """Which cells are wrong, the most certain first.

        How many are listed is a choice that needs no new fit: give one of ``fdr``, ``probability`` and ``threshold``.
        Without, they are all cells that are more likely outliers than noise. To list more than these, M is read again.
        Cells of rows and columns about which nothing is known are never listed.

        Parameters
        ----------
        M, row_features : new rows as in :meth:`transform`, or None
            None: the table that was fitted.
        most : int or None
            List the first ones only.
        fdr : float or None
            Allow this share of false alarms among the cells listed, such as 0.05: the largest set whose mean of
            ``1 − probability`` is at most that. It may list more than the default, single cells with a low probability.
        probability : float or None
            List cells that are outliers with at least this probability.
        threshold : float or None
            List cells whose difference is larger than this, in units of M, however probable.
        explain : bool
            Say in a sentence why each cell is wrong, see :meth:`explain`.

        Returns
        -------
        frame in kind of M if it has labels, else a structured array; of a torch tensor a dict of tensors
            The columns; those of the dict are one-dimensional tensors on the device of M.
            ``row``, ``column``: labels, or positions where there are none. ``observed``: the cell as given.
            ``expected``: what it should be. ``difference``: the first less the second. ``std``: the standard deviation
            of a clean measurement there. ``lower``, ``upper``: between which values 95 % of the clean measurements lie
            there: 1.96 ``std`` to either side of ``expected``; where columns are mapped this is rarely in the middle,
            both are within what the column can hold, and ``std`` depends on ``observed``, too. ``score``: the size of
            the difference in multiples of ``std``; of an exact fit, and of solvers without a noise model, of ``zeta_``.
            ``probability``: of an outlier, given the distribution of all residuals (:mod:`irpca.model.calibration`); 1
            in an exact fit, NaN if the solver has no noise model or the fit failed. ``kind``: the name of the mistake,
            or "" if it has none: "× 10", ": 10", "× 100", ": 100", "× 1000", ": 1000", "× 2.54" or another factor that
            several cells share, "sign", "digits swapped", "neighbour's value", "copied from above", "swapped" (with a
            neighbour in the row), "copied row", "stuck", "code −999" (:mod:`irpca.mistakes`). Of tables in chunks or of
            more than 2²⁴ cells, what these cells tell by themselves; of tensors there is no such column.
            ``why``, with ``explain``: a sentence.
        """
        check_is_fitted(self)
        if is_whole(M):
            raise ValueError(f"outliers takes a table of new rows first; for the first {M} outliers, say most={M}")
        if most is not None:
            whole(most, "most", least=0)
        if flag(explain, "explain") and (self._where != "cpu" or self.container_ == "torch"):
            raise ValueError("tensors hold no sentences: leave explain=True out, and ask explain(row, column)")
        result, engine, rows = self._looked_at(M, row_features)
        columns = self._cells(result, (M, engine), Criterion(fdr, probability, threshold), most)
        if explain:
            found = self._explanations(result, (M, engine), row_features, columns["row"], columns["column"], rows)
            columns["why"] = np.array([one.why for one in found], object)
        return listing(columns, {"row": rows, "column": self._cols.labels}, self.container_, self._where)

    def explain(self, row: Any, column: Any, M: Any = None, *, row_features: Any = None) -> Explanation:
        """Why a cell is expected to hold what it should, and what kind of mistake would explain what it holds.

        What is expected is found from the other cells of its row by the pattern of the columns, without the cell
        itself. The cells of its column, and features of the columns, are in that pattern: they have no shares.

        Parameters
        ----------
        row, column : labels, or positions where there are none
        M, row_features : new rows as in :meth:`transform`, or None
            None: the table that was fitted.

        Returns
        -------
        Explanation
            What is expected and its shares, the kinds of mistake and their probabilities; print it to read it
            (:class:`irpca.explain.Explanation`).
        """
        check_is_fitted(self)
        result, engine, rows = self._looked_at(M, row_features)
        sides = (row, rows, "row"), (column, self._cols.labels, "column")
        i, j = (np.array([position(*side[:2], n, side[2])]) for side, n in zip(sides, result.L.shape, strict=True))
        if result.known is not None and not (result.known[0][i] & result.known[1][j])[0]:
            raise ValueError(
                f"nothing is known of row {row!r} and column {column!r}: one of them has too few cells, and no features"
            )
        return next(self._explanations(result, (M, engine), row_features, i, j, rows))

    def _explanations(
        self,
        result: Result,
        table: tuple[Any, Callable[[], Engine]],
        row_features: Any,
        rows: Array,
        cols: Array,
        labels: Labels | None = None,
    ) -> Iterator[Explanation]:
        """Explanations of some cells; the table: new rows or None, and their owner."""
        if result.failed:
            raise ValueError(f"there is nothing to explain. {result.status.name}: {result.status.advice}")
        if result.calibration is None and result.noise != 0:
            raise ValueError("explain needs a model of the noise, and this solver has none: use solver='irpca'")
        M, engine = table
        held = getattr(self, "_explaining", None)
        if held is not None and held[0] is result and held[1] == (row_features is None):
            explainer = held[2]
        else:
            prior = getattr(self, "_said", None) if M is None else self._new_rows(M, row_features)[1]
            explainer = Explainer(result, self._placement, self._scale_of(result), engine(), prior)
            if result is self.result_:
                self._explaining = result, row_features is None, explainer
        names = rows.tolist() if labels is None else list(labels.take(rows))
        columns = self._cols.labels
        return explainer.explain(rows, cols, (names, range(result.L.shape[1]) if columns is None else list(columns)))

    def _cells(
        self,
        result: Result,
        table: tuple[Any, Callable[[], Engine]],
        cut: Criterion,
        most: int | None = None,
        kinds: bool = True,
    ) -> dict[str, Any]:
        """Outliers by their positions, the most certain first. The table: new rows or None, and their owner."""
        engine = table[1]
        S: Any = candidates(result, cut, engine)
        if self._where == "cpu":
            S = to_host(S, f"a list of cells with {cut}")
        advice = "ask for fewer with most=, or write them to files, with irpca.solve(…, outliers_to=…)"
        with self._fitting(f"a list of {S.nnz:,} outliers", advice):
            found = Candidates(S, result.judge, self._scale_of(result), self.components_.dtype)
            chosen = found.choose(cut, most)
            at, difference, std = places(S, chosen.at), found.difference(chosen.at), found.std(*places(S, chosen.at))
            observed, expected = self._observed_and_expected(result, table, at, on_device(S))
            if result.maps is not None:
                xp = array_namespace(difference)
                expected, std = found.observed_and_expected(chosen.at)[1], xp.abs(difference) / chosen.score
            lower, upper = found.bounds(chosen.at, expected)
            columns = {
                "row": at[0],
                "column": at[1],
                "observed": cast(observed, S.dtype),
                "expected": cast(expected, S.dtype),
                "difference": cast(difference, S.dtype),
                "std": cast(std, self.components_.dtype),
                "lower": cast(lower, self.components_.dtype),
                "upper": cast(upper, self.components_.dtype),
                "score": chosen.score,
                "probability": chosen.probability,
            }
            if kinds and self._where == "cpu" and self.container_ != "torch":
                columns["kind"] = names_at(result, at[0], at[1], observed)
            return columns

    def _observed_and_expected(
        self, result: Result, table: tuple[Any, Callable[[], Engine]], at: tuple[Any, Any], there: bool
    ) -> tuple[Any, Any]:
        """M and L at some cells, whose places are on the device of M or in host memory."""
        M, engine = table
        if there:
            from .engines.gpu.tensor_tables import entries_of, products_at

            return entries_of(self._tensor(M), engine, *at), products_at(*result.L.thin(), *at)
        return self._entries(*at) if engine == self._owner else engine().entries(*at), result.L.entries(*at)

    def _fitting(self, what: str, advice: str) -> AbstractContextManager[None]:
        """Say what does not fit into the memory of the device of the answers."""
        if self._where == "cpu":
            return nullcontext()
        from .engines.gpu.tensor_tables import fitting

        return fitting(self._where, what, advice)

    def outlier_rows(self, M: Any = None, *, row_features: Any = None) -> Any:
        """How many outliers each row has, the most surprising first: which days are odd, which users careless?

        Rows that are strange in the same way, such as fake users who copy each other, may be explained by L. Given M
        again, and the features of its rows, these are compared with what their features say in place of L, which knows
        them.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`, or None
            None: the rows of the fit, compared with L.

        Returns
        -------
        DataFrame if M had labels, else a structured array; of a torch tensor a dict of tensors
            See :func:`irpca.outliers.score_lines`; ``row`` is the label, or the position.
        """
        if M is None and row_features is None:
            return self._outlier_lines(0, "row", self._rows.labels)
        engine, prior, labels = self._new_rows(M, row_features)
        if prior is None:
            raise ValueError("give row_features, too; without them, outliers(M) says what is wrong with new rows")
        if len(vague := np.flatnonzero(np.isnan(prior).any(axis=1))):
            shown = few(vague.tolist() if labels is None else labels.take(vague))
            raise ValueError(f"row_features of {shown} are missing or were not in the fit: leave these rows out")
        certain = Placed(prior, np.zeros((len(prior), len(self._placement.turn))), np.ones(len(prior)))
        L = LowRank.from_product(prior, self._V)
        judge = self._judge(certain, self.zeta_, L)
        S, _ = self._latent(engine).corruption(L, judge.candidates)
        S = standardised(to_host(judge.outliers(S), "outlier_rows"), judge)
        return listing(*_lines_table(S, 0, engine.counts[0], "row", labels), self.container_, self._where)

    def outlier_columns(self) -> Any:
        """How many outliers each column has, the most surprising first: which sensor is broken?"""
        return self._outlier_lines(1, "column", self._cols.labels)

    def _outlier_lines(self, axis: int, name: str, labels: Any) -> Any:
        check_is_fitted(self)
        self._refuse_failed()
        S = standardised(to_host(self.result_.residuals, "this answer"), self.result_.judge)
        columns = _lines_table(S, axis, self.result_.counts[axis], name, labels)
        return listing(*columns, self.container_, self._where)

    def summary(self) -> str:
        """Whether to use it, what was found, what was chosen and why, what to check, the clearest outliers."""
        check_is_fitted(self)
        lines = [self.result_.summary(texts(self._cols.labels, self.low_rank_.shape[1]))]
        if self.sparse_ is not None and self.sparse_.nnz:
            lines += ["Clearest outliers (row, column):", *self._clearest(5)]
        for side in (self._rows, self._cols):
            if side.encoder is not None:
                lines += [f"{side.name}, as encoded:", *(f"  - {note}" for note in side.encoder.notes_)]
        return "\n".join(lines)

    def _clearest(self, most: int) -> list[str]:
        table = None, self._owner
        cells = {name: column.tolist() for name, column in self._cells(self.result_, table, Criterion(), most).items()}
        labels = zip((self._rows.labels, self._cols.labels), (cells["row"], cells["column"]), strict=True)
        rows, cols = (at if names is None else names.take(at).texts() for names, at in labels)
        found = zip(rows, cols, cells["observed"], cells["expected"], strict=True)
        return [f"  {row}, {col}: {seen:.4g} observed, {expected:.4g} expected" for row, col, seen, expected in found]

    @property
    def _sparse(self) -> csr_array:
        """S in host memory."""
        self._refuse_failed()
        return to_host(self.sparse_, "this answer")

    def _refuse_failed(self) -> None:
        if self.sparse_ is None:
            raise ValueError(f"there are no outliers. {self.status_.name}: {self.status_.advice}")

    def _latent(self, engine: Engine) -> Engine:
        """The owner of the latent values of a table, where columns are mapped; else of the table itself."""
        return engine if self.result_.maps is None else engine.mapped(self.result_.maps)

    def _known(self, axis: int) -> Array:
        """Of which rows (0), or columns, of the fit something is known."""
        known = self.result_.known
        return np.ones(self.low_rank_.shape[axis], bool) if known is None else known[axis]

    def _fitted_factor(self, axis: int) -> Array:
        """Scores of the rows (0), or components at the columns, of the fit; NaN where nothing is known."""
        left, right = self.low_rank_.thin()
        factor, known = (left @ (right.T @ self._V), self._V)[axis], self._known(axis)
        return factor if known.all() else np.where(known[:, None], factor, np.nan)

    def _like(self, rows: Labels | None) -> Given:
        """What answers look like: the container of M, and its columns."""
        return Given(None, rows, self._cols.labels, self.container_, self._dims, device=self._where)

    @property
    def _where(self) -> str:
        """The device of answers that are tensors; of a model from a file it is the CPU."""
        return getattr(self, "_device", "cpu")

    def _lazy(self, owner: Callable[[], Engine] | None = None) -> Any:
        """The engine, if tables are to be computed chunk by chunk as M itself is: a dask array. Else None."""
        if self.container_ not in ("numpy", "xarray"):
            return None
        engine: Any = getattr(self, "_M", None) if owner is None or owner == self._owner else owner()
        chunked = is_engine(engine) and engine.source is not None
        return engine if chunked and engine.source.name == "dask array" else None

    def _expected(self, scores: Array, V: Array, like: Given, new: tuple[bool, bool] = (False, False)) -> Any:
        """Expected values from factors of rows and columns, that are new or those of the fit."""
        if not any(new) and like.device == "cpu" and self._lazy() is None:
            refuse_large(self.low_rank_.shape, "expected")
        table = ExpectedTable(scores, V, self._maps_of(len(V), new[1]))
        (made,) = self._tables(table, (self.components_.dtype,), like, new)
        return in_kind(made, like)

    def _maps_of(self, n2: int, new: bool) -> ColumnMaps | None:
        """The maps of fitted columns; of new ones, if all columns of the fit have the same."""
        maps = self.result_.maps
        if maps is None or not new:
            return maps
        if not np.array_equal(maps.knots, np.broadcast_to(maps.knots[:1], maps.knots.shape)):
            raise ValueError(
                "the columns of this model are mapped, each by its kind, and of new columns that is not known: fit "
                "with columns='as they are' to predict these"
            )
        return maps.cut(slice(None), np.zeros(n2, np.intp))

    def _deviation(
        self,
        scale: EntryScale,
        like: Given,
        new: tuple[bool, bool] = (False, False),
        given: tuple[Any, Callable[[], Engine]] | None = None,
    ) -> Any:
        """Standard deviations of clean measurements, of the same cells; ``given``: M, where it is at hand."""
        (made,) = self._tables(DeviationTable(scale), (self.components_.dtype,), like, new, given)
        return in_kind(made, like)

    def _tables(
        self,
        table: Any,
        dtypes: tuple[Any, ...],
        like: Given,
        new: tuple[bool, bool] = (False, False),
        given: tuple[Any, Callable[[], Engine]] | None = None,
    ) -> list[Any]:
        """Tables in kind of M: chunk by chunk if M is a dask array, on its device if it is a tensor.

        They have these types, None for what is not wanted, and are of rows and columns that are new or those of the
        fit. ``given``, where M is needed: new rows or None, and what makes their owner.
        """
        M, owner = given or (None, None)
        if (engine := self._lazy(owner)) is not None:
            from .engines.distributed.lazy_tables import lazily

            edges = _edges_of(engine, tuple(len(side[0]) for side in table.sides), new)
            return lazily(table, dtypes, edges, None if given is None else engine.source)
        if like.device != "cpu":
            from .engines.gpu.tensor_tables import rows_of, tensors_of

            rows = None if owner is None else rows_of(self._tensor(M), owner, like.device)
            return tensors_of(table, dtypes, like.device, rows)
        return in_memory(table, dtypes, None if owner is None else _values_of(owner()))

    def _bounds_at(self, result: Result, rows: Array, cols: Array) -> tuple[Array, Array]:
        """Between which values 95 % of the clean measurements of some cells lie."""
        scale = self._scale_of(result)
        middle = result.L.entries(rows, cols) if scale.maps is None else scale.latent_at(rows, cols)
        std = REACH * scale.std_at(rows, cols)
        return bound(middle, -std, scale.maps, cols), bound(middle, std, scale.maps, cols)

    def _scale_of(self, result: Result) -> EntryScale:
        """How far clean cells of a result scatter; of solvers without a model of the noise, by its size."""
        if result.scale is not None:
            return result.scale
        left, right = result.L.thin()
        scores = left @ (right.T @ self._V)
        return self._placement.scale(None, scores, self._V, (result is not self.result_, False))

    def _known_scale(self, result: Result) -> EntryScale:
        """The same, NaN in rows and columns of which nothing is known."""
        scale = self._scale_of(result)
        if result.known is None:
            return scale
        rows, cols = (np.where(*side, np.nan) for side in zip(result.known, (scale.rows, scale.cols), strict=True))
        return replace(scale, rows=rows, cols=cols)

    def _remember(self) -> None:
        """Keep of M what answers need when it is gone: its outliers, and how to recognise it."""
        if not hasattr(self, "_M"):
            return
        self._at_outliers()
        if not hasattr(self, "_fingerprint"):
            self._fingerprint = fingerprint_of(choose(self._M))

    def _kept(self) -> dict[str, Any]:
        """The attributes of a model without its table, for files: outliers are in host memory, answers on the CPU."""
        held = {name: value for name, value in vars(self).items() if name not in UNKEPT}
        if not hasattr(self, "result_"):  # not fitted
            return held
        result = self.result_.in_host_memory("a file of the model")
        return held | {"sparse_": result.S, "result_": result}

    def _at_outliers(self) -> Array:
        """The outliers of the fit as M has them, in the order of S; of an M in chunks from one read, when needed."""
        if not hasattr(self, "_observed"):
            found = np.zeros(0)
            if self.sparse_ is not None:
                rows, cols = places(self._sparse)
                found = self._owner().entries(rows, cols.astype(np.int64)).astype(self.sparse_.dtype)
            self._observed = found
        return self._observed

    def _looked_at(self, M: Any, row_features: Any) -> tuple[Result, Callable[[], Engine], Labels | None]:
        """The result, what makes the owner of M, and labels: of the fit, or of new rows."""
        if M is not None:
            engine, prior, rows = self._new_rows(M, row_features)
            if engine.shape == self.low_rank_.shape and self._is_fitted_table(engine):
                return self.result_, lambda: engine, rows  # as after loading a model
            return self._decomposed(engine, prior, rows), lambda: engine, rows
        if row_features is not None:
            raise ValueError("row_features was given without M: they belong to new rows, so pass those, too")
        if self.sparse_ is None:
            raise ValueError(f"there are no outliers. {self.status_.name}: {self.status_.advice}")
        return self.result_, self._owner, self._rows.labels

    def _is_fitted_table(self, engine: Engine) -> bool:
        if np.prod(engine.shape) > constants.BUDGET.memory:  # of so many cells there is no fingerprint
            return False
        self._remember()
        return self.sparse_ is not None and self._fingerprint != "" and (fingerprint_of(engine) == self._fingerprint)

    def _owner(self) -> Engine:
        """An owner of the M that was fitted."""
        if not hasattr(self, "_M"):
            raise ValueError("a saved model does not hold its table: pass the table as M")
        # To move an array to the GPU again takes longer than to look at it where it is.
        return choose(self._M, "auto" if is_engine(self._M) or self.engine == "gpu" else self.engine)

    def _entries(self, rows: Array, cols: Array) -> Array:
        """Observed values of the M that was fitted; of a model without it, those of the outliers."""
        if hasattr(self, "_M") and not is_engine(self._M):
            return self._owner().entries(rows, cols)
        S, n2 = self._sparse, self.low_rank_.shape[1]
        held = places(S)[0] * n2 + S.indices
        order, wanted = np.argsort(held), rows * n2 + cols
        at = np.searchsorted(held, wanted, sorter=order)
        if hasattr(self, "_M") and not np.array_equal(held[order[np.minimum(at, len(held) - 1)]], wanted):
            return self._owner().entries(rows, cols)  # some are no outliers by themselves
        return self._at_outliers()[order[at]]

    @property
    def row_labels_(self) -> Labels | None:
        check_is_fitted(self)
        return self._rows.labels

    @property
    def col_labels_(self) -> Labels | None:
        check_is_fitted(self)
        return self._cols.labels

    @property
    def row_encoder_(self) -> Any:
        check_is_fitted(self)
        return self._rows.encoder

    @property
    def col_encoder_(self) -> Any:
        check_is_fitted(self)
        return self._cols.encoder

    @property
    def _V(self) -> Array:
        """``components_`` as columns, in double precision."""
        return self.components_.T.astype(float, copy=False)


def _text_of(marks: Any) -> Array:
    """Positions in MARKS as text."""
    text: Array = MARKS[np.asarray(to_device(marks, "cpu"))].astype(object)
    return text


def _values_of(engine: Engine) -> Array:
    """All of M, NaN where it is not observed."""
    values = np.empty(engine.shape, engine.dtype)
    for some, piece in in_batches(engine, LARGEST_BLOCK):
        values[some] = piece
    return values


def _lines_table(
    S: csr_array, axis: int, counts: Array, name: str, labels: Labels | None
) -> tuple[dict[str, Array], dict[str, Labels | None]]:
    """Rows or columns with their outliers, and their labels."""
    lines = score_lines(S, axis, counts)
    _, *others = lines.dtype.names or ()
    columns = {name: lines["position"], **{other: lines[other] for other in others}}
    return columns, {name: labels}


def owned(M: Any, engine: str = "auto") -> Given:
    """M as :func:`~irpca.containers.taken`; if it is in chunks, with the engine that reads these, and its labels.

    A dask DataFrame whose columns are called row, column and value, or alike, is a long table. Any other has a column
    for each of M: it is brought into memory, if it has at most 2²⁴ cells.
    """
    if kind_of(M) == "dask" and hasattr(M, "columns"):
        from .engines.distributed.lazy_tables import from_frame

        if (found := from_frame(M, constants.BUDGET.memory)) is not None:
            owner, labels = found
            return Given(choose(owner, engine), Labels.of(labels[0]), Labels.of(labels[1]), "pandas", chunked=True)
    given = taken(M)
    if not given.chunked or is_engine(given.matrix):
        return given
    matrix: Any = choose(given.matrix, engine)
    rows, columns = (None if ids is None else Labels.of(ids) for ids in matrix.source.labels)
    if rows is None and columns is None:
        return replace(given, matrix=matrix)
    return Given(matrix, rows, columns, "pandas", chunked=True)


def in_batches(engine: Engine, most: int) -> Iterator[tuple[slice, Array]]:
    """Which rows, and M there, with about ``most`` entries at a time; what is in the same chunks is read together."""
    (n1, n2), edges = engine.shape, _edges(engine)[0] if engine.dear else None
    step, largest = max(1, most // n2), max(1, LARGEST_BLOCK // n2)
    reads = _steps(n1, min(step, largest)) if edges is None else _joined(edges, max(1, READ_ENTRIES // n2), largest)
    for first, last in pairwise(reads):
        values = engine.block(np.arange(first, last), np.arange(n2))
        for some in gen_batches(len(values), step):
            yield slice(first + some.start, first + some.stop), values[some]


def _edges(engine: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the chunks of M end."""
    return engine.source.row_edges, engine.source.col_edges


def _edges_of(engine: Any, shape: tuple[int, ...], new: tuple[bool, bool]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same of a table of fitted or new rows and columns."""
    rows, cols = (
        _steps(n, int(np.diff(ends).max())) if other else ends
        for n, ends, other in zip(shape, _edges(engine), new, strict=True)
    )
    return rows, cols


def _steps(n: int, step: int) -> tuple[int, ...]:
    return *range(0, n, step), n


def _joined(edges: tuple[int, ...], wanted: int, most: int) -> list[int]:
    """Where to end reads: with chunks, several of which make up to ``wanted`` rows; those of over ``most`` are cut."""
    found = [0]
    for k, end in enumerate(edges[1:], 1):
        if k + 1 < len(edges) and edges[k + 1] - found[-1] <= wanted:
            continue
        found += [*range(found[-1] + most, end, most), end]
    return found


class _Fingerprint:
    """The same for the same table, and for no other."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._found = hashlib.blake2b(repr(tuple(map(int, shape))).encode(), digest_size=16)

    def add(self, rows: Array) -> None:
        values = np.asarray(rows, np.float64)
        self._found.update(np.where(np.isnan(values), np.nan, values + 0.0).tobytes())  # one NaN, no negative zero

    @property
    def text(self) -> str:
        return self._found.hexdigest()


def fingerprint_of(engine: Engine) -> str:
    """That of a table; empty where that would be read for long."""
    if np.prod(engine.shape) > constants.BUDGET.memory:
        return ""
    found = _Fingerprint(engine.shape)
    for _, values in in_batches(engine, LOOK_ENTRIES):
        found.add(values)
    return found.text
