"""The scikit-learn face: checks input once, in the words of its users, and leaves the rest to solve()."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MethodType
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import assert_all_finite, check_array, gen_batches
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted, validate_data

from .callbacks import Callback
from .engines import choose
from .features import Features
from .lowrank import Array, LowRank
from .regression import CHUNK_ENTRIES, row_scores
from .result import History, Result, Status
from .solve import explained, solve
from .solvers import SOLVERS
from .threshold import rounding_floor

FOLDS = 5  # score() predicts each fifth of the columns from the others
STRANGE = 0.1  # new rows are doubtful if their share of gross errors exceeds that of the fit by this


class _IfFeatures:
    """A method that models fitted without features lack: ``hasattr`` is False, as scikit-learn expects."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self.method
        if hasattr(model, "_rows") and model._rows.basis is None and model._cols.basis is None:
            raise AttributeError(
                f"{self.method.__name__} needs features, and this model was fitted without, or by a solver that does "
                "not use them: nothing is known about new rows but their data; use transform or decompose with those. "
                "L is low_rank_"
            )
        return MethodType(self.method, model)


class InductiveRobustPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the features of rows and columns explain of M, and what is grossly wrong with it, as an estimator.

    ``M = F1 @ W @ F2.T + S + noise`` with W of low rank and S sparse; see :func:`irpca.solve`.

    Parameters
    ----------
    rank : int or "auto"
    col_features : array or DataFrame of shape (n2, d2), or None
        F2. It may be given to ``fit`` instead; but scikit-learn's cross-validation cuts whatever is as long
        as M has rows, with a square M these features too, so there they belong here.
    solver : str
        Any of those of :func:`irpca.solve`.
    engine : {"auto", "cpu", "reference"}
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
        S; :meth:`outliers` makes it a table.
    W_ : array of shape (d1, d2), or None
        In the coordinates of the features as given. A side without features has one coordinate per row or
        column of M; None without any features.
    components_ : array of shape (r, n2)
        Orthonormal directions of the rows of L, the strongest first, the largest entry of each positive.
    singular_values_ : array of shape (r,)
        Those of L.
    rank_, noise_, corruption_, zeta_, explained_ : int, float, float, float, float
        Rank of L, standard deviation of the noise, share of the entries in S, size beyond which an entry is a
        gross error, share of the energy of the other entries that L explains.
    status_, converged_, n_iter_, history_ : Status, bool, int, History
        How the fit went.
    result_ : Result
        All of it, as :func:`irpca.solve` returned it.
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
        M : array or DataFrame of shape (n1, n2)
            float32 and float64 are used as they are, memory-mapped files too; integers become float64.
        y : ignored
        row_features, col_features : array or DataFrame of shape (n1, d1) and (n2, d2), or None
            F1 and F2. None: nothing is known about that side.
        """
        if not isinstance(self.engine, str):
            raise ValueError("engine must be a name here: an Engine owns one matrix; pass it to irpca.solve")
        matrix = self._matrix(M, reset=True)
        rows, columns = _labels(M, "index"), _labels(M, "columns")
        col_features = self._chosen_col_features(col_features, matrix.shape)
        _match(row_features, rows, "row_features", "rows")
        _match(col_features, columns, "col_features", "columns")
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
            **(self.solver_options or {}),
        )
        self._keep(result)
        U, s, V = _principal(result.L)
        self.components_, self.singular_values_ = V.T.astype(matrix.dtype), s.astype(matrix.dtype)
        if not SOLVERS[self.solver].features:  # L need not lie in their span, so they predict nothing
            F1, F2 = Features.identity(F1.n), Features.identity(F2.n)
        self._rows = _Side.of("row_features", rows, row_features, F1, U * s)
        self._cols = _Side.of("col_features", columns, col_features, F2, V)
        if not result.converged:
            told = "\n  ".join([f"{result.status.name}: {result.status.advice}", *result.doubts])
            warnings.warn(told, ConvergenceWarning, stacklevel=2)
        return self

    def fit_transform(self, M: Any, y: Any = None, *, row_features: Any = None, col_features: Any = None) -> Any:
        """``fit``, then ``transform`` of the same M with the same ``row_features``."""
        self.fit(M, y, row_features=row_features, col_features=col_features)
        return self.transform(M, row_features=None if self._rows.basis is None else row_features)

    def transform(self, M: Any, *, row_features: Any = None) -> Any:
        """Scores of rows: ``inverse_transform(scores)`` are their rows of L. Nothing is fitted again.

        Parameters
        ----------
        M : array or DataFrame of shape (m, n2)
        row_features : array or DataFrame of shape (m, d1), or None
            If given, L is what the features say, ``row_features @ W @ F2.T``. If not, every row is regressed
            on ``components_``, its gross errors trimmed.

        Returns
        -------
        array of shape (m, r), or what ``set_output`` asks for
        """
        matrix, scores = self._new_rows(M, row_features)
        if scores is None:
            scores = self._regressed(matrix, self._V)
        return scores.astype(matrix.dtype, copy=False)

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
            U, index = left @ (right.T @ self._V), self._rows.labels
        else:
            U, index = self._rows.place(row_features), _labels(row_features, "index")
        if col_features is None:
            V, columns = self._V, self._cols.labels
        else:
            V, columns = self._cols.place(col_features), _labels(col_features, "index")
        dtype = self.components_.dtype
        return _labelled(U.astype(dtype, copy=False) @ V.T.astype(dtype, copy=False), index, columns)

    def decompose(self, M: Any, *, row_features: Any = None) -> Result:
        """New rows taken apart with what was learned from the old: W, ``components_``, the threshold.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`
        """
        started = time.perf_counter()
        matrix, scores = self._new_rows(M, row_features)
        reads, W = 0, self.W_
        if scores is None:
            scores, reads = self._regressed(matrix, self._V), 1
            W = None if self._cols.basis is None else scores @ self._cols.basis.T
        # New rows may be larger than the old, or in lower precision: their rounding is no gross error.
        rounding = rounding_floor(matrix.dtype, _longest(scores) * _longest(self._V))
        zeta = max(self.zeta_, rounding)
        L = LowRank.from_product(scores, self._V)
        engine = choose(matrix, self.engine)
        S, trim = engine.corruption(L, zeta)
        corruption = 1 - trim.kept_share
        doubts: tuple[str, ...] = ()
        if corruption > self.corruption_ + STRANGE:
            doubts = (
                f"{corruption:.1%} of the entries are gross errors, {self.corruption_:.1%} were in the fit: "
                "the model may not hold for these rows",
            )
        return Result(
            L=L,
            S=S,
            W=W,
            rank=L.rank,
            noise=self.noise_,
            corruption=corruption,
            zeta=zeta,
            explained=explained(L, trim, self.noise_),
            status=Status.CONVERGED,
            history=History(),
            choices=(),
            doubts=doubts,
            solver=self.solver,
            engine=engine.name,
            reads=engine.reads + reads,
            seconds=time.perf_counter() - started,
        )

    def score(self, M: Any, y: Any = None, *, row_features: Any = None, sample_weight: Any = None) -> float:
        """How well rows are predicted: minus the mean logarithm of ``|M − L|``, so higher is better.

        The logarithm makes it robust: a gross error counts about the same for every model, however large it
        is. ``exp(-score)`` is a typical error, in the units of M.

        No entry is predicted from itself: with ``row_features`` it is predicted from those alone, and without
        from other columns of its row, four fifths of them. So a rank that is too high does not score better.

        Parameters
        ----------
        M, row_features : as in :meth:`transform`
        y : ignored
        sample_weight : array of shape (m,), or None
            Weights of rows.
        """
        matrix, scores = self._new_rows(M, row_features)
        typical = float(np.linalg.norm(self.singular_values_)) / np.sqrt(np.prod(self.low_rank_.shape))
        means = np.empty(len(matrix))
        for rows in gen_batches(len(matrix), max(1, CHUNK_ENTRIES // matrix.shape[1])):
            expected = self._held_out(matrix[rows]) if scores is None else scores[rows] @ self._V.T
            # Nothing is explained better than to rounding, not even zeros by a row of zeros.
            largest = np.abs(expected).max(axis=1, keepdims=True, initial=typical)
            rounding = np.maximum(rounding_floor(matrix.dtype, 1.0) * largest, np.finfo(float).tiny)
            means[rows] = np.log(np.maximum(np.abs(matrix[rows] - expected), rounding)).mean(axis=1)
        # Models that differ by rounding alone shall tie, so that a search takes the first of them.
        return round(-float(np.average(means, weights=sample_weight)), 6)

    def outliers(self, most: int | None = None) -> Any:
        """The gross errors as a table, the largest first.

        Parameters
        ----------
        most : int or None
            How many; None for all.

        Returns
        -------
        DataFrame if M was one, else a structured array
            ``row``, ``column``: labels, or positions where there are none. ``observed``, ``expected``: the
            entry of M and of L. ``difference``: the first less the second, the entry of S.
        """
        check_is_fitted(self)
        if most is not None and most < 0:
            raise ValueError(f"most must not be negative, got {most!r}")
        if self.sparse_ is None:
            raise ValueError(f"there is no S. {self.status_.name}: {self.status_.advice}")
        S = self.sparse_.tocoo()
        order = np.argsort(-np.abs(S.data), kind="stable")[:most]
        rows, cols, difference = S.row[order], S.col[order], S.data[order]
        expected = self.low_rank_.entries(rows, cols).astype(S.dtype)
        values = {"observed": expected + difference, "expected": expected, "difference": difference}
        if self._rows.labels is not None:
            import pandas as pd

            return pd.DataFrame({"row": self._rows.labels[rows], "column": self._cols.labels[cols], **values})
        columns = {"row": rows.astype(np.intp), "column": cols.astype(np.intp), **values}
        table = np.empty(len(order), dtype=[(name, column.dtype) for name, column in columns.items()])
        for name, column in columns.items():
            table[name] = column
        return table

    def summary(self) -> str:
        """What was found, what was chosen and why, what to doubt, the largest gross errors: for people."""
        check_is_fitted(self)
        lines = [self.result_.summary()]
        if self.sparse_ is not None and self.sparse_.nnz:
            table = self.outliers(5)
            records = table if isinstance(table, np.ndarray) else table.itertuples(index=False)
            lines.append("largest gross errors (row, column):")
            lines += [
                f"  {row}, {column}: {observed:.4g} where {expected:.4g} is expected"
                for row, column, observed, expected, _ in records
            ]
        return "\n".join(lines)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    @property
    def _V(self) -> Array:
        """``components_`` as columns, in double precision."""
        return self.components_.T.astype(float, copy=False)

    def _matrix(self, M: Any, reset: bool = False) -> Array:
        """M as a float array: no copy and no other precision if it is one already."""
        if isinstance(M, np.ma.MaskedArray):
            raise ValueError("M is a masked array: missing entries are not supported yet; fill them first")
        least = 2 if reset else 1
        M = validate_data(
            self,
            M,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,  # fit: the engine sees to it on reads that it makes anyway
            ensure_min_samples=least,
            ensure_min_features=least,
        )
        if not reset:
            assert_all_finite(M, input_name="M")
        return M

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
        self.zeta_, self.explained_ = result.zeta, result.explained
        self.status_, self.converged_ = result.status, result.converged
        self.n_iter_, self.history_ = result.n_iter, result.history

    def _new_rows(self, M: Any, row_features: Any) -> tuple[Array, Array | None]:
        """Rows as they are used, and their scores as far as features tell them."""
        check_is_fitted(self)
        matrix = self._matrix(M)
        if row_features is None:
            return matrix, None
        _match(row_features, _labels(M, "index"), "row_features", "rows")
        scores = self._rows.place(row_features)
        if len(scores) != len(matrix):
            raise ValueError(f"row_features has {len(scores)} rows but M has {len(matrix)}")
        return matrix, scores

    def _regressed(self, M: Array, V: Array) -> Array:
        """Scores from the rows themselves."""
        if np.isinf(self.zeta_) and self.history_.corruption[-1] == 0:  # as the fit, which trimmed nothing
            return M @ V
        # A fit that was stopped early may not have a threshold yet.
        return row_scores(M, V, self.zeta_ if np.isfinite(self.zeta_) else None)

    def _held_out(self, M: Array) -> Array:
        """Every entry as other columns of its row predict it."""
        expected = np.empty(M.shape)
        for fold in range(min(FOLDS, M.shape[1])):
            out = np.arange(M.shape[1]) % FOLDS == fold
            expected[:, out] = self._regressed(M[:, ~out], self._V[~out]) @ self._V[out].T
        return expected


@dataclass(frozen=True, eq=False)
class _Side:
    """What a model remembers of the rows, or of the columns, of its M.

    Attributes
    ----------
    name : of the features, as users know them
    labels : of these rows or columns, if M was a frame
    columns : the names of the features, if those were a frame
    basis : array of shape (d, r); ``F @ basis`` is the factor of L for features F. None without features
    """

    name: str
    labels: Any
    columns: Any
    basis: Array | None

    @classmethod
    def of(cls, name: str, labels: Any, F: Any, features: Features, factor: Array) -> _Side:
        basis = features.coefficients(factor) if features.given else None
        return cls(name, labels, _labels(F, "columns"), basis)

    def place(self, F: Any) -> Array:
        """The factor of L for features of other rows or columns."""
        if self.basis is None:
            what = "rows but their data: use transform or decompose with those"
            raise ValueError(
                f"{self.name} was given, but this model was fitted without, or by a solver that does not use them: "
                "it knows nothing about new " + (what if self.name == "row_features" else "columns")
            )
        names, d = _labels(F, "columns"), len(self.basis)
        F = check_array(F, dtype=np.float64, input_name=self.name)
        if F.shape[1] != d:
            hint = f"; did you mean {self.name}.T?" if len(F) == d else ""
            raise ValueError(f"{self.name} has {F.shape[1]} columns but had {d} in fit{hint}")
        if names is not None and self.columns is not None and not names.equals(self.columns):
            raise ValueError(f"the columns of {self.name} are {_few(names)}, in fit {_few(self.columns)}")
        return F @ self.basis


def _principal(L: LowRank) -> tuple[Array, Array, Array]:
    """U, s and V with ``L = U @ diag(s) @ V.T``, the largest entry of every column of V positive."""
    L = LowRank.from_product(*L.thin())
    sign = np.where(L.right[np.abs(L.right).argmax(axis=0), np.arange(L.rank)] < 0, -1.0, 1.0)
    return L.left * sign, np.diag(L.core), L.right * sign


def _longest(rows: Array) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))


def _labels(frame: Any, axis: str) -> Any:
    """The index or the columns of a pandas frame, None of anything else."""
    return getattr(frame, axis) if hasattr(frame, "iloc") and hasattr(frame, "columns") else None


def _labelled(values: Array, index: Any, columns: Any) -> Any:
    if index is None and columns is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, index=index, columns=columns)


def _match(F: Any, labels: Any, name: str, side: str) -> None:
    """Refuse features whose index is not that of the rows, or columns, of M, when both are frames."""
    index = _labels(F, "index")
    if index is None or labels is None or len(index) != len(labels) or index.equals(labels):
        return
    of_M = "M.index" if side == "rows" else "M.columns"
    if index.is_unique and labels.is_unique and labels.isin(index).all():
        advice = f"the labels are the same in another order: pass {name}.loc[{of_M}]"
    else:
        advice = f"if they belong together as they stand, pass {name}.set_axis({of_M})"
    raise ValueError(
        f"the index of {name} does not match the {side} of M: {_few(index)} against {_few(labels)}; {advice}"
    )


def _few(labels: Any, most: int = 4) -> str:
    return ", ".join(map(repr, labels[:most].tolist())) + (", …" if len(labels) > most else "")
