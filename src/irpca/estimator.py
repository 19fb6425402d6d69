"""The scikit-learn interface: checks input once, in the words of its users, and leaves the rest to solve()."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, gen_batches
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted, validate_data

from .callbacks import Callback, Progress, TimeBudget
from .constants import MAX_ENTRIES_IN_MEMORY, MIN_OUTLIER_LIMIT, UNSEEN_FACTOR
from .containers import Given, in_kind, kind_of, listing, taken
from .described import Described, labels_of
from .engines import choose
from .engines.base import Engine, Noise, Standardised
from .features import Features
from .labels import Labels, few, match
from .loop import explained, left_over, solve
from .lowrank import Array, LowRank
from .outliers import score_lines, standardised
from .placement import Placed, Placement, longest
from .result import Doubt, Expected, History, Result, Status
from .solvers import SOLVERS
from .tables import Cut, deviation, flagged, only, refuse_large, repaired
from .threshold import rounding_floor
from .verdict import about_lines
from .verdict import labelled as with_labels

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CHUNK_ENTRIES = 1 << 21  # of new rows that are looked at together
LOOK_ENTRIES = 1 << 17  # of the fitted table: what is kept of it shall not take more memory than it
FOLDS = 5  # score() predicts each fifth of the columns from the others
STRANGE = 0.1  # new rows are doubtful if their share of outliers exceeds that of the fit by this
ROUNDING = 1e-10  # of the energy of the scores: what features leave unexplained, if that is rounding


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


class InductiveRobustPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
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
    solver : str
        Any of those of :func:`irpca.solve`.
    engine : {"auto", "cpu", "observed", "reference"}
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
        L; ``low_rank_.dense()`` makes it a matrix.
    sparse_ : csr_array of shape (n1, n2)
        S, the outliers; :meth:`outliers` makes it a table.
    W_ : array of shape (d1, d2), or None
        In the coordinates of the features as given. A side without features has one coordinate per row or
        column of M; None without any features.
    components_ : array of shape (r, n2)
        Orthonormal directions of the rows of L, the strongest first, the largest entry of each positive.
    singular_values_ : array of shape (r,)
        Those of L.
    rank_, noise_, corruption_, zeta_, explained_ : int, float, float, float, float
        Rank of L, standard deviation of the noise, share of the entries in S, size beyond which a typical entry is an
        outlier, share of the energy of the other entries that L explains.
    shares_ : dict
        Which part of L holds which share of its energy, such as "features" and "free"; empty if it has but one.
    status_, converged_, n_iter_, history_ : Status, bool, int, History
        How the fit went.
    result_ : Result
        All of it, as :func:`irpca.solve` returned it; doubts name labels, where M has some.
    row_labels_, col_labels_ : Labels or None
        Of the rows and columns of M, if it has some.
    row_encoder_, col_encoder_ : Encoder or None
        How features were made of frames with text, dates or gaps; see :mod:`irpca.encode`.
    container_ : str
        The library of M, in which answers come back: "numpy", "pandas", "polars", "pyarrow", "xarray" or "torch".
    n_features_in_, feature_names_in_ : int, array
        Number of columns of M, and their names if they are strings.

    Notes
    -----
    The model keeps a reference to M, for :meth:`repaired` and to list more outliers later. M is neither pickled nor
    saved with the model.

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
    __metadata_request__fit: ClassVar = {"M": UNUSED}
    __metadata_request__transform: ClassVar = {"M": UNUSED}
    __metadata_request__inverse_transform: ClassVar = {"scores": UNUSED}
    __metadata_request__score: ClassVar = {"M": UNUSED}

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        extra_rank: int | str = "auto",
        col_features: Any = None,
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
        self.solver = solver
        self.engine = engine
        self.tol = tol
        self.max_iter = max_iter
        self.solver_options = solver_options
        self.callbacks = callbacks
        self.verbose = verbose
        self.time_budget = time_budget
        self.random_state = random_state

    def fit(self, M: Any, y: Any = None, *, row_features: Any = None, col_features: Any = None) -> InductiveRobustPCA:
        """Fit to M; then see :meth:`summary`, :meth:`outliers` and :meth:`repaired`.

        Parameters
        ----------
        M : table of shape (n1, n2)
            An array, list of lists, masked or sparse array, :class:`~irpca.LongTable`, a frame of pandas, polars,
            pyarrow or dask, a two-dimensional xarray or torch tensor. float32 and float64 arrays are used as they are,
            memory-mapped files too; integers become float64. NaN and what is masked is missing; the stored entries of a
            sparse array are the observed ones, zeros too. Of a frame without an index (polars, pyarrow) the first
            column labels the rows, if it holds text or dates.
        y : ignored
        row_features, col_features : array or frame of n1 and n2 rows, "index", or None
            F1 and F2: one row for each row, and for each column, of M. Arrays and frames of numbers are used as they
            are. Frames with text, categories, dates or gaps are encoded, see :class:`irpca.encode.Encoder`; "index"
            makes features from the labels of M, dates or numbers. None: nothing is known about that side.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C. If a fit was there by then, the model keeps it, with the status INTERRUPTED.
        """
        if not isinstance(self.engine, str):
            raise ValueError("engine must be a name here: an Engine owns one matrix; pass it to irpca.solve")
        given = taken(M)
        matrix = self._matrix(given, reset=True)
        options = self._options()
        col_features = self._chosen_col_features(col_features, matrix.shape)
        rows = Described.of(row_features, "row_features", "rows", given.rows)
        cols = Described.of(col_features, "col_features", "columns", given.columns)
        described = ((rows, row_features), (cols, col_features))
        vague = any(F is not None and side.vague(F, side.labels) is not None for side, F in described)
        if vague and "imperfect" in SOLVERS[self.solver].options and self.extra_rank != 0:
            options["imperfect"] = True
        F1 = Features.of(rows.array(row_features), matrix.shape[0], "row_features", "rows")
        F2 = Features.of(cols.array(col_features), matrix.shape[1], "col_features", "columns")
        result = solve(
            matrix,
            F1,
            F2,
            rank=self.rank,
            solver=self.solver,
            engine=self.engine,
            tol=self.tol,
            max_iter=self.max_iter,
            callbacks=self._callbacks(),
            random_state=self.random_state,
            **options,
        )
        self._M, self.container_, self._dims = matrix, given.container, given.dims
        U, s, V = _principal(result.L)
        if not SOLVERS[self.solver].features:  # L need not lie in their span, so they predict nothing
            F1, F2 = Features.identity(F1.n), Features.identity(F2.n)
        said = _said(result, F1, F2, U * s, V)
        self._rows, self._cols = replace(rows, expected=said[0]), replace(cols, expected=said[1])
        expected = [None if say is None or F.F is None else say(F.F) for say, F in zip(said, (F1, F2), strict=True)]
        self._placement = Placement.of(result, U * s, V, (expected[0], expected[1]))
        self._keep(replace(result, doubts=with_labels(result.doubts, given.rows, given.columns), fit=None))
        self._observed = np.zeros(0) if result.S is None else _values_at(matrix, result.S)
        owner = choose(matrix)
        self._used_bits, self._fingerprint = self._packed(owner), _fingerprint(owner)
        dtype = np.dtype(float) if result.S is None else result.S.dtype
        self.components_, self.singular_values_ = V.T.astype(dtype), s.astype(dtype)
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt  # whoever fits many models shall stop, too
        if not result.converged:
            doubts = map(str, self.result_.doubts)
            text = "\n  ".join([f"{result.status.name}: {result.status.advice}", *doubts])
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        return self

    def _packed(self, owner: Engine) -> Array:
        """Which cells of the fit were used, a bit for each; nothing where there are too many."""
        result = self.result_
        if np.prod(result.L.shape) > MAX_ENTRIES_IN_MEMORY or result.status is Status.DIVERGED:
            return np.zeros(0, np.uint8)
        limit: float | Standardised = result.zeta
        if result.weights is not None and result.calibration is not None:
            limit = Standardised(result.weights, max(result.calibration.limit, MIN_OUTLIER_LIMIT))
        return np.packbits(_used_cells(owner, result.L, limit))

    def _callbacks(self) -> list[Callback]:
        given = self.callbacks
        callbacks: list[Callback] = [] if given is None else [given] if callable(given) else list(given)
        if self.time_budget is not None:
            callbacks.append(TimeBudget(self.time_budget))
        return [*callbacks, Progress()] if self.verbose else callbacks

    def fit_transform(self, M: Any, y: Any = None, *, row_features: Any = None, col_features: Any = None) -> Any:
        """``fit``, then ``transform`` of the same M with the same ``row_features``."""
        self.fit(M, y, row_features=row_features, col_features=col_features)
        return self.transform(M, row_features=None if self._rows.expected is None else row_features)

    def transform(self, M: Any, *, row_features: Any = None) -> Any:
        """Scores of rows, r numbers each, as PCA has them; for a cleaned table use :meth:`repaired`.

        ``inverse_transform(scores)`` are the expected values of these rows. Nothing is fitted again.

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
        """
        engine, prior, _ = self._new_rows(M, row_features)
        return self._scores(engine, prior).scores.astype(engine.dtype, copy=False)

    def inverse_transform(self, scores: Any) -> Array:
        """Rows of L, m×n2, from their scores, m×r."""
        check_is_fitted(self)
        scores = check_array(scores, dtype=[np.float64, np.float32], input_name="scores")
        if scores.shape[1] != self.rank_:
            raise ValueError(f"scores has {scores.shape[1]} columns, this model {self.rank_} components")
        return scores @ self.components_.astype(scores.dtype, copy=False)

    @_IfFeatures
    def predict(self, row_features: Any = None, col_features: Any = None, *, return_std: bool = False) -> Any:
        """Expected values of new rows or columns from their features alone, ``row_features @ W @ col_features.T``.

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
        given, sides, new = [], [], []
        for F, side, axis in ((row_features, self._rows, 0), (col_features, self._cols, 1)):
            given.append(side.labels if F is None else side.split(F)[0])
            sides.append(self._fitted_factor(axis) if F is None else side.place(F))
            new.append(F is not None)
        vague = None if row_features is None else self._rows.vague(row_features)
        scores, V = sides
        frames = {kind_of(F) for F in (row_features, col_features) if F is not None} - {"numpy"}
        container = self.container_ if self.container_ != "numpy" or not frames else frames.pop()
        like = Given(None, given[0], given[1], container, self._dims)
        expected = in_kind((scores @ V.T).astype(self.components_.dtype, copy=False), like)
        return (expected, in_kind(self._std(scores, V, (new[0], new[1]), vague), like)) if return_std else expected

    def expected(self, return_std: bool = False) -> Any:
        """What every cell of the fitted table should be; NaN where nothing is known.

        Parameters
        ----------
        return_std : bool
            Return the standard deviation of a clean measurement about that, too: that of the noise there, and of the
            expected value. About 95 % of the cells that are no outliers lie within two of them.

        Returns
        -------
        table like M, with its labels; with ``return_std`` two of them
        """
        check_is_fitted(self)
        refuse_large(self.low_rank_.shape, "expected")
        scores, V = self._fitted_factor(0), self._fitted_factor(1)
        expected = in_kind((scores @ V.T).astype(self.components_.dtype, copy=False), self._like(self._rows.labels))
        if not return_std:
            return expected
        return expected, in_kind(self._std_of_cells(self.result_, self._owner), self._like(self._rows.labels))

    def repaired(
        self,
        M: Any = None,
        *,
        row_features: Any = None,
        fdr: float | None = None,
        probability: float | None = None,
        threshold: float | None = None,
        return_std: bool = False,
        return_marks: bool = False,
    ) -> Any:
        """The table with outliers and missing cells replaced by what is expected there.

        Parameters
        ----------
        M, row_features : new rows as in :meth:`transform`, or None
            None: the table that was fitted.
        fdr, probability, threshold : float or None
            Which cells are outliers, see :meth:`outliers`.
        return_std : bool
            Return the standard deviation of a clean measurement about each replaced value, too; 0 where M was kept.
        return_marks : bool
            Return what was replaced, too: a table of "outlier", "missing" and, where M was kept, "". A cell that is
            missing and of which nothing is known stays NaN.

        Returns
        -------
        table like M; with ``return_std`` and ``return_marks`` up to three of them
        """
        check_is_fitted(self)
        result, engine, rows = self._looked_at(M, row_features)
        refuse_large(result.L.shape, "repaired")
        S, _, _ = flagged(result, Cut(fdr, probability, threshold), engine, self._scale(result, engine))
        expected = result.L.dense()
        if result.known is not None:
            expected[~result.known[0]], expected[:, ~result.known[1]] = np.nan, np.nan
        values = _rows_of(engine(), slice(None))
        made, marks = repaired(values, S, expected)
        like, found = self._like(rows), []
        found.append(in_kind(made, like))
        if return_std:
            found.append(in_kind(np.where(marks == "", 0.0, self._std_of_cells(result, engine)), like))
        if return_marks:
            found.append(
                in_kind(marks.astype(object), replace(like, container=like.container.replace("torch", "numpy")))
            )
        return tuple(found) if len(found) > 1 else found[0]

    def decompose(self, M: Any, *, row_features: Any = None) -> Result:
        """The fitted model applied to new rows: expected values, outliers and doubts in one Result.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`
        """
        engine, prior, rows = self._new_rows(M, row_features)
        return self._decomposed(engine, prior, rows)

    def _decomposed(self, engine: Engine, prior: Array | None, rows: Labels | None) -> Result:
        started = time.perf_counter()
        found, W = self._scores(engine, prior), self.W_
        if prior is None:
            W = None if self._cols.expected is None else found.scores @ self._cols.expected.coefficients.T
        # New rows may be larger than the old, or in lower precision: their rounding is no gross error.
        rounding = rounding_floor(engine.dtype, longest(found.scores) * longest(self._V))
        zeta = max(self.zeta_, rounding)
        L = LowRank.from_product(found.scores, self._V)
        weights = self._weights(found.spread, found.scale)
        S, trim = engine.corruption(L, self._limit(weights, zeta))
        known = (prior is not None) | (engine.counts[0] > 0), np.ones(L.shape[1], bool) & self._known(1)
        corruption = 1 - trim.kept_share
        result = Result(
            L=L,
            S=_without_unknown(S, known),
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
            doubts=with_labels(tuple(self._doubts(engine, prior, corruption)), rows, self._cols.labels),
            solver=self.solver,
            engine=engine.name,
            reads=engine.reads,
            seconds=time.perf_counter() - started,
            counts=engine.counts,
            known=known,
            weights=weights,
            calibration=self.result_.calibration,
        )
        return self._supported(result, engine)

    def _supported(self, result: Result, engine: Engine) -> Result:
        """The same without outliers that other entries of their row do not contradict."""
        S, calibration = result.S, result.calibration
        if S is None or calibration is None or result.weights is None or np.isinf(calibration.limit):
            return result
        kept = calibration(S.data / self._scale(result, lambda: engine)(S)) > 0.5
        return replace(result, S=only(S, kept), corruption=int(kept.sum()) / max(result.n_observed, 1))

    def _doubts(self, engine: Engine, prior: Array | None, corruption: float) -> Iterator[Doubt]:
        """What to doubt about new rows."""
        short = np.flatnonzero(engine.counts[0] < self.rank_)
        if len(short) and (prior is None or not self._explained_by_features):
            yield about_lines(
                "few-entries",
                0,
                short,
                f"{len(short)} rows have fewer than {self.rank_} observed entries ({{lines}}): their expected values "
                "are closer to those of other rows than to their own entries",
            )
        if corruption > self.corruption_ + STRANGE:
            yield Doubt(
                "unlike-fit",
                f"{corruption:.1%} of the entries are outliers, {self.corruption_:.1%} were in the fit: the model may "
                "not hold for these rows",
            )

    def score(self, M: Any, y: Any = None, *, row_features: Any = None, sample_weight: Any = None) -> float:
        """How well rows are predicted: minus the mean logarithm of ``|M − L|``, so higher is better.

        The logarithm makes it robust: a gross error counts about the same for every model, however large it
        is. ``exp(-score)`` is a typical error, in the units of M.

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
        counts = engine.counts[0]
        typical = float(np.linalg.norm(self.singular_values_)) / np.sqrt(np.prod(self.low_rank_.shape))
        sums = np.empty(engine.shape[0])
        for rows in gen_batches(engine.shape[0], max(1, CHUNK_ENTRIES // engine.shape[1])):
            piece = _rows_of(engine, rows)
            expected = self._held_out(piece, prior if prior is None else prior[rows])
            # Nothing is explained better than to rounding, not even zeros by a row of zeros.
            largest = np.abs(expected).max(axis=1, keepdims=True, initial=typical)
            rounding = np.maximum(rounding_floor(engine.dtype, 1.0) * largest, np.finfo(float).tiny)
            sums[rows] = np.nansum(np.log(np.maximum(np.abs(piece - expected), rounding)), axis=1)
        weights = np.ones(len(sums)) if sample_weight is None else np.asarray(sample_weight)
        # Models that differ by rounding alone shall tie, so that a search takes the first of them.
        return round(-float(weights @ sums / (weights @ counts)), 6)

    def outliers(
        self,
        M: Any = None,
        *,
        row_features: Any = None,
        most: int | None = None,
        fdr: float | None = None,
        probability: float | None = None,
        threshold: float | None = None,
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

        Returns
        -------
        frame in kind of M if it has labels, else a structured array
            ``row``, ``column``: labels, or positions where there are none. ``observed``: the cell as given.
            ``expected``: what it should be. ``difference``: the first less the second. ``std``: the standard deviation
            of a clean measurement there. ``score``: the size of the difference in multiples of ``std``; of an exact
            fit, and of solvers without a noise model, of ``zeta_``. ``probability``: of an outlier, given the
            distribution of all residuals (:mod:`irpca.calibration`); 1 in an exact fit, NaN if the solver has no noise
            model or the fit failed.
        """
        check_is_fitted(self)
        if isinstance(M, (int, np.integer)):
            raise ValueError(f"outliers takes a table of new rows first; for the first {M} outliers, say most={M}")
        if most is not None and most < 0:
            raise ValueError(f"most must not be negative, got {most!r}")
        result, engine, rows = self._looked_at(M, row_features)
        columns = self._cells(result, engine, Cut(fdr, probability, threshold), most)
        return listing(columns, {"row": rows, "column": self._cols.labels}, self.container_)

    def _cells(self, result: Result, engine: Callable[[], Engine], cut: Cut, most: int | None) -> dict[str, Array]:
        """Outliers by their positions, the most certain first."""
        S, size, sure = flagged(result, cut, engine, self._scale(result, engine))
        at = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices
        std = self._std_of_cells(result, engine, at)
        score = size if result.weights is None else np.abs(S.data) / std
        order = np.lexsort((-score, -np.nan_to_num(sure)))[:most]
        at = at[0][order], at[1][order]
        return {
            "row": at[0].astype(np.intp),
            "column": at[1].astype(np.intp),
            "observed": self._entries(*at) if result is self.result_ else engine().entries(*at),
            "expected": result.L.entries(*at).astype(S.dtype),
            "difference": S.data[order],
            "std": std[order],
            "score": score[order],
            "probability": sure[order],
        }

    def outlier_rows(self, M: Any = None, *, row_features: Any = None) -> Any:
        """How corrupted each row is, the most surprising first: which days are odd, which users lie?

        Rows that are strange in the same way, such as fake users who copy each other, may be explained by L. Given M
        again, and the features of its rows, these are compared with what their features say in place of L, which knows
        them.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`, or None
            None: the rows of the fit, compared with L.

        Returns
        -------
        DataFrame if M had labels, else a structured array
            See :func:`irpca.outliers.score_lines`; ``row`` is the label, or the position.
        """
        if M is None and row_features is None:
            return self._outlier_lines(0, "row", self._rows.labels)
        engine, prior, labels = self._new_rows(M, row_features)
        if prior is None:
            raise ValueError("give row_features, too; without them, outliers(M) says what is wrong with new rows")
        if np.isnan(prior).any():
            raise ValueError("some rows have features that are missing or were not in the fit: leave these rows out")
        weights = self._weights(np.zeros((len(prior), 2)), np.ones(len(prior)))
        S, _ = engine.corruption(LowRank.from_product(prior, self._V), self._limit(weights, self.zeta_))
        S = standardised(S, weights, self.zeta_)
        return _lines_table(S, 0, engine.counts[0], "row", labels, self.container_)

    def outlier_columns(self) -> Any:
        """How corrupted each column is, the most surprising first: which sensor is broken?"""
        return self._outlier_lines(1, "column", self._cols.labels)

    def _outlier_lines(self, axis: int, name: str, labels: Any) -> Any:
        check_is_fitted(self)
        S = _without_unknown(self._standardised, (self._known(0), self._known(1)))
        return _lines_table(S, axis, self.result_.counts[axis], name, labels, self.container_)

    @property
    def _sparse(self) -> csr_array:
        if self.sparse_ is None:
            raise ValueError(f"there is no S. {self.status_.name}: {self.status_.advice}")
        return self.sparse_

    @property
    def _standardised(self) -> csr_array:
        """S in units of its uncertainty."""
        return standardised(self._sparse, self.result_.weights, self.zeta_)

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
        return Given(None, rows, self._cols.labels, self.container_, self._dims)

    def _std(self, scores: Array, V: Array, new: tuple[bool, bool], vague: Array | None) -> Array:
        weights = self._placement.weights(self.result_.weights, scores, V, new)
        std = deviation(weights, self._factor)
        if vague is not None:  # of these rows no more is known than of a row without features
            weights = self._placement.weights(self.result_.weights, scores[vague], V, new, vague=True)
            std[vague] = deviation(weights, self._factor)
        return std.astype(self.components_.dtype, copy=False)

    @property
    def _factor(self) -> float:
        """The standard deviation of clean noise in units of its scale: more than 1 where it has tails."""
        noise = self._placement.noise
        return 1.0 if self.result_.weights is None else float(noise.deviation / noise.s)

    def _std_of_cells(
        self, result: Result, owner: Callable[[], Engine], at: tuple[Array, Array] | None = None
    ) -> Array:
        """The standard deviation of clean measurements about the expected values of a result."""
        std = self._spread_of_cells(result, owner, at, self._factor).astype(self.components_.dtype, copy=False)
        if at is None and result.known is not None:
            std[~result.known[0]], std[:, ~result.known[1]] = np.nan, np.nan
        return std

    def _scale(self, result: Result, owner: Callable[[], Engine]) -> Callable[[csr_array], Array]:
        """What residuals are measured in for their probability: the scale of the noise, and uncertainty."""
        return lambda S: self._spread_of_cells(
            result, owner, (np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices), 1.0
        )

    def _spread_of_cells(
        self, result: Result, owner: Callable[[], Engine], at: tuple[Array, Array] | None, factor: float
    ) -> Array:
        left, right = result.L.thin()
        scores, new = left @ (right.T @ self._V), result is not self.result_
        weights = result.weights or self._placement.weights(None, scores, self._V, (new, False))
        var = None
        if np.prod(result.L.shape) <= MAX_ENTRIES_IN_MEMORY and result.status is not Status.DIVERGED:
            used = self._used(result, owner)
            var = self._placement.variance(weights, scores, self._V, used, new)
        return deviation(weights, factor, at, var)

    def _used(self, result: Result, owner: Callable[[], Engine]) -> Array:
        """Which cells were observed, and not left out of the fit."""
        n1, n2 = result.L.shape
        if result is self.result_:
            return np.unpackbits(self._used_bits, count=n1 * n2).astype(bool).reshape(n1, n2)
        return _used_cells(owner(), result.L, self._limit(result.weights, result.zeta))

    def _looked_at(self, M: Any, row_features: Any) -> tuple[Result, Callable[[], Engine], Labels | None]:
        """The result, what makes the owner of M, and labels: of the fit, or of new rows."""
        if M is not None:
            engine, prior, rows = self._new_rows(M, row_features)
            if self.sparse_ is not None and self._fingerprint and _fingerprint(engine) == self._fingerprint:
                return self.result_, lambda: engine, rows  # the table of the fit, as after loading a model
            return self._decomposed(engine, prior, rows), lambda: engine, rows
        if row_features is not None:
            raise ValueError("row_features was given without M: they belong to new rows, so pass those, too")
        if self.sparse_ is None:
            raise ValueError(f"there are no outliers. {self.status_.name}: {self.status_.advice}")
        return self.result_, self._owner, self._rows.labels

    def _owner(self) -> Engine:
        """An owner of the M that was fitted."""
        if not hasattr(self, "_M"):
            raise ValueError("a saved model does not hold its table: pass the table as M")
        return choose(self._M, self.engine)

    def _entries(self, rows: Array, cols: Array) -> Array:
        """Observed values of the M that was fitted; of a model without it, those of the outliers."""
        if hasattr(self, "_M"):
            return self._owner().entries(rows, cols)
        S, n2 = self._sparse, self.low_rank_.shape[1]
        held = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)) * n2 + S.indices
        order = np.argsort(held)
        at = np.searchsorted(held, rows * n2 + cols, sorter=order)
        return self._observed[order[at]]

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

    def save(self, path: str | Path) -> None:
        """Write the model to a file that :func:`irpca.load` reads: arrays and text, nothing that is executed.

        M itself is not saved.
        """
        from .persistence import save

        save(self, path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_M"}

    def _weights(self, spread: Array, scale: Array) -> Noise | None:
        """The noise model for new rows, whose scores are uncertain by ``spread``."""
        weights = self.result_.weights
        return weights and replace(weights, rows=self._placement.row_scale * scale, row_spread=spread)

    def _limit(self, weights: Noise | None, zeta: float) -> float | Standardised:
        """Beyond which an entry of new rows is an outlier: likely one, or beyond all that the fit has seen."""
        calibration = self.result_.calibration
        if weights is None or calibration is None or not len(calibration.edges):
            return zeta
        return Standardised(weights, min(calibration.limit, UNSEEN_FACTOR * float(calibration.edges[-1])))

    def summary(self) -> str:
        """Whether to use it, what was found, what was chosen and why, what to check, the clearest outliers."""
        check_is_fitted(self)
        lines = [self.result_.summary()]
        if self.sparse_ is not None and self.sparse_.nnz:
            lines += ["Clearest outliers (row, column):", *self._clearest(5)]
        for side in (self._rows, self._cols):
            if side.encoder is not None:
                lines += [f"{side.name}, as encoded:", *(f"  - {note}" for note in side.encoder.notes_)]
        return "\n".join(lines)

    def _clearest(self, most: int) -> list[str]:
        cells = self._cells(self.result_, self._owner, Cut(), most)
        labels = zip((self._rows.labels, self._cols.labels), (cells["row"], cells["column"]), strict=True)
        rows, cols = (at if names is None else names.take(at).texts() for names, at in labels)
        found = zip(rows, cols, cells["observed"], cells["expected"], strict=True)
        return [f"  {row}, {col}: {seen:.4g} observed, {expected:.4g} expected" for row, col, seen, expected in found]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    @property
    def _V(self) -> Array:
        """``components_`` as columns, in double precision."""
        return self.components_.T.astype(float, copy=False)

    def _matrix(self, given: Given, reset: bool = False) -> Any:
        """M as solve() takes it, its columns checked: no copy and no other precision if it is a float array already."""
        M = given.matrix
        if isinstance(M, np.ma.MaskedArray) or hasattr(M, "__irpca_observed__"):
            validate_data(self, M, reset=reset, skip_check_array=True)
            return M
        least = 2 if reset else 1
        with warnings.catch_warnings():
            if given.columns is not None:  # which _check_columns compares
                warnings.filterwarnings("ignore", "X does not have valid feature names")
            return validate_data(
                self,
                M,
                reset=reset,
                accept_sparse=True,
                dtype=[np.float64, np.float32],
                ensure_all_finite=False,  # the engine sees to it on reads that it makes anyway; NaN is a hole
                ensure_min_samples=least,
                ensure_min_features=least,
            )

    def _options(self) -> dict[str, Any]:
        """What the solver is told; a free part only if it knows one."""
        options = dict(self.solver_options or {})
        known = SOLVERS[self.solver].options if self.solver in SOLVERS else ()
        if "extra_rank" in known:
            options.setdefault("extra_rank", self.extra_rank)
        elif self.extra_rank not in ("auto", 0):
            raise ValueError(f"solver={self.solver!r} knows no free part beside the features: leave extra_rank out")
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
        self.result_ = result
        self.W_, self.low_rank_, self.sparse_ = result.W, result.L, result.S
        self.rank_, self.noise_, self.corruption_ = result.rank, result.noise, result.corruption
        self.zeta_, self.explained_, self.shares_ = result.zeta, result.explained, result.shares
        self.status_, self.converged_ = result.status, result.converged
        self.n_iter_, self.history_ = result.n_iter, result.history

    def _new_rows(self, M: Any, row_features: Any) -> tuple[Engine, Array | None, Labels | None]:
        """An owner of rows as they are used, their scores as far as features tell them, and their labels."""
        check_is_fitted(self)
        given = taken(M)
        _check_columns(given.columns, self._cols.labels)
        matrix = self._matrix(given)
        if row_features is None and self._rows.by_index and given.rows is not None and self._rows.expected is not None:
            row_features = "index"
        prior = None
        if row_features is not None:
            match(
                given.rows, None if isinstance(row_features, str) else labels_of(row_features), "row_features", "rows"
            )
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
        known = prior is not None and not np.isnan(prior).any()
        if prior is not None and known and self._explained_by_features:
            return self._placement.given(prior)
        pieces = [
            self._placed(_rows_of(engine, rows), prior if prior is None else prior[rows])
            for rows in gen_batches(engine.shape[0], max(1, CHUNK_ENTRIES // engine.shape[1]))
        ]
        return Placed(*map(np.concatenate, zip(*pieces, strict=True)))

    def _placed(self, X: Array, prior: Array | None, kept: Array | None = None) -> Placed:
        """The same of some rows, across the columns ``kept``."""
        if prior is None or not (vague := np.isnan(prior).any(axis=1)).any():
            return self._placement.place(X, prior, kept)
        alone = self._placement.place(X[vague], None, kept)
        if vague.all():
            return alone
        others = self._placement.given(prior[~vague]) if self._explained_by_features else None
        others = others or self._placement.place(X[~vague], prior[~vague], kept)
        found = Placed(*(np.empty((len(X), *part.shape[1:])) for part in alone))
        for whole, some, rest in zip(found, alone, others, strict=True):
            whole[vague], whole[~vague] = some, rest
        return found

    def _held_out(self, M: Array, prior: Array | None) -> Array:
        """Every entry as features and other columns of its row predict it."""
        if prior is not None and self._explained_by_features and not np.isnan(prior).any():
            return prior @ self._V.T
        expected = np.empty(M.shape)
        for fold in range(min(FOLDS, M.shape[1])):
            out = np.arange(M.shape[1]) % FOLDS == fold
            found = self._placed(M[:, ~out], prior, np.flatnonzero(~out))
            expected[:, out] = found.scores @ self._V[out].T
        return expected


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


def _lines_table(S: Any, axis: int, counts: Array, name: str, labels: Labels | None, container: str) -> Any:
    lines = score_lines(S, axis, counts)
    _, *others = lines.dtype.names or ()
    columns = {name: lines["position"], **{other: lines[other] for other in others}}
    return listing(columns, {name: labels}, container)


def _without_unknown(S: csr_array, known: tuple[Array, Array]) -> csr_array:
    """S without the cells of rows and columns about which nothing is known."""
    return only(S, known[0][np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))] & known[1][S.indices])


def _values_at(matrix: Any, S: csr_array) -> Array:
    """The entries of M where S has some, in the order of S, as they were given."""
    rows, cols = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices.astype(np.int64)
    if hasattr(matrix, "__irpca_observed__"):
        i, j, values, _ = matrix.__irpca_observed__()
    elif hasattr(matrix, "tocoo"):
        listed = matrix.tocoo()
        i, j, values = listed.row, listed.col, listed.data
    else:
        return np.ma.getdata(matrix)[rows, cols].astype(S.dtype)
    wanted = rows * S.shape[1] + cols
    order = np.argsort(wanted)
    given = i.astype(np.int64) * S.shape[1] + j
    at = np.searchsorted(wanted, given, sorter=order)
    there = at < len(wanted)
    there[there] = wanted[order[at[there]]] == given[there]
    found = np.empty(S.nnz, S.dtype)
    found[order[at[there]]] = values[there]
    return found


def _check_columns(given: Labels | None, fitted: Labels | None) -> None:
    """Refuse new rows whose columns are labelled, and not as in fit."""
    if given is None or fitted is None or given.equals(fitted):
        return
    if set(given) == set(fitted):
        raise ValueError(f"the columns of M are those of the fitted table in another order, {few(given)}: sort them")
    lacking = [label for label in fitted if label not in set(given)]
    what = f"{few(lacking)} missing" if lacking else f"{few([c for c in given if c not in set(fitted)])} not among them"
    raise ValueError(f"M does not have the columns of the fitted table, {few(fitted)}: {what}")


def _owner(matrix: Any, engine: str) -> Engine:
    """The engine for new rows. All of them are read anyway, so holes are looked for everywhere."""
    dense = isinstance(matrix, np.ndarray) and not isinstance(matrix, np.ma.MaskedArray)
    return choose(matrix, "observed" if engine == "auto" and dense and np.isnan(matrix).any() else engine)


def _fingerprint(engine: Engine) -> str:
    """The same for the same table, and for no other; empty where that would be read for long."""
    n1, n2 = engine.shape
    if n1 * n2 > MAX_ENTRIES_IN_MEMORY:
        return ""
    found = hashlib.blake2b(repr((n1, n2)).encode(), digest_size=16)
    for rows in gen_batches(n1, max(1, LOOK_ENTRIES // n2)):
        values = np.asarray(_rows_of(engine, rows), np.float64)
        found.update(np.where(np.isnan(values), np.nan, values + 0.0).tobytes())  # one NaN, no negative zero
    return found.hexdigest()


def _used_cells(engine: Engine, L: LowRank, limit: float | Standardised) -> Array:
    """Which cells are observed and within the limit, so that they count in a fit."""
    used, (left, right) = np.zeros(L.shape, bool), L.thin()
    for rows in gen_batches(L.shape[0], max(1, LOOK_ENTRIES // L.shape[1])):
        threshold = limit.of_tile(rows, slice(None)) if isinstance(limit, Standardised) else limit
        used[rows] = np.abs(_rows_of(engine, rows) - left[rows] @ right.T) <= threshold  # NaN is not
    return used


def _rows_of(engine: Engine, rows: slice) -> Array:
    first, last, _ = rows.indices(engine.shape[0])
    return engine.block(np.arange(first, last), np.arange(engine.shape[1]))


def _principal(L: LowRank) -> tuple[Array, Array, Array]:
    """U, s and V with ``L = U @ diag(s) @ V.T``, the largest entry of every column of V positive."""
    L = LowRank.from_product(*L.thin())
    sign = np.where(L.right[np.abs(L.right).argmax(axis=0), np.arange(L.rank)] < 0, -1.0, 1.0)
    return L.left * sign, np.diag(L.core), L.right * sign
