"""The scikit-learn interface: checks input once, in the words of its users, and leaves the rest to solve()."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, gen_batches
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted, validate_data

from . import constants
from .callbacks import Callback
from .engines import choose
from .engines.base import COMPONENTS, Engine, Lines, Noise, Prior, Standardised
from .factors import Side, placed
from .features import Features
from .labels import as_table, few, labelled, labels_of, match, without_na
from .loop import explained, left_over, solve
from .lowrank import Array, LowRank
from .noise import NoiseModel
from .outliers import probabilities, reported, score_lines, standardised
from .result import Doubt, Expected, History, Result, Status
from .sampling import in_memory
from .solvers import SOLVERS
from .threshold import rounding_floor
from .verdict import about_lines
from .verdict import labelled as with_labels

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CHUNK_ENTRIES = 1 << 21  # of new rows that are looked at together
FOLDS = 5  # score() predicts each fifth of the columns from the others
STRANGE = 0.1  # new rows are doubtful if their share of outliers exceeds that of the fit by this
ROUNDING = 1e-10  # of the energy of the scores: what features leave unexplained, if that is rounding
UNSEEN = 1.5  # times the largest standardised residual of a fit without outliers: what is larger is one
UNUSUAL = 3.0  # times the usual size of entries: rows of an exact fit that are larger are brought to that size
SETTLING = 60  # passes over new rows, at most, and the relative step that ends them: the answer is then the same
SETTLED = 1e-12  # whatever other rows were placed along with a row


class _IfFeatures:
    """A method that models fitted without features lack: ``hasattr`` is False, as scikit-learn expects."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self.method
        if hasattr(model, "_rows") and model._rows.expected is None and model._cols.expected is None:
            raise AttributeError(
                f"{self.method.__name__} needs features, and this model was fitted without, or by a solver that does "
                "not use them: nothing is known about new rows but their data; use transform or decompose with those. "
                "L is low_rank_"
            )
        return MethodType(self.method, model)


class InductiveRobustPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the features of rows and columns explain of M, and what is grossly wrong with it, as an estimator.

    ``M = F1 @ W @ F2.T + S + noise`` with W of low rank and S sparse; see :func:`irpca.solve`. Where features do not
    explain all, L has further components. M may have holes.

    Parameters
    ----------
    rank : int or "auto"
        Number of components explained by the features; without features, of all components. "auto": as many as the
        prediction of held-out entries calls for.
    extra_rank : int or "auto"
        Number of components beside those that features explain, for solvers that allow any. "auto": as many as
        held-out entries call for, often none. Without features this means nothing.
    col_features : array or DataFrame of shape (n2, d2), or None
        F2. It may be given to ``fit`` instead; but scikit-learn's cross-validation cuts whatever is as long
        as M has rows, with a square M these features too, so there they belong here.
    solver : str
        Any of those of :func:`irpca.solve`.
    engine : {"auto", "cpu", "observed", "reference"}
    tol, max_iter : float, int
        When to stop.
    solver_options : dict or None
        Passed to the solver, such as ``{"noise": 0.1}``.
    callbacks : callable, several, or None
        Called after each iteration; see :mod:`irpca.callbacks`.
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
    n_features_in_, feature_names_in_ : int, array
        Number of columns of M, and their names if they are strings.

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
        self.random_state = random_state

    def fit(self, M: Any, y: Any = None, *, row_features: Any = None, col_features: Any = None) -> InductiveRobustPCA:
        """Separate M.

        Parameters
        ----------
        M : array, DataFrame, sparse array or LongTable of shape (n1, n2)
            float32 and float64 are used as they are, memory-mapped files too; integers become float64. NaN and what
            is masked is not observed; the stored entries of a sparse array are the observed ones, zeros too.
        y : ignored
        row_features, col_features : array or DataFrame of shape (n1, d1) and (n2, d2), or None
            F1 and F2. None: nothing is known about that side.
        """
        if not isinstance(self.engine, str):
            raise ValueError("engine must be a name here: an Engine owns one matrix; pass it to irpca.solve")
        matrix = self._matrix(M, reset=True)
        rows, columns = labels_of(M, "index"), labels_of(M, "columns")
        options = self._options()
        col_features = self._chosen_col_features(col_features, matrix.shape)
        match(row_features, M, "row_features", "rows")
        match(col_features, M, "col_features", "columns")
        F1 = Features.of(row_features, matrix.shape[0], "row_features", "rows")
        F2 = Features.of(col_features, matrix.shape[1], "col_features", "columns")
        result = solve(
            matrix,
            F1,
            F2,
            rank=self.rank,
            solver=self.solver,
            engine=self.engine,
            tol=self.tol,
            max_iter=self.max_iter,
            callbacks=() if self.callbacks is None else self.callbacks,
            random_state=self.random_state,
            **options,
        )
        self._keep(replace(result, doubts=with_labels(result.doubts, rows, columns)))
        self._observed = np.zeros(0) if result.S is None else _values_at(matrix, result.S)
        U, s, V = _principal(result.L)
        dtype = np.dtype(float) if result.S is None else result.S.dtype
        self.components_, self.singular_values_ = V.T.astype(dtype), s.astype(dtype)
        if not SOLVERS[self.solver].features:  # L need not lie in their span, so they predict nothing
            F1, F2 = Features.identity(F1.n), Features.identity(F2.n)
        said = _said(result, F1, F2, U * s, V)
        self._rows = _Side("row_features", rows, labels_of(row_features, "columns"), said[0])
        self._cols = _Side("col_features", columns, labels_of(col_features, "columns"), said[1])
        expected = None if said[0] is None or F1.F is None else said[0](F1.F)
        self._placement = _Placement.of(result, U * s, V, expected)
        if not result.converged:
            doubts = map(str, self.result_.doubts)
            told = "\n  ".join([f"{result.status.name}: {result.status.advice}", *doubts])
            warnings.warn(told, ConvergenceWarning, stacklevel=2)
        return self

    def fit_transform(self, M: Any, y: Any = None, *, row_features: Any = None, col_features: Any = None) -> Any:
        """``fit``, then ``transform`` of the same M with the same ``row_features``."""
        self.fit(M, y, row_features=row_features, col_features=col_features)
        return self.transform(M, row_features=None if self._rows.expected is None else row_features)

    def transform(self, M: Any, *, row_features: Any = None) -> Any:
        """Scores of rows: ``inverse_transform(scores)`` are their rows of L. Nothing is fitted again.

        Parameters
        ----------
        M : array, DataFrame, sparse array or LongTable of shape (m, n2)
            It may have holes, as in :meth:`fit`.
        row_features : array or DataFrame of shape (m, d1), or None
            If given, scores are what the features say, corrected by the row itself, the more the more of it is
            observed, unless features explain all. If not, a row is expected to be like those of the fit. Outliers have
            no weight.

        Returns
        -------
        array of shape (m, r), or what ``set_output`` asks for
        """
        engine, prior = self._new_rows(M, row_features)
        return self._scores(engine, prior).scores.astype(engine.dtype, copy=False)

    def inverse_transform(self, scores: Any) -> Array:
        """Rows of L, m×n2, from their scores, m×r."""
        check_is_fitted(self)
        scores = check_array(scores, dtype=[np.float64, np.float32], input_name="scores")
        if scores.shape[1] != self.rank_:
            raise ValueError(f"scores has {scores.shape[1]} columns, this model {self.rank_} components")
        return scores @ self.components_.astype(scores.dtype, copy=False)

    @_IfFeatures
    def predict(self, row_features: Any = None, col_features: Any = None) -> Any:
        """L for any rows and columns, by their features alone: ``row_features @ W @ col_features.T``.

        NaN for rows and columns of the fit about which nothing is known: they have too few entries, and no features.

        Parameters
        ----------
        row_features, col_features : array or DataFrame of shape (m, d1) and (k, d2), or None
            None: the rows, or the columns, of the M that was fitted.

        Returns
        -------
        array of shape (m, k), or a labelled DataFrame if M or the features are one
        """
        check_is_fitted(self)
        if row_features is None:
            left, right = self.low_rank_.thin()
            U, index = self._where_known(left @ (right.T @ self._V), 0), self._rows.labels
        else:
            U, index = self._rows.place(row_features), labels_of(row_features, "index")
        if col_features is None:
            V, columns = self._where_known(self._V, 1), self._cols.labels
        else:
            V, columns = self._cols.place(col_features), labels_of(col_features, "index")
        dtype = self.components_.dtype
        return labelled(U.astype(dtype, copy=False) @ V.T.astype(dtype, copy=False), index, columns)

    def decompose(self, M: Any, *, row_features: Any = None) -> Result:
        """New rows taken apart with what was learned from the old: W, ``components_``, the noise model.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`
        """
        started = time.perf_counter()
        engine, prior = self._new_rows(M, row_features)
        found, W = self._scores(engine, prior), self.W_
        if prior is None:
            W = None if self._cols.expected is None else found.scores @ self._cols.expected.coefficients.T
        # New rows may be larger than the old, or in lower precision: their rounding is no gross error.
        rounding = rounding_floor(engine.dtype, _longest(found.scores) * _longest(self._V))
        zeta = max(self.zeta_, rounding)
        L = LowRank.from_product(found.scores, self._V)
        weights = self._weights(found.spread)
        S, trim = engine.corruption(L, self._limit(weights, zeta))
        known = (prior is not None) | (engine.counts[0] > 0), np.ones(L.shape[1], bool) & self._known(1)
        corruption = 1 - trim.kept_share
        return Result(
            L=L,
            S=_without_unknown(S, known),
            W=W,
            rank=L.rank,
            noise=self.noise_,
            corruption=corruption,
            zeta=zeta,
            residual=left_over(trim, self.noise_),
            explained=explained(L, left_over(trim, self.noise_)),
            status=Status.CONVERGED,
            history=History(),
            choices=(),
            doubts=with_labels(
                tuple(self._doubts(engine, prior, corruption)), labels_of(M, "index"), self._cols.labels
            ),
            solver=self.solver,
            engine=engine.name,
            reads=engine.reads,
            seconds=time.perf_counter() - started,
            counts=engine.counts,
            known=known,
            weights=weights,
            calibration=self.result_.calibration,
        )

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
        engine, prior = self._new_rows(M, row_features)
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

    def outliers(self, most: int | None = None, *, fdr: float | None = None) -> Any:
        """The outliers as a table, the most certain first.

        Cells of rows and columns about which nothing is known are not among them.

        Parameters
        ----------
        most : int or None
            How many; None for all.
        fdr : float or None
            The share of false alarms to allow among those reported, such as 0.05: the largest set whose mean of
            ``1 − probability`` is at most that. None: all that are more likely outliers than noise.

        Returns
        -------
        DataFrame if M was one, else a structured array
            ``row``, ``column``: labels, or positions where there are none. ``observed``, ``expected``: the
            entry of M and of L. ``difference``: the first less the second, the entry of S. ``score``: the size of the
            difference in units of its uncertainty; of an exact fit, and of solvers without a noise model, in multiples
            of ``zeta_``. ``probability``: of an outlier, given the distribution of all residuals
            (:mod:`irpca.calibration`); 1 in an exact fit, NaN if the solver has no noise model.
        """
        check_is_fitted(self)
        if most is not None and most < 0:
            raise ValueError(f"most must not be negative, got {most!r}")
        S, z = self._sparse.tocoo(), self._standardised.data
        score, probability = np.abs(z), probabilities(z, self.result_.calibration, self.noise_ == 0)
        order = np.lexsort((-score, -np.nan_to_num(probability)))
        order = order[(self._known(0)[S.row] & self._known(1)[S.col])[order]]
        if fdr is not None:
            order = order[reported(probability[order], score[order], fdr)]
        order = order[:most]
        rows, cols, difference = S.row[order], S.col[order], S.data[order]
        columns = {
            "row": rows.astype(np.intp),
            "column": cols.astype(np.intp),
            "observed": self._observed[order],
            "expected": self.low_rank_.entries(rows, cols).astype(difference.dtype),
            "difference": difference,
            "score": score[order],
            "probability": probability[order],
        }
        return as_table(columns, {"row": self._rows.labels, "column": self._cols.labels})

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
        engine, prior = self._new_rows(M, row_features)
        if prior is None:
            raise ValueError("row_features is needed, too: without, decompose(M) says what is wrong with new rows")
        weights = self._weights(np.zeros((len(prior), 2)))
        S, _ = engine.corruption(LowRank.from_product(prior, self._V), self._limit(weights, self.zeta_))
        S = standardised(S, weights, self.zeta_)
        return _lines_table(S, 0, engine.counts[0], "row", labels_of(M, "index"))

    def outlier_columns(self) -> Any:
        """How corrupted each column is, the most surprising first: which sensor is broken?"""
        return self._outlier_lines(1, "column", self._cols.labels)

    def _outlier_lines(self, axis: int, name: str, labels: Any) -> Any:
        check_is_fitted(self)
        S = _without_unknown(self._standardised, (self._known(0), self._known(1)))
        return _lines_table(S, axis, self.result_.counts[axis], name, labels)

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

    def _where_known(self, factor: Array, axis: int) -> Array:
        known = self._known(axis)
        return factor if known.all() else np.where(known[:, None], factor, np.nan)

    def _weights(self, spread: Array) -> Noise | None:
        """The noise model for new rows, whose scores are uncertain by ``spread``."""
        weights = self.result_.weights
        return weights and replace(weights, rows=np.full(len(spread), self._placement.row_scale), row_spread=spread)

    def _limit(self, weights: Noise | None, zeta: float) -> float | Standardised:
        """Beyond which an entry of new rows is an outlier: likely one, or beyond all that the fit has seen."""
        calibration = self.result_.calibration
        if weights is None or calibration is None or not len(calibration.edges):
            return zeta
        return Standardised(weights, min(calibration.limit, UNSEEN * float(calibration.edges[-1])))

    def summary(self) -> str:
        """What was found, what was chosen and why, what to doubt, the clearest outliers: for people."""
        check_is_fitted(self)
        lines = [self.result_.summary()]
        if self.sparse_ is not None and len(table := self.outliers(5)):
            records = table if isinstance(table, np.ndarray) else table.itertuples(index=False)
            lines.append("clearest outliers (row, column):")
            lines += [
                f"  {row}, {column}: {observed:.4g} where {expected:.4g} is expected"
                for row, column, observed, expected, *_ in records
            ]
        return "\n".join(lines)

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

    def _matrix(self, M: Any, reset: bool = False) -> Any:
        """M as solve() takes it, its columns checked: no copy and no other precision if it is a float array already."""
        if isinstance(M, np.ma.MaskedArray) or hasattr(M, "__irpca_observed__"):
            validate_data(self, M, reset=reset, skip_check_array=True)
            return M
        if hasattr(M, "dtypes") and hasattr(M, "columns") and len(text := [c for c in M.columns if _is_text(M[c])]):
            raise ValueError(
                f"the columns {', '.join(map(repr, text[:4]))} of M hold text, and M is a table of numbers; "
                "a list of observations becomes one by irpca.LongTable.from_frame(M, row=…, column=…, value=…)"
            )
        least = 2 if reset else 1
        return validate_data(
            self,
            without_na(M),
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
                f"col_features has {shape[0]} rows, as M has, but M has {shape[1]} columns. Cross-"
                "validation cuts arguments of fit like M: there, give col_features to the constructor"
            )
        return given

    def _keep(self, result: Result) -> None:
        self.result_ = result
        self.W_, self.low_rank_, self.sparse_ = result.W, result.L, result.S
        self.rank_, self.noise_, self.corruption_ = result.rank, result.noise, result.corruption
        self.zeta_, self.explained_, self.shares_ = result.zeta, result.explained, result.shares
        self.status_, self.converged_ = result.status, result.converged
        self.n_iter_, self.history_ = result.n_iter, result.history

    def _new_rows(self, M: Any, row_features: Any) -> tuple[Engine, Array | None]:
        """An owner of rows as they are used, and their scores as far as features tell them."""
        check_is_fitted(self)
        matrix = self._matrix(M)
        _check_columns(labels_of(M, "columns"), self._cols.labels)
        prior = None
        if row_features is not None:
            match(row_features, M, "row_features", "rows")
            prior = self._rows.place(row_features)
            if len(prior) != matrix.shape[0]:
                raise ValueError(f"row_features has {len(prior)} rows but M has {matrix.shape[0]}")
        return _owner(matrix, self.engine), prior

    @property
    def _explained_by_features(self) -> bool:
        """Whether features explain all of a row's scores."""
        energy = float(np.linalg.norm(self.singular_values_) ** 2 / self.low_rank_.shape[0])
        return self._placement.unexplained <= ROUNDING * energy

    def _scores(self, engine: Engine, prior: Array | None) -> _Placed:
        """Scores of rows, from what features say of them and from themselves."""
        if prior is not None and self._explained_by_features:
            return self._placement.given(prior)
        pieces = [
            self._placement.place(_rows_of(engine, rows), prior if prior is None else prior[rows])
            for rows in gen_batches(engine.shape[0], max(1, CHUNK_ENTRIES // engine.shape[1]))
        ]
        return _Placed(*map(np.concatenate, zip(*pieces, strict=True)))

    def _held_out(self, M: Array, prior: Array | None) -> Array:
        """Every entry as features and other columns of its row predict it."""
        if prior is not None and self._explained_by_features:
            return prior @ self._V.T
        expected = np.empty(M.shape)
        for fold in range(min(FOLDS, M.shape[1])):
            out = np.arange(M.shape[1]) % FOLDS == fold
            found = self._placement.place(M[:, ~out], prior, np.flatnonzero(~out))
            expected[:, out] = found.scores @ self._V[out].T
        return expected


@dataclass(frozen=True, eq=False)
class _Side:
    """What a model remembers of the rows, or of the columns, of its M.

    Attributes
    ----------
    name : of the features, as users know them
    labels : of these rows or columns, if M was a frame
    columns : the names of the features, if those were a frame
    expected : what features say of the factor of L. None without features
    """

    name: str
    labels: Any
    columns: Any
    expected: Expected | None

    def place(self, F: Any) -> Array:
        """The factor of L for features of other rows or columns."""
        if self.expected is None:
            what = "rows but their data: use transform or decompose with those"
            raise ValueError(
                f"{self.name} was given, but this model was fitted without, or by a solver that does not use them: "
                "it knows nothing about new " + (what if self.name == "row_features" else "columns")
            )
        names, d = labels_of(F, "columns"), len(self.expected.coefficients)
        F = check_array(F, dtype=np.float64, input_name=self.name)
        if F.shape[1] != d:
            hint = f"; did you mean {self.name}.T?" if len(F) == d else ""
            raise ValueError(f"{self.name} has {F.shape[1]} columns but had {d} in fit{hint}")
        if names is not None and self.columns is not None and not names.equals(self.columns):
            raise ValueError(f"the columns of {self.name} are {few(names)}, in fit {few(self.columns)}")
        return self.expected(F)


class _Placed(NamedTuple):
    """Scores of new rows, m×r, and how uncertain they are: ``row_spread`` of a :class:`Noise`, m×2."""

    scores: Array
    spread: Array


@dataclass(frozen=True, eq=False)
class _Placement:
    """What it takes to place new rows: factors of the columns, the noise, and what is expected of a row.

    The same posterior as in the fit, in its own coordinates: ``factors @ turn`` are scores. Of an exact fit, and of
    solvers without such a model, one is made from L, the noise and the share of outliers.

    Attributes
    ----------
    columns : Side
        Factors of the columns, in their units.
    noise : NoiseModel
    unit : array of shape (n2,)
        Of each column of M.
    turn : array of shape (K, r)
    average : array of shape (K,)
        The factors that are expected of a row without features.
    own, whole : arrays of shape (K, K)
        Covariance of the factors of rows about what features say, and about the average.
    posterior : array of shape (K, K)
        Covariance of the factors of a typical row, given its entries.
    exact : float
        0, or the size, relative to the entries of a row, below which a residual of an exact fit is rounding.
    """

    columns: Side
    noise: NoiseModel
    unit: Array
    turn: Array
    average: Array
    own: Array
    whole: Array
    posterior: Array
    exact: float = 0.0

    @classmethod
    def of(cls, result: Result, scores: Array, V: Array, expected: Array | None) -> _Placement:
        """From a result with ``L = scores @ V.T``, whose scores the features of rows ``expected`` to be so."""
        seen = result.counts[0] > 0  # of the others L is only what is expected
        if result.fit is None:
            average = scores[seen].mean(axis=0)
            own = scores - (average if expected is None else expected)
            spread = _covariance(own[seen]), _covariance((scores - average)[seen])
            return cls._plain(result, scores, V, average, *spread)
        fit, weights = result.fit, result.weights
        assert weights is not None
        unit = np.sqrt(weights.cols / fit.noise.weights(*fit.spreads).cols)
        rows, average = fit.rows, fit.rows.expected[seen].mean(axis=0)
        own = np.zeros_like(rows.covariance)
        if not rows.tied:
            own = _covariance((rows.mean - rows.expected)[seen]) + rows.covariance
        whole = own + _covariance(rows.expected[seen] - average)
        turn = (fit.cols.mean * unit[:, None]).T @ V
        return cls(fit.cols, fit.noise, unit, turn, average, own, whole, rows.covariance)

    @classmethod
    def _plain(cls, result: Result, scores: Array, V: Array, average: Array, own: Array, whole: Array) -> _Placement:
        """From L, with one noise for all entries."""
        (n2, r), n1 = V.shape, len(scores)
        ones, exact = np.ones(n2), 0.0
        typical = float(np.linalg.norm(scores)) / np.sqrt(n1 * n2)
        floor = max(constants.AS_GOOD_AS_EXACT * typical, np.finfo(float).tiny)
        s, zeta = max(result.noise or result.residual, floor), np.inf
        if result.noise == 0:
            exact, s = max(result.zeta / max(_longest(scores) * _longest(V), floor), np.finfo(float).tiny), floor
        elif np.isinf(result.zeta) and result.history.corruption[-1] == 0:  # as the fit, which trimmed nothing
            zeta = np.finfo(float).max
        S = result.S
        wrong = float(np.sqrt(np.mean(S.data.astype(float) ** 2))) if S is not None and S.nnz else 0.0
        gross = np.clip(np.nan_to_num(result.corruption, nan=constants.GROSS_AT_FIRST), *constants.GROSS_LIMITS)
        broad = max(wrong, 3 * typical, constants.BROAD * s)
        noise = NoiseModel(s, ones * np.finfo(float).tiny, np.ones(n1), ones, broad, float(gross), zeta=zeta)
        columns = Side(V, ones[:, None], False, np.zeros(r), np.zeros(r))
        return cls(columns, noise, ones, np.eye(r), average, own, whole, s * s * np.eye(r), exact)

    @property
    def row_scale(self) -> float:
        """The scale s² of a typical row."""
        return max(self.noise.s, self.noise.lowest) ** 2

    @property
    def unexplained(self) -> float:
        """The energy of a row's scores that features leave unexplained."""
        return float(np.trace(self.turn.T @ self.own @ self.turn))

    def given(self, scores: Array) -> _Placed:
        """Scores as they are, as uncertain as those of a typical row."""
        return _Placed(scores, np.column_stack([np.ones(len(scores)), self._along(scores @ self._back)]))

    @property
    def _back(self) -> Array:
        return np.linalg.pinv(self.turn)

    def _along(self, factors: Array) -> Array:
        return np.einsum("ik,ik->i", factors @ self.columns.covariance, factors)

    def place(self, X: Array, prior: Array | None, kept: Array | None = None) -> _Placed:
        """Scores of rows from their entries X across the columns ``kept``, and from ``prior``, if features say that."""
        m, rounding = len(X), rounding_floor(X.dtype, 1.0)
        if not self.turn.size:
            return _Placed(np.zeros((m, self.turn.shape[1])), np.zeros((m, 2)))
        kept = np.arange(len(self.unit)) if kept is None else kept
        expected = np.tile(self.average, (m, 1)) if prior is None else prior @ self._back
        variance, R = np.linalg.eigh(self.whole if prior is None else self.own)
        columns, rotated = self.columns.turned(R).some(kept), replace(self, posterior=R.T @ self.posterior @ R)
        noise = replace(self.noise, rows=np.ones(m), cols=self.noise.cols[kept], least=self.noise.least[kept])
        typical = float(np.sum(rotated.posterior * columns.second))
        X = np.asarray(X, float) / self.unit[kept]
        size = self._sizes(X)
        X, expected = X / size, expected / size
        lines = placed(X, expected @ R, np.maximum(variance, 0.0), rotated.posterior, columns, noise, typical)
        lines = rotated._settled(X, lines, columns, noise, np.maximum(variance, 0.0), typical)
        mean = self._trimmed(X, lines.mean, columns, noise, max(self.exact, rounding)) if self.exact else lines.mean
        factors = mean @ R.T * size
        spread = np.column_stack([lines.spread / max(typical, np.finfo(float).tiny), self._along(factors)])
        return _Placed(factors @ self.turn, spread)

    def _sizes(self, X: Array) -> Array:
        """What to divide rows by, m×1. In an exact world a row may be of any size; priors fit those of usual size."""
        if not self.exact:
            return np.ones((len(X), 1))
        sizes = np.zeros(len(X))
        seen = ~np.isnan(X).all(axis=1)
        sizes[seen] = np.nanmedian(np.abs(X[seen]), axis=1)
        return np.maximum(sizes / (UNUSUAL * self.noise.s / constants.AS_GOOD_AS_EXACT), 1.0)[:, None]

    def _settled(
        self, X: Array, lines: Lines, columns: Side, noise: NoiseModel, variance: Array, typical: float
    ) -> Lines:
        """The same with weights that have come to rest."""
        engine, V = in_memory(X), columns.mean
        prior = Prior(
            variance, np.ones(len(X)), columns.covariance, columns.spread, columns.second, mean=lines.expected
        )
        both = float(np.sum(self.posterior * columns.covariance))
        across = np.einsum("jk,jk->j", V @ self.posterior, V) + columns.spread * both
        for _ in range(SETTLING):
            before = lines.mean
            along = np.einsum("ik,ik->i", before @ columns.covariance, before)
            rows = np.column_stack([lines.spread / max(typical, np.finfo(float).tiny), along])
            weights = noise.weights(rows, np.column_stack([across, columns.spread]))
            lines = engine.solve_rows(before, V, weights, prior)
            if np.abs(lines.mean - before).max() <= SETTLED * np.abs(lines.mean).max():
                break
        return lines

    def _trimmed(self, X: Array, start: Array, columns: Side, noise: NoiseModel, floor: float) -> Array:
        """Least squares on what is kept, as the threshold falls to rounding: factors of an exact fit.

        Rows that no such fit explains, because next to nothing of them is kept in the end, stay as they are.
        """
        V = columns.mean
        typical = noise.s / constants.AS_GOOD_AS_EXACT
        size = np.maximum(np.abs(start @ V.T).max(axis=1), typical)[:, None]
        engine, mean, ones = in_memory(X / size), start / size, np.ones(len(X))
        zeta = constants.BEYOND * COMPONENTS[-1] * constants.AS_GOOD_AS_EXACT
        loose = np.full(mean.shape[1], constants.LOOSE * max(float((mean**2).max()), 1.0))
        for _ in range(constants.TRIM_STEPS):
            zeta = max(zeta, floor)
            weights = replace(noise, s=1.0, zeta=zeta).weights(np.zeros((len(X), 2)), np.zeros((len(V), 2)))
            prior = Prior(loose, ones, columns.covariance, columns.spread, columns.second, mean=mean)
            lines = engine.solve_rows(mean, V, weights, prior)
            before, mean = mean, lines.mean
            if zeta == floor and np.abs(mean - before).max() <= constants.ROUNDING * np.abs(mean).max():
                break
            zeta /= constants.DECAY
        enough = lines.sums.rows[:, 1] > mean.shape[1]
        return np.where(enough[:, None], mean * size, start)


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


def _lines_table(S: Any, axis: int, counts: Array, name: str, labels: Any) -> Any:
    lines = score_lines(S, axis, counts)
    _, *others = lines.dtype.names or ()
    return as_table({name: lines["position"], **{other: lines[other] for other in others}}, {name: labels})


def _without_unknown(S: csr_array, known: tuple[Array, Array]) -> csr_array:
    """S without the cells of rows and columns about which nothing is known."""
    if known[0].all() and known[1].all():
        return S
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    kept = known[0][rows] & known[1][S.indices]
    return csr_array((S.data[kept], (rows[kept], S.indices[kept])), shape=S.shape)


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


def _is_text(column: Any) -> bool:
    values = column.dropna()
    return len(values) > 0 and isinstance(values.iloc[0], str)


def _check_columns(given: Any, fitted: Any) -> None:
    """Refuse new rows whose columns are labelled, and not as in fit."""
    if given is None or fitted is None or given.equals(fitted):
        return
    advice = "; their order is another: pass M[model's columns]" if set(given) == set(fitted) else ""
    raise ValueError(f"the columns of M are {few(given)}, in fit {few(fitted)}{advice}")


def _owner(matrix: Any, engine: str) -> Engine:
    """The engine for new rows. All of them are read anyway, so holes are looked for everywhere."""
    dense = isinstance(matrix, np.ndarray) and not isinstance(matrix, np.ma.MaskedArray)
    return choose(matrix, "observed" if engine == "auto" and dense and np.isnan(matrix).any() else engine)


def _rows_of(engine: Engine, rows: slice) -> Array:
    first, last, _ = rows.indices(engine.shape[0])
    return engine.block(np.arange(first, last), np.arange(engine.shape[1]))


def _principal(L: LowRank) -> tuple[Array, Array, Array]:
    """U, s and V with ``L = U @ diag(s) @ V.T``, the largest entry of every column of V positive."""
    L = LowRank.from_product(*L.thin())
    sign = np.where(L.right[np.abs(L.right).argmax(axis=0), np.arange(L.rank)] < 0, -1.0, 1.0)
    return L.left * sign, np.diag(L.core), L.right * sign


def _covariance(scores: Array) -> Array:
    """About zero."""
    covariance: Array = scores.T @ scores / len(scores)
    return covariance


def _longest(rows: Array) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))
