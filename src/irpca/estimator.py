"""The scikit-learn interface: checks input once, in the words of its users, and leaves the rest to solve()."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted, validate_data

from .answers import UNKEPT, Answers, in_batches, owned
from .arguments import flag, naming, number, whole_or_auto
from .arrays import as_numpy, is_tensor
from .callbacks import Callback, Progress, TimeBudget, listed
from .constants import UNSEEN_FACTOR
from .containers import Given, device_of, kind_of, tensor_of
from .described import Described
from .engines import choose, is_engine, observed
from .engines.base import Engine, title
from .features import Features
from .labels import Labels, match
from .loop import explained, left_over, solve
from .lowrank import Array, LowRank
from .mistakes import mistakes_of
from .model.entry_scale import Judge
from .model.kinds import ColumnError
from .model.placement import Placed, Placement, longest
from .result import Doubt, Expected, History, Result, Status, about_lines, grouped
from .sample import check_scale, rounding_floor
from .solvers import SOLVERS, solver_named
from .verdict import labelled as with_labels
from .wording import count, few

CHUNK_ENTRIES = 1 << 21  # of new rows that are looked at together
FOLDS = 5  # score() predicts each fifth of the columns from the others
STRANGE = 0.1  # new rows are doubtful if their share of outliers exceeds that of the fit by this
ROUNDING = 1e-10  # of the energy of the scores: what features leave unexplained, if that is rounding


def _takes_M_by_name(cls: type[InductiveRobustPCA]) -> type[InductiveRobustPCA]:
    """``transform(M=…)`` works, too: what scikit-learn wraps for ``set_output`` takes its table by position only."""

    def by_name(method: Any) -> Any:
        @wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = (kwargs.pop("M"),) if not args and "M" in kwargs else args
            return method(self, *given, **kwargs)

        return called

    for name in ("transform", "fit_transform"):
        setattr(cls, name, by_name(getattr(cls, name)))
    return cls


class DoNotUseWarning(ConvergenceWarning):
    """A fit whose answers are not to be used: it did not converge, or the checks of what it found say so."""


@_takes_M_by_name
class InductiveRobustPCA(Answers, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Finds the wrong cells of a table M, says what they should be, and fills the missing ones.

    M is split into expected values (L), outliers (S) and noise. L has few components: patterns that rows share.
    Features of rows or columns help, and are optional: ``L = F1 @ W @ F2.T``, and further components where features do
    not explain all. NaN is a missing cell. See :func:`irpca.solve` for the same as a function.

    Parameters
    ----------
    rank : int or "auto"
        Number of components, the patterns that rows share; with features, of those that features explain. Lower:
        smoother, and more outliers. "auto": as many as predict held-out cells best.
    extra_rank : int or "auto"
        Number of components beside those that features explain, for solvers that allow any. "auto": as many as
        held-out entries call for, often none. Without features this means nothing.
    col_features : array, frame of n2 rows, "index" or None
        F2, see :meth:`fit`. It may be given there instead; but scikit-learn's cross-validation cuts whatever is as long
        as M has rows, with a square M these features too, so there they belong here.
    columns : "auto", "as they are", or a dict
        What the columns of M hold. "auto": prices and other skewed numbers, counts, scores, yes and no, values piled up
        at zero or at a limit are found, and fitted as what they are: columns of different quantities unless held-out
        cells are clearly predicted worse then, others only if they are clearly predicted better; see
        :doc:`/guides/columns`. A dict names kinds by column (its label, or its position where there are no labels):
        "auto", "as it is", "logarithm", "number" (with a map, if any helps) or "ordered" (few ordered values). Without
        effect where the table is exact, where ``noise`` is given, and for solvers other than "irpca" and "bayes".
    solver : str
        Any of those of :func:`irpca.solve`.
    engine : {"auto", "memory", "gpu", "distributed", "reference"}
        How M is read; "auto" chooses by its type.
    tol, max_iter : float, int
        Stop at this relative change of the expected values, or after so many iterations of the last fit.
    solver_options : dict or None
        Passed to the solver, such as ``{"noise": 0.1}``.
    callbacks : callable, several, or None
        Called after each iteration; see :mod:`irpca.callbacks`.
    verbose : bool
        Show what is being done, and about how long it will take, on the standard error stream.
    time_budget : float or None
        Seconds after which to stop and keep the best fit so far, with the status STOPPED.
    random_state : int, Generator or None

    Attributes
    ----------
    low_rank_ : LowRank
        L; ``low_rank_.dense()`` makes it a matrix. Its factors are NumPy arrays in host memory, whatever M is. Where
        columns are mapped, the matrix is in units of M, the factors are of latent values.
    sparse_ : csr_array of shape (n1, n2), or DeviceSparse
        S, the outliers; :meth:`outliers` makes it a table. Of a tensor on a GPU with more than 2²⁴ cells it stays
        there, see :class:`irpca.Result`.
    components_ : array of shape (r, n2)
        Orthonormal directions of the rows of L, the strongest first, the largest entry of each positive.
    singular_values_ : array of shape (r,)
        Those of L.
    W_, rank_, noise_, corruption_, zeta_, explained_, shares_, status_, converged_, n_iter_, history_
        As in :class:`irpca.Result`.
    result_ : Result
        What :func:`irpca.solve` returned; doubts name labels, where M has some.
    row_labels_, col_labels_ : Labels or None
        Of the rows and columns of M, if it has some.
    row_encoder_, col_encoder_ : Encoder or None
        How features were made of frames with text, dates or gaps; see :class:`irpca.features.Encoder`.
    container_ : str
        The library of M, in which answers come back: "numpy", "pandas", "polars", "pyarrow", "xarray" or "torch". Of
        arrays in chunks "numpy", of long tables "pandas".
    n_features_in_, feature_names_in_ : int, array
        Number of columns of M, and their names if they are strings.

    Notes
    -----
    Where columns are mapped, ``W_``, ``components_``, ``singular_values_``, ``rank_``, ``noise_``, ``zeta_``,
    ``explained_`` and ``shares_`` are about latent values, in which every column has about the spread 1.

    The model keeps a reference to M, for :meth:`repaired` and to list more outliers later; a tensor on a GPU takes
    memory there as long as the model lives. M is neither pickled nor saved with the model. Of an M in chunks it keeps
    how to read it, and reads again what an answer needs.

    Examples
    --------
    >>> import irpca
    >>> problem = irpca.datasets.make_problem(300, 200, d1=8, d2=6, rank=2, corruption=0.2)
    >>> M, F1, F2 = problem.M, problem.F1, problem.F2
    >>> model = irpca.InductiveRobustPCA().fit(M[:280], row_features=F1[:280], col_features=F2)
    >>> model.rank_, model.converged_
    (2, True)

    Twenty rows that were never seen, from their features alone:

    >>> L_new = model.predict(row_features=F1[280:])
    >>> bool(abs(L_new - problem.L[280:]).max() < 1e-10 * abs(problem.L).max())
    True
    """

    # M is data, not something to be routed.
    __metadata_request__fit: ClassVar = {"M": UNUSED, "resume": UNUSED}
    __metadata_request__transform: ClassVar = {"M": UNUSED}
    __metadata_request__inverse_transform: ClassVar = {"scores": UNUSED}
    __metadata_request__score: ClassVar = {"M": UNUSED}

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        extra_rank: int | str = "auto",
        col_features: Any = None,
        columns: str | Mapping[Any, str] = "auto",
        solver: str = "irpca",
        engine: str = "auto",
        tol: float = 1e-10,
        max_iter: int = 100,
        solver_options: dict[str, Any] | None = None,
        callbacks: Callback | Iterable[Callback] | None = None,
        verbose: bool = False,
        time_budget: float | None = None,
        random_state: int | np.random.Generator | None = 0,
    ) -> None:
        self.rank = rank
        self.extra_rank = extra_rank
        self.col_features = col_features
        self.columns = columns
        self.solver = solver
        self.engine = engine
        self.tol = tol
        self.max_iter = max_iter
        self.solver_options = solver_options
        self.callbacks = callbacks
        self.verbose = verbose
        self.time_budget = time_budget
        self.random_state = random_state

    def fit(
        self,
        M: Any,
        y: Any = None,
        *,
        row_features: Any = None,
        col_features: Any = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> InductiveRobustPCA:
        """Fit to M; then see :meth:`summary`, :meth:`outliers` and :meth:`repaired`.

        Parameters
        ----------
        M : table of shape (n1, n2)
            An array, list of lists, masked or sparse array, :class:`~irpca.LongTable`, a frame of pandas, polars,
            pyarrow or dask, a two-dimensional xarray or torch tensor. float32 and float64 arrays are used as they are,
            memory-mapped files too; integers become float64. NaN and what is masked is missing; the stored entries of a
            sparse array are the observed ones, zeros too. Of a torch tensor, dense or ``sparse_csr``, gradients are not
            followed; one on a CUDA device stays there, and so do answers, see :doc:`/guides/gpu`. Of a frame without an
            index (polars, pyarrow) the first column labels the rows, if it holds text or dates.

            Or a table in chunks, that is never in memory as a whole: a dask or zarr array, a zarr group of one matrix,
            the path of a ``.zarr`` store, of a folder of ``.npy`` files or of a Parquet table of row, column and value,
            or a dask DataFrame with columns of these names; see :doc:`/guides/huge-data`. Rows and columns of such a
            long table are sorted by their ids, and features belong to them in this order. A dask DataFrame with other
            columns has one for each column of M; it is brought into memory if it has at most 2²⁴ cells.
        y : ignored
        row_features, col_features : array or frame of n1 and n2 rows, "index", or None
            F1 and F2: one row for each row, and for each column, of M. Arrays and frames of numbers are used as they
            are; tensors, and arrays with ``__dlpack__``, on any device are brought into host memory. Frames with text,
            categories, dates or gaps are encoded, see :class:`irpca.features.Encoder`; "index" makes features from the
            labels of M, dates or numbers. None: nothing is known about that side.
        resume : path or None
            Go on from a file that the callback :func:`irpca.callbacks.checkpoint` made in an earlier fit with the same
            parameters and data; see :func:`irpca.solve`.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C. If a fit was there by then, the model keeps it, with the status INTERRUPTED.
        """
        given = self._owned(M)
        matrix = self._matrix(given, reset=True)
        options = self._options(given.columns, matrix.shape[1])
        col_features = self._chosen_col_features(col_features, matrix.shape)
        rows = Described.of(row_features, "row_features", "rows", given.rows)
        cols = Described.of(col_features, "col_features", "columns", given.columns)
        described = ((rows, row_features), (cols, col_features))
        vague = any(F is not None and side.vague(F) is not None for side, F in described)
        if vague and "imperfect" in SOLVERS[self.solver].options and self.extra_rank != 0:
            options["imperfect"] = True
        F1 = Features.of(rows.array(row_features), matrix.shape[0], "row_features", "rows")
        F2 = Features.of(cols.array(col_features), matrix.shape[1], "col_features", "columns")
        asked = {name: getattr(self, name) for name in ("rank", "solver", "engine", "tol", "max_iter", "random_state")}
        try:
            result = solve(matrix, F1, F2, callbacks=self._callbacks(), resume=resume, **asked, **options)
        except ColumnError as error:  # knows columns by their positions
            column = error.column if given.columns is None else list(given.columns)[error.column]
            raise ColumnError(column, error.wanted, error.why) from None
        self._M, self.container_, self._dims = matrix, given.container, given.dims
        U, s, V = _principal(result.L)
        if not SOLVERS[self.solver].features:  # L need not lie in their span, so they predict nothing
            F1, F2 = Features.identity(F1.n), Features.identity(F2.n)
        said = _said(result, F1, F2, U * s, V)
        self._rows, self._cols = replace(rows, expected=said[0]), replace(cols, expected=said[1])
        expected = [None if say is None or F.F is None else say(F.F) for say, F in zip(said, (F1, F2), strict=True)]
        self._placement = Placement.of(result, U * s, V, (expected[0], expected[1]))
        self._keep(replace(result, doubts=with_labels(result.doubts, given.rows, given.columns), fit=None))
        self._said, self._device = expected[0], given.device
        self._fingerprint = self._observed = self._explaining = None
        if given.chunked:
            matrix.forget()
        dtype = np.dtype(float) if result.S is None else result.S.dtype
        self.components_, self.singular_values_ = V.T.astype(dtype), s.astype(dtype)
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt  # whoever fits many models shall stop, too
        if result.usable == "do not use":
            first = "do not use this fit" if result.converged else f"{result.status.name}: {result.status.advice}"
            text = "\n  ".join([first, *(text for _, text in grouped(self.result_.doubts))])
            warnings.warn(text, DoNotUseWarning, stacklevel=2)
        return self

    def _callbacks(self) -> list[Callback]:
        callbacks = listed(self.callbacks)
        if self.time_budget is not None:
            callbacks.append(TimeBudget(number(self.time_budget, "time_budget")))
        return [*callbacks, Progress()] if flag(self.verbose, "verbose") else callbacks

    def fit_transform(self, M: Any, y: Any = None, *, row_features: Any = None, col_features: Any = None) -> Any:
        """``fit``, then ``transform`` of the same M with the same ``row_features``."""
        if kind_of(M) in ("dask", "zarr", "xarray") or isinstance(M, (str, Path)):  # opened, or computed, once
            given = self._owned(M)
            M = given if given.chunked else given.matrix if kind_of(M) == "dask" else M
        self.fit(M, y, row_features=row_features, col_features=col_features)
        return self.transform(M, row_features=None if self._rows.expected is None else row_features)

    def transform(self, M: Any, *, row_features: Any = None) -> Any:
        """Scores of rows, r numbers each, as PCA has them; for a cleaned table use :meth:`repaired`.

        ``inverse_transform(scores)`` are the expected values of these rows, in units of M; where columns are mapped,
        scores are of latent values. Nothing is fitted again.

        Parameters
        ----------
        M : array, DataFrame, sparse array or LongTable of shape (m, n2)
            It may have holes, as in :meth:`fit`.
        row_features : array or DataFrame of shape (m, d1), or None
            If given, scores start from what the features say and are corrected by the row's own cells: more cells,
            more correction, unless features explain all. If not, a row is expected to be like those of the fit.
            Outliers have no weight.

        Returns
        -------
        array of shape (m, r), or what ``set_output`` asks for
            Of tensors, too, it is an array in host memory: it is small.
        """
        engine, prior, _ = self._new_rows(M, row_features)
        return self._scores(self._latent(engine), prior).scores.astype(engine.dtype, copy=False)

    def inverse_transform(self, scores: Any) -> Any:
        """Rows of L, m×n2, in units of M, from their scores, m×r; of a tensor as one, on its device."""
        check_is_fitted(self)
        if is_tensor(scores):
            return tensor_of(self.inverse_transform(as_numpy(scores, "scores")), device_of(scores))
        with naming("scores"):
            scores = check_array(scores, dtype=[np.float64, np.float32], input_name="scores")
        if scores.shape[1] != self.rank_:
            raise ValueError(
                f"scores has {scores.shape[1]} columns, this model {self.rank_} components: pass what transform returns"
            )
        rows, maps = scores @ self.components_.astype(scores.dtype, copy=False), self.result_.maps
        return rows if maps is None else maps.expected(rows).astype(scores.dtype, copy=False)

    def decompose(self, M: Any, *, row_features: Any = None) -> Result:
        """The fitted model applied to new rows: expected values, outliers and doubts in one Result.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`
        """
        engine, prior, rows = self._new_rows(M, row_features)
        return self._decomposed(engine, prior, rows)

    def _decomposed(self, engine: Engine, prior: Array | None, rows: Labels | None) -> Result:
        started, table, engine = time.perf_counter(), engine, self._latent(engine)
        found, W = self._scores(engine, prior), self.W_
        if prior is None:
            W = None if self._cols.expected is None else found.scores @ self._cols.expected.coefficients.T
        # New rows may be larger than the old, or in lower precision: their rounding is no gross error.
        rounding = rounding_floor(engine.dtype, longest(found.scores) * longest(self._V))
        zeta = max(self.zeta_, rounding)
        L = LowRank.from_product(found.scores, self._V)
        described = np.zeros(L.shape[0], bool) if prior is None else ~np.isnan(prior).any(axis=1)
        judge = self._judge(found, zeta, L, (described | (engine.counts[0] > 0), self._known(1)))
        S, trim = engine.corruption(L, judge.candidates)
        S = judge.outliers(S)
        corruption = S.nnz / max(trim.kept + trim.trimmed, 1)
        decomposed = Result(
            L=L,
            S=S,
            W=W,
            rank=L.rank,
            noise=self.noise_,
            corruption=corruption,
            zeta=zeta,
            residual=left_over(trim, self.noise_),
            explained=explained(L, left_over(trim, self.noise_)),
            status=self.status_ if self.status_ in (Status.SATURATED, Status.DIVERGED) else Status.CONVERGED,
            history=History(),
            choices=(),
            doubts=tuple(self._doubts(engine, prior, corruption)),
            solver=self.solver,
            engine=title(engine),
            reads=engine.reads,
            seconds=time.perf_counter() - started,
            counts=engine.counts,
            known=judge.known,
            scale=judge.scale,
            calibration=self.result_.calibration,
        )
        decomposed = decomposed.in_units_of_M()
        mistakes, doubts = mistakes_of(decomposed, table)
        doubts = with_labels(decomposed.doubts + doubts, rows, self._cols.labels)
        return replace(decomposed, mistakes=mistakes, doubts=doubts)

    def _doubts(self, engine: Engine, prior: Array | None, corruption: float) -> Iterator[Doubt]:
        """What to doubt about new rows."""
        short = np.flatnonzero(engine.counts[0] < self.rank_)
        if len(short) and (prior is None or not self._explained_by_features):
            yield about_lines(
                "few-entries",
                0,
                short,
                f"{count(len(short), 'row has', 'rows have')} fewer than {self.rank_} values: {{lines}}. "
                "What is expected there rests on other rows more than on their own cells: do not rely on it",
            )
        if corruption > self.corruption_ + STRANGE:
            yield Doubt(
                "unlike-fit",
                f"{corruption:.1%} of the cells are outliers, {self.corruption_:.1%} were in the fit: the model may "
                "not hold for these rows. Look at them, and if they are right, fit again with them",
            )

    def score(self, M: Any, y: Any = None, *, row_features: Any = None, sample_weight: Any = None) -> float:
        """How well rows are predicted: minus the mean logarithm of ``|M − L|``, so higher is better.

        The logarithm makes it robust: a gross error counts about the same for every model, however large it
        is. ``exp(-score)`` is a typical error, in the units of M; where columns are mapped, of latent values.

        No entry is predicted from itself: with ``row_features`` that tell all of L it is predicted from those alone,
        else from other columns of its row, four fifths of them. So a rank that is too high does not score better. What
        is not observed does not count.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`
        y : ignored
        sample_weight : array of shape (m,), or None
            Weights of rows.
        """
        engine, prior, _ = self._new_rows(M, row_features)
        engine = self._latent(engine)
        typical = float(np.linalg.norm(self.singular_values_)) / np.sqrt(np.prod(self.low_rank_.shape))
        sums, counts = np.empty(engine.shape[0]), np.empty(engine.shape[0])
        for rows, piece in in_batches(engine, CHUNK_ENTRIES):
            expected = self._held_out(piece, prior if prior is None else prior[rows])
            # Nothing is explained better than to rounding, not even zeros by a row of zeros.
            largest = np.abs(expected).max(axis=1, keepdims=True, initial=typical)
            rounding = np.maximum(rounding_floor(engine.dtype, 1.0) * largest, np.finfo(float).tiny)
            counts[rows] = (~np.isnan(piece)).sum(axis=1)
            sums[rows] = np.nansum(np.log(np.maximum(np.abs(piece - expected), rounding)), axis=1)
        weights = np.ones(len(sums)) if sample_weight is None else _weights_of_rows(sample_weight, len(sums))
        # Models that differ by rounding alone shall tie, so that a search takes the first of them.
        return round(-float(weights @ sums / (weights @ counts)), 6)

    def save(self, path: str | Path) -> None:
        """Write the model to a file that :func:`irpca.load` reads: arrays and text, nothing that is executed.

        M itself is not saved.
        """
        from .persistence import save

        save(self, path)

    def __getstate__(self) -> dict[str, Any]:
        self._remember()
        kept = self._kept()
        return {name: kept.get(name, value) for name, value in super().__getstate__().items() if name not in UNKEPT}

    def _judge(self, found: Placed, zeta: float, L: LowRank, known: tuple[Array, Array] | None = None) -> Judge:
        """Which entries of new rows are outliers: those likely to be, or beyond all that the fit has seen."""
        result = self.result_
        judge = replace(result.judge, limit=zeta, scale=None, known=known)
        if result.scale is None or result.calibration is None or not len(result.calibration.edges):
            return judge
        limit = min(result.calibration.limit, UNSEEN_FACTOR * result.calibration.largest)
        scale = self._placement.scale_of_rows(result.scale, found)
        if result.maps is not None:
            scale = scale.mapped(L, result.maps)
        return replace(judge, limit=limit, scale=scale)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _owned(self, M: Any) -> Given:
        if not isinstance(self.engine, str):
            raise ValueError("engine must be a name here: an Engine owns one matrix; pass it to irpca.solve")
        return owned(M, self.engine)

    def _matrix(self, given: Given, reset: bool = False) -> Any:
        """M as solve() takes it, its columns checked: no copy and no other precision if it is a float array already."""
        M = given.matrix
        if given.chunked and not is_engine(M):
            raise ValueError("M is in chunks, and here all of it is needed in memory: pass it as an array")
        checks: dict[str, Any] = {"skip_check_array": True}
        if not (is_engine(M) or is_tensor(M) or isinstance(M, np.ma.MaskedArray) or hasattr(M, "__irpca_observed__")):
            least = 2 if reset else 1
            checks = {
                "accept_sparse": True,
                "dtype": [np.float64, np.float32],
                "ensure_all_finite": False,  # the engine sees to it on reads that it makes anyway; NaN is a hole
                "ensure_min_samples": least,
                "ensure_min_features": least,
            }
        with naming("M"), warnings.catch_warnings():  # scikit-learn speaks of X
            if given.columns is not None:  # which _check_columns compares
                warnings.filterwarnings("ignore", "X does not have valid feature names")
            return validate_data(self, M, reset=reset, **checks)

    def _options(self, labels: Labels | None, n2: int) -> dict[str, Any]:
        """What the solver is told; a free part, and kinds of columns, only if it knows them."""
        if not isinstance(self.solver_options, Mapping | None) or not all(
            isinstance(name, str) for name in self.solver_options or ()
        ):
            raise ValueError(f"solver_options must be a dict, such as {{'noise': 0.1}}, got {self.solver_options!r}")
        whole_or_auto(self.extra_rank, "extra_rank")
        options = dict(self.solver_options or {})
        known = solver_named(self.solver).options
        if "extra_rank" in known:
            options.setdefault("extra_rank", self.extra_rank)
        elif self.extra_rank not in ("auto", 0):
            raise ValueError(f"solver={self.solver!r} knows no free part beside the features: leave extra_rank out")
        kinds = _kinds_of_columns(self.columns, labels, n2)
        if "columns" in known:
            options.setdefault("columns", kinds)
        elif not isinstance(kinds, str):
            raise ValueError(f"solver={self.solver!r} fits all columns as they are: leave columns out")
        return options

    def _chosen_col_features(self, given: Any, shape: tuple[int, int]) -> Any:
        if given is None:
            return self.col_features
        if self.col_features is not None:
            raise ValueError("col_features was given both to the constructor and to fit; give it once")
        if np.shape(given)[:1] == shape[:1] != shape[1:]:
            raise ValueError(
                f"col_features needs {shape[1]} rows, one for each column of M, and has {shape[0]}. Did you mean "
                "row_features? In cross-validation, which cuts arguments of fit, give it to the constructor"
            )
        return given

    def _keep(self, result: Result) -> None:
        """Set the attributes that repeat others."""
        self.result_ = result
        self.W_, self.low_rank_, self.sparse_ = result.W, result.L, result.S
        self.rank_, self.noise_, self.corruption_ = result.rank, result.noise, result.corruption
        self.zeta_, self.explained_, self.shares_ = result.zeta, result.explained, result.shares
        self.status_, self.converged_ = result.status, result.converged
        self.n_iter_, self.history_ = result.n_iter, result.history
        self.row_labels_, self.col_labels_ = self._rows.labels, self._cols.labels
        self.row_encoder_, self.col_encoder_ = self._rows.encoder, self._cols.encoder

    def _new_rows(self, M: Any, row_features: Any) -> tuple[Engine, Array | None, Labels | None]:
        """An owner of rows as they are used, their scores as far as features tell them, and their labels."""
        check_is_fitted(self)
        given = self._owned(M)
        _check_columns(given.columns, self._cols.labels)
        matrix = self._matrix(given)
        if row_features is None and self._rows.by_index and given.rows is not None and self._rows.expected is not None:
            row_features = "index"
        prior = None
        if row_features is not None:
            own = None if self._rows.by_index else self._rows.split(row_features)[0]
            match(given.rows, own, "row_features", "rows")
            prior = self._rows.place(row_features, given.rows)
            if len(prior) != matrix.shape[0]:
                raise ValueError(f"row_features has {len(prior)} rows but M has {matrix.shape[0]}")
            if not isinstance(row_features, str) and (vague := self._rows.vague(row_features)) is not None:
                prior = np.where(vague[:, None], np.nan, prior)
        return _owner(matrix, self.engine), prior, given.rows

    @property
    def _explained_by_features(self) -> bool:
        """Whether features explain all of a row's scores."""
        energy = float(np.linalg.norm(self.singular_values_) ** 2 / self.low_rank_.shape[0])
        return self._placement.unexplained <= ROUNDING * energy

    def _scores(self, engine: Engine, prior: Array | None) -> Placed:
        """Scores of rows, from what features say of them (NaN: nothing) and from themselves."""
        if prior is not None and self._explained_by_features and not np.isnan(prior).any():
            return self._placement.given(prior)  # M need not be read
        pieces = [
            self._placed(piece, prior if prior is None else prior[rows])
            for rows, piece in in_batches(engine, CHUNK_ENTRIES)
        ]
        return Placed(*map(np.concatenate, zip(*pieces, strict=True)))

    def _placed(self, X: Array, prior: Array | None, kept: Array | None = None) -> Placed:
        """The same of some rows, across the columns ``kept``."""
        check_scale(float(np.abs(X).max(where=np.isfinite(X), initial=1.0)))  # smaller values do no harm
        alone = np.ones(len(X), bool) if prior is None else np.isnan(prior).any(axis=1)
        parts = []
        if alone.any():
            parts.append((alone, self._placement.place(X[alone], None, kept)))
        if prior is not None and not alone.all():
            told, explained = prior[~alone], self._explained_by_features
            place = self._placement.given(told) if explained else self._placement.place(X[~alone], told, kept)
            parts.append((~alone, place))
        found = Placed(*(np.empty((len(X), *part.shape[1:])) for part in parts[0][1]))
        for rows, placed in parts:
            for whole, part in zip(found, placed, strict=True):
                whole[rows] = part
        return found

    def _held_out(self, M: Array, prior: Array | None) -> Array:
        """Every entry as features and other columns of its row predict it."""
        expected = np.empty(M.shape)
        for fold in range(min(FOLDS, M.shape[1])):
            out = np.arange(M.shape[1]) % FOLDS == fold
            found = self._placed(M[:, ~out], prior, np.flatnonzero(~out))
            expected[:, out] = found.scores @ self._V[out].T
        return expected


def _kinds_of_columns(columns: Any, labels: Labels | None, n2: int) -> str | list[str]:
    """The kinds of columns as the solver takes them."""
    if isinstance(columns, str):
        return columns
    if not isinstance(columns, Mapping):
        raise ValueError(
            f"columns must be 'auto', 'as they are' or a dict, such as {{'price': 'logarithm'}}, got {columns!r}"
        )
    names = list(range(n2)) if labels is None else list(labels)
    kinds = ["auto"] * n2
    for name, kind in columns.items():
        if name not in names:
            raise ValueError(f"columns names {name!r}, and M has no such column: it has {few(names)}")
        kinds[names.index(name)] = kind
    return kinds


def _weights_of_rows(sample_weight: Any, n: int) -> Array:
    with naming("sample_weight"):
        weights: Array = as_numpy(sample_weight, "sample_weight").astype(float)
    if weights.shape != (n,) or not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError(f"sample_weight must be {n} numbers, one for each row of M, none negative and not all zero")
    return weights


def _said(result: Result, F1: Features, F2: Features, U: Array, V: Array) -> tuple[Expected | None, Expected | None]:
    """What features say of new rows and columns, in the coordinates of the factors ``L = U @ V.T``."""
    rank = U.shape[1]
    if result.expected is None:
        rows, cols = (Expected(np.zeros(rank), F.coefficients(B)) if F.given else None for F, B in ((F1, U), (F2, V)))
        return rows, cols
    L, (rows, cols) = result.L, result.expected
    to_rows = L.core @ (L.right.T @ V)  # V is orthonormal
    to_cols = (np.linalg.pinv(U) @ L.left @ L.core).T
    return (
        rows and Expected(rows.offset @ to_rows, rows.coefficients @ to_rows) if F1.given else None,
        cols and Expected(cols.offset @ to_cols, cols.coefficients @ to_cols) if F2.given else None,
    )


def _check_columns(given: Labels | None, fitted: Labels | None) -> None:
    """Refuse new rows whose columns are labelled, and not as in fit."""
    if given is None or fitted is None or given.equals(fitted):
        return
    if set(given) == set(fitted):
        raise ValueError(f"the columns of M are those of the fitted table in another order, {few(given)}: sort them")
    lacking, more = (
        [label for label in one if label not in set(other)] for one, other in ((fitted, given), (given, fitted))
    )
    what = f"{few(lacking)} missing; add them, as NaN if nothing is known" if lacking else f"leave out {few(more)}"
    raise ValueError(f"M does not have the columns of the fitted table, {few(fitted)}: {what}")


def _owner(matrix: Any, engine: str) -> Engine:
    """The engine for new rows. All of them are read anyway, so holes are looked for everywhere."""
    dense = isinstance(matrix, np.ndarray) and not isinstance(matrix, np.ma.MaskedArray)
    return observed(matrix) if engine == "auto" and dense and np.isnan(matrix).any() else choose(matrix, engine)


def _principal(L: LowRank) -> tuple[Array, Array, Array]:
    """U, s and V with ``L = U @ diag(s) @ V.T``, the largest entry of every column of V positive."""
    L = LowRank.from_product(*L.thin())
    sign = np.where(L.right[np.abs(L.right).argmax(axis=0), np.arange(L.rank)] < 0, -1.0, 1.0)
    return L.left * sign, np.diag(L.core), L.right * sign
