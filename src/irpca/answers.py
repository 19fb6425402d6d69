"""What people ask of a fitted model: expected and repaired values, outliers, rows and columns, a summary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import to_device
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
from .model.entry_scale import EntryScale, Judge
from .model.maps import ColumnMaps
from .model.placement import Placed, Placement
from .outliers import score_lines, standardised
from .result import Result
from .tables import (
    MARKS,
    Answer,
    Candidates,
    Criterion,
    Region,
    bounds_at,
    candidates,
    cast,
    fill,
    find,
    flagged,
    refuse_large,
)
from .wording import few

if TYPE_CHECKING:
    from scipy.sparse import csr_array


LOOK_ENTRIES = 1 << 17  # of the fitted table: what is kept of it shall not take more memory than it
UNKEPT = ("_M", "_device", "_said", "_explaining")  # what of a model is in no file: the table, what features say of it
CACHED_ENTRIES = 1 << 18  # of a table in host memory that are made together
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


@dataclass(frozen=True, eq=False)
class Asked:
    """The table that a question is about: that of the fit, or new rows."""

    result: Result
    owner: Callable[[], Engine]  # makes the owner of M
    rows: Labels | None
    M: Any = None  # the new rows as given; None: the table of the fit
    prior: Array | None = None  # scores that features say of the rows


class Answers:
    """The part of the estimator that reads a fit. What it reads is set, and new rows are placed, by the estimator."""

    engine: str
    result_: Result
    components_: Array
    container_: str
    _rows: Described
    _cols: Described
    _placement: Placement
    _dims: tuple[str, str]
    _observed: Array | None = None  # what M holds at the outliers, once that was asked for
    _fingerprint: str | None = None
    _M: Any = None
    _device: str = "cpu"  # where answers are that are tensors
    _said: Array | None = None  # scores that features say of the rows
    _explaining: tuple[Result, bool, Explainer] | None = None
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
        (scores, V), which = sides, (new[0], new[1])
        like = replace(self._like_features(row_features, col_features), rows=given[0], columns=given[1])
        scale = self._placement.scale(self.result_.scale, scores, V, which, vague)
        region = Region(replace(scale, left=scores, right=V, maps=self._maps_of(len(V), new[1])))
        return self._expected(region, like, return_std, which)

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
        return self._expected(self._region(self.result_), self._like(self._rows.labels), return_std)

    def _expected(self, region: Region, like: Given, std: bool, new: tuple[bool, bool] = (False, False)) -> Any:
        """Expected values and, if asked, standard deviations; of rows and columns that are new or those of the fit."""
        made = self._tables(region, Region.expected, like, self._fitted, new=new)
        if std:
            reads = self.result_.maps is not None and self._M is not None and not any(new)
            made += self._tables(region, Region.deviation, like, self._fitted, reads=reads, new=new)
        return _in_kind(made, like)

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
        region, like = self._region(self.result_), self._like(self._rows.labels)
        answer = partial(Region.interval, reach=region.scale.reach(coverage))
        return _in_kind(self._tables(region, answer, like, self._fitted, (self.components_.dtype,) * 2), like)

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
        asked, cut = self._ask(M, row_features), Criterion(fdr, probability, threshold)
        result, like = asked.result, self._like(asked.rows)
        self._refuse_large(like, asked)
        if return_marks and like.device != "cpu":
            refuse_large(result.L.shape)  # these are an array in host memory
        if kinds is not False and (self.container_ == "torch" or self._lazy(asked) is not None):
            raise ValueError("kinds needs a table in host memory, as an array or a frame")
        S: Any = flagged(result, cut, asked.owner)
        if like.device == "cpu":
            S = to_host(S, f"a list of cells with {cut}")
        region = self._region(result, S=S, columns=np.arange(result.L.shape[1]))
        dtypes = asked.owner().dtype, self.components_.dtype if return_std else None, np.int8 if return_marks else None
        *made, marks = self._tables(region, partial(Region.repaired, std=return_std), like, asked, dtypes, reads=True)
        if kinds is not False:
            at = places(S)[0], places(S)[1].astype(np.int64)
            cells = cells_of(result, *at, asked.owner().entries(*at))
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

    def _tensor(self, asked: Asked) -> Any:
        """M, if it is a tensor on the device of the answers; else None."""
        M = self._M if asked.M is None else asked.M
        return taken(M).matrix if kind_of(M) == "torch" and device_of(M) == self._device != "cpu" else None

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
        if flag(explain, "explain") and self.container_ == "torch":
            raise ValueError("tensors hold no sentences: leave explain=True out, and ask explain(row, column)")
        asked = self._ask(M, row_features)
        columns = self._cells(asked, Criterion(fdr, probability, threshold), most)
        if explain:
            found = self._explanations(asked, columns["row"], columns["column"])
            columns["why"] = np.array([one.why for one in found], object)
        return listing(columns, {"row": asked.rows, "column": self._cols.labels}, self.container_, self._device)

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
        asked = self._ask(M, row_features)
        result, sides = asked.result, ((row, asked.rows, "row"), (column, self._cols.labels, "column"))
        i, j = (np.array([position(*side[:2], n, side[2])]) for side, n in zip(sides, result.L.shape, strict=True))
        if result.known is not None and not (result.known[0][i] & result.known[1][j])[0]:
            raise ValueError(
                f"nothing is known of row {row!r} and column {column!r}: one of them has too few cells, and no features"
            )
        return next(self._explanations(asked, i, j))

    def _explanations(self, asked: Asked, rows: Array, cols: Array) -> Iterator[Explanation]:
        """Explanations of some cells."""
        result, key = asked.result, (asked.result, asked.prior is None)
        if result.failed:
            raise ValueError(f"there is nothing to explain. {result.status.name}: {result.status.advice}")
        if result.calibration is None and result.noise != 0:
            raise ValueError("explain needs a model of the noise, and this solver has none: use solver='irpca'")
        if self._explaining is not None and self._explaining[:2] == key:
            explainer = self._explaining[2]
        else:
            explainer = Explainer(result, self._placement, self._scale_of(result), asked.owner(), asked.prior)
        if result is self.result_:  # new rows are not kept
            self._explaining = *key, explainer
        names = rows.tolist() if asked.rows is None else list(asked.rows.take(rows))
        columns = range(result.L.shape[1]) if self._cols.labels is None else list(self._cols.labels)
        return explainer.explain(rows, cols, (names, columns))

    def _cells(self, asked: Asked, cut: Criterion, most: int | None = None, kinds: bool = True) -> dict[str, Any]:
        """Outliers by their positions, the most certain first."""
        result, dtype = asked.result, self.components_.dtype
        S: Any = candidates(result, cut, asked.owner)
        if self._device == "cpu":
            S = to_host(S, f"a list of cells with {cut}")
        advice = "ask for fewer with most=, or write them to files, with irpca.solve(…, outliers_to=…)"
        with _fitting(self._device, f"a list of {S.nnz:,} outliers", advice):
            found = Candidates(S, result.judge, self._scale_of(result))
            chosen, scale = found.choose(cut, most), found.scale
            assert scale is not None
            at, difference = places(S, chosen.at), found.difference(chosen.at)
            observed, latent = self._observed_at(asked, at, on_device(S)), scale.latent_at(*at)
            if scale.maps is None:
                expected, std = latent, scale.std_at(*at)
            else:
                expected, std = scale.maps.expected(latent, at[1]), abs(difference) / chosen.score
            lower, upper = bounds_at(scale, *at)
            columns = {
                "row": at[0],
                "column": at[1],
                "observed": cast(observed, S.dtype),
                "expected": cast(expected, S.dtype),
                "difference": cast(difference, S.dtype),
                "std": cast(std, dtype),
                "lower": cast(lower, dtype),
                "upper": cast(upper, dtype),
                "score": chosen.score,
                "probability": chosen.probability,
            }
            if kinds and self.container_ != "torch":
                columns["kind"] = names_at(result, *at, observed)
            return columns

    def _observed_at(self, asked: Asked, at: tuple[Any, Any], there: bool) -> Any:
        """M at some cells, whose places are on the device of M or in host memory."""
        if there:
            from .engines.gpu.tensor_tables import entries_of

            return entries_of(self._tensor(asked), asked.owner, *at)
        return self._entries(*at) if asked.M is None else asked.owner().entries(*at)

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
            check_is_fitted(self)
            return self._outlier_lines(0, self._rows.labels)
        engine, prior, labels = self._new_rows(M, row_features)
        if prior is None:
            raise ValueError("give row_features, too; without them, outliers(M) says what is wrong with new rows")
        if len(vague := np.flatnonzero(np.isnan(prior).any(axis=1))):
            shown = few(vague.tolist() if labels is None else labels.take(vague))
            raise ValueError(f"row_features of {shown} are missing or were not in the fit: leave these rows out")
        certain = Placed(prior, np.zeros((len(prior), len(self._placement.turn))), np.ones(len(prior)))
        L = LowRank.from_product(prior, self._V)
        judge = self._judge(certain, self.result_.zeta, L)
        S, _ = self._latent(engine).corruption(L, judge.candidates)
        return self._lines(0, judge.outliers(S), judge, engine.counts[0], labels)

    def outlier_columns(self) -> Any:
        """How many outliers each column has, the most surprising first: which sensor is broken?"""
        check_is_fitted(self)
        return self._outlier_lines(1, self._cols.labels)

    def _outlier_lines(self, axis: int, labels: Labels | None) -> Any:
        """Rows (0) or columns of the fit with their outliers."""
        self._refuse_failed()
        return self._lines(axis, self.result_.residuals, self.result_.judge, self.result_.counts[axis], labels)

    def _lines(self, axis: int, S: Any, judge: Judge, counts: Array, labels: Labels | None) -> Any:
        lines = score_lines(standardised(to_host(S, "this answer"), judge), axis, counts)
        name, (_, *others) = ("row", "column")[axis], lines.dtype.names or ()
        columns = {name: lines["position"], **{other: lines[other] for other in others}}
        return listing(columns, {name: labels}, self.container_, self._device)

    def summary(self) -> str:
        """Whether to use it, what was found, what was chosen and why, what to check, the clearest outliers."""
        check_is_fitted(self)
        lines = [self.result_.summary(texts(self._cols.labels, self.result_.L.shape[1]))]
        if self.result_.S is not None and self.result_.S.nnz:
            found = self._cells(self._fitted, Criterion(), 5)
            sides = ((self._rows.labels, found["row"].tolist()), (self._cols.labels, found["column"].tolist()))
            names = [at if labels is None else labels.take(at).texts() for labels, at in sides]
            cells = zip(*names, found["observed"].tolist(), found["expected"].tolist(), strict=True)
            lines.append("Clearest outliers (row, column):")
            lines += [f"  {row}, {col}: {seen:.4g} observed, {value:.4g} expected" for row, col, seen, value in cells]
        for side in (self._rows, self._cols):
            if side.encoder is not None:
                lines += [f"{side.name}, as encoded:", *(f"  - {note}" for note in side.encoder.notes_)]
        return "\n".join(lines)

    @property
    def _sparse(self) -> csr_array:
        """S in host memory."""
        self._refuse_failed()
        return to_host(self.result_.S, "this answer")

    def _refuse_failed(self) -> None:
        if self.result_.S is None:
            raise ValueError(f"there are no outliers. {self.result_.status.name}: {self.result_.status.advice}")

    def _latent(self, engine: Engine) -> Engine:
        """The owner of the latent values of a table, where columns are mapped; else of the table itself."""
        return engine if self.result_.maps is None else engine.mapped(self.result_.maps)

    def _known(self, axis: int) -> Array:
        """Of which rows (0), or columns, of the fit something is known."""
        known = self.result_.known
        return np.ones(self.result_.L.shape[axis], bool) if known is None else known[axis]

    def _fitted_factor(self, axis: int) -> Array:
        """Scores of the rows (0), or components at the columns, of the fit; NaN where nothing is known."""
        left, right = self.result_.L.thin()
        factor, known = (left @ (right.T @ self._V), self._V)[axis], self._known(axis)
        return factor if known.all() else np.where(known[:, None], factor, np.nan)

    def _like(self, rows: Labels | None) -> Given:
        """What answers look like: the container of M, and its columns."""
        return Given(None, rows, self._cols.labels, self.container_, self._dims, device=self._device)

    def _lazy(self, asked: Asked) -> Any:
        """The engine, if tables are to be computed chunk by chunk as M itself is: a dask array. Else None."""
        if self.container_ not in ("numpy", "xarray"):
            return None
        engine: Any = self._M if asked.M is None else asked.owner()
        chunked = is_engine(engine) and engine.source is not None
        return engine if chunked and engine.source.name == "dask array" else None

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

    def _refuse_large(self, like: Given, asked: Asked) -> None:
        if like.device == "cpu" and self._lazy(asked) is None:
            refuse_large(asked.result.L.shape)

    def _tables(
        self,
        region: Region,
        answer: Answer,
        like: Given,
        asked: Asked,
        dtypes: tuple[Any, ...] = (),  # None for what is not wanted; empty: that of the model
        *,
        reads: bool = False,  # whether the answer needs M
        new: tuple[bool, bool] = (False, False),  # whether rows, and columns, are not those of M
    ) -> list[Any]:
        """What a region answers: chunk by chunk if M is a dask array, as tensors if it is one on a device."""
        dtypes = dtypes or (self.components_.dtype,)
        (n1, n2), engine = (len(region.scale.rows), len(region.scale.cols)), self._lazy(asked)
        if engine is not None:
            from .engines.distributed.lazy_tables import lazily

            ends = (engine.source.row_edges, engine.source.col_edges)
            rows, cols = (
                _steps(n, int(np.diff(edges).max())) if other else edges
                for n, edges, other in zip((n1, n2), ends, new, strict=True)
            )
            return lazily(region, answer, dtypes, (rows, cols), engine.source if reads else None)
        if not any(new):
            self._refuse_large(like, asked)
        most = CACHED_ENTRIES if like.device == "cpu" else LARGEST_BLOCK
        blocks: Iterable[tuple[slice, Any]] = ((some, None) for some in gen_batches(n1, max(1, most // n2)))
        tensor = self._tensor(asked) if reads else None
        if reads and tensor is None:
            blocks = in_batches(asked.owner(), most)
        if like.device == "cpu":
            return fill(region, answer, dtypes, blocks)
        from .engines.gpu.tensor_tables import moved, rows_of

        with _fitting(like.device, f"a table of {n1} × {n2} values", "take some cells, with low_rank_.entries"):
            if tensor is not None:
                rows_there = rows_of(tensor, like.device)
                blocks = ((some, rows_there(some)) for some, _ in blocks)
            else:
                blocks = ((some, None if M is None else moved(M, like.device)) for some, M in blocks)
            return fill(region.converted(lambda A: moved(A, like.device)), answer, dtypes, blocks)

    def _scale_of(self, result: Result) -> EntryScale:
        """How far clean cells of a result scatter, and about what; without a model of the noise, by its size."""
        (left, right), scale = result.L.thin(), result.scale
        if scale is None:
            scores = left @ (right.T @ self._V)
            scale = self._placement.scale(None, scores, self._V, (result is not self.result_, False))
        return replace(scale, left=left, right=right)

    def _region(self, result: Result, **more: Any) -> Region:
        """All that is known of the cells of a result."""
        scale = self._scale_of(result)
        if result.known is not None:
            rows, cols = (np.where(side, 1.0, np.nan) for side in result.known)
            left, right = scale.left * rows[:, None], scale.right * cols[:, None]
            scale = replace(scale, rows=scale.rows * rows, cols=scale.cols * cols, left=left, right=right)
        return Region(scale, **more)

    def _remember(self) -> None:
        """Keep of M what answers need when it is gone: its outliers, and how to recognise it."""
        if self._M is None:
            return
        self._at_outliers()
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(choose(self._M))

    def _kept(self) -> dict[str, Any]:
        """The attributes of a model without its table, for files: outliers are in host memory, answers on the CPU."""
        held = {name: value for name, value in vars(self).items() if name not in UNKEPT}
        if not hasattr(self, "result_"):  # not fitted
            return held
        result = self.result_.in_host_memory("a file of the model")
        return held | {"sparse_": result.S, "result_": result}

    def _at_outliers(self) -> Array:
        """The outliers of the fit as M has them, in the order of S; found when they are needed."""
        if self._observed is None:
            found = np.zeros(0)
            if self.result_.S is not None:
                rows, cols = places(self._sparse)
                found = self._owner().entries(rows, cols.astype(np.int64)).astype(self.result_.S.dtype)
            self._observed = found
        return self._observed

    @property
    def _fitted(self) -> Asked:
        """The table of the fit."""
        return Asked(self.result_, self._owner, self._rows.labels, prior=self._said)

    def _ask(self, M: Any, row_features: Any) -> Asked:
        """The table of the fit, or new rows."""
        if M is None:
            if row_features is not None:
                raise ValueError("row_features was given without M: they belong to new rows, so pass those, too")
            self._refuse_failed()
            return self._fitted
        engine, prior, rows = self._new_rows(M, row_features)
        same = self.result_.S is not None and engine.shape == self.result_.L.shape
        if same and (found := fingerprint_of(engine)):  # as after loading a model
            self._remember()
            if found == self._fingerprint:
                return Asked(self.result_, lambda: engine, rows, M, prior)
        return Asked(self._decomposed(engine, prior, rows), lambda: engine, rows, M, prior)

    def _owner(self) -> Engine:
        """An owner of the M that was fitted."""
        if self._M is None:
            raise ValueError("a saved model does not hold its table: pass the table as M")
        # To move an array to the GPU again takes longer than to look at it where it is.
        return choose(self._M, "auto" if is_engine(self._M) or self.engine == "gpu" else self.engine)

    def _entries(self, rows: Array, cols: Array) -> Array:
        """Observed values of the M that was fitted; of a model without it, those of the outliers."""
        if self._M is not None and not is_engine(self._M):
            return self._owner().entries(rows, cols)
        at = find(self._sparse, rows, cols)
        if (at < 0).any():
            return self._owner().entries(rows, cols)
        return self._at_outliers()[at]

    @property
    def _V(self) -> Array:
        """``components_`` as columns, in double precision."""
        return self.components_.T.astype(float, copy=False)


def _text_of(marks: Any) -> Array:
    """Positions in MARKS as text."""
    text: Array = MARKS[np.asarray(to_device(marks, "cpu"))].astype(object)
    return text


@contextmanager
def _fitting(device: str, what: str, advice: str) -> Iterator[None]:
    """Say what does not fit into the memory of a device, and what to do."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # of torch, which need not be there
            raise
        raise MemoryError(f"{what} does not fit into the memory that is free on {device}: {advice}") from error


def _in_kind(made: list[Any], like: Given) -> Any:
    """A table, or several, in the kind of M."""
    found = tuple(in_kind(table, like) for table in made)
    return found if len(found) > 1 else found[0]


def owned(M: Any, engine: str = "auto") -> Given:
    """M as :func:`~irpca.containers.taken`; if it is in chunks, with the engine that reads these, and its labels."""
    if kind_of(M) == "dask" and hasattr(M, "columns"):
        from .engines.distributed.lazy_tables import opened

        M = opened(M, constants.BUDGET.memory)
    given = Given(M, chunked=True) if is_engine(M) else taken(M)
    if not given.chunked or isinstance(M, Given):
        return given
    matrix: Any = choose(given.matrix, engine)
    rows, columns = (None if ids is None else Labels.of(ids) for ids in matrix.source.labels)
    if rows is None and columns is None:
        return replace(given, matrix=matrix)
    return Given(matrix, rows, columns, "pandas", chunked=True)


def in_batches(engine: Engine, most: int) -> Iterator[tuple[slice, Array]]:
    """Which rows, and M there, with about ``most`` entries at a time; what is in the same chunks is read together."""
    n1, n2 = engine.shape
    step, largest = max(1, most // n2), max(1, LARGEST_BLOCK // n2)
    if engine.dear:
        reads = _joined(engine.source.row_edges, max(1, READ_ENTRIES // n2), largest)
    else:
        reads = _steps(n1, min(step, largest))
    for first, last in pairwise(reads):
        values = engine.block(np.arange(first, last), np.arange(n2))
        for some in gen_batches(len(values), step):
            yield slice(first + some.start, first + some.stop), values[some]


def _steps(n: int, step: int) -> tuple[int, ...]:
    return *range(0, n, step), n


def _joined(edges: tuple[int, ...], wanted: int, most: int) -> tuple[int, ...]:
    """Where to end reads: with chunks, several of which make up to ``wanted`` rows; those of over ``most`` are cut."""
    found = [0]
    for k, end in enumerate(edges[1:], 1):
        if k + 1 < len(edges) and edges[k + 1] - found[-1] <= wanted:
            continue
        found += [*range(found[-1] + most, end, most), end]
    return tuple(found)


def fingerprint_of(engine: Engine) -> str:
    """The same for the same table, and for no other; empty where that would be read for long."""
    if np.prod(engine.shape) > constants.BUDGET.memory:
        return ""
    found = hashlib.blake2b(repr(tuple(map(int, engine.shape))).encode(), digest_size=16)
    for _, rows in in_batches(engine, LOOK_ENTRIES):
        values = np.asarray(rows, np.float64)
        found.update(np.where(np.isnan(values), np.nan, values + 0.0).tobytes())  # one NaN, no negative zero
    return found.hexdigest()
