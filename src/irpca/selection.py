"""Cross-validation: parameters chosen by how well they predict held-out entries."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import ParameterGrid
from sklearn.utils.parallel import Parallel, delayed

from .arguments import flag, generator, naming, text, whole
from .cached import cached_property
from .containers import as_records, taken
from .described import Described
from .engines import single_threaded_blas
from .engines.holes import observed_entries
from .engines.sparse_part import only, places
from .estimator import InductiveRobustPCA
from .features import FeatureWarning
from .lowrank import Array
from .sample import rounding_floor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NEVER = -1  # the fold of an entry that is in every training set
FAILED = "FAILED"
OPTION = "solver_options__"
TIE = 1e-3  # in mean log error: errors within a thousandth of each other differ by rounding, or might as well
SCORES = ("log_error", "median_error", "rmse")


class _Outcome(NamedTuple):
    """How one setting predicts one fold."""

    log_error: float
    median_error: float
    rmse: float
    status: str
    message: str
    seconds: float


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """How well each setting predicts entries that it has not seen.

    Attributes
    ----------
    params : tuple of dict
        The settings, in the order of the grid.
    log_error, median_error, rmse : array of shape (settings, folds)
        Mean of ``log |error|``, median of ``|error|`` and root mean square of the errors, over the entries held out.
        NaN where a fit failed. Only the first is robust enough to choose by: some of these entries are gross errors.
    status : array of shape (settings, folds)
        Names of :class:`irpca.Status`, or "FAILED" where the fit raised.
    messages : tuple of str
        What the first failure of each setting said; empty if there was none.
    seconds : array of shape (settings, folds)
    best_index, reason : int, str
        Which setting was chosen, and why.
    n_observed, n_held_out : int
        Entries that were observed, and those of them that were held out once.
    """

    params: tuple[dict[str, Any], ...]
    log_error: Array
    median_error: Array
    rmse: Array
    status: Array
    messages: tuple[str, ...]
    seconds: Array
    best_index: int
    reason: str
    n_observed: int
    n_held_out: int
    model: InductiveRobustPCA = field(repr=False)
    data: tuple[Any, Any, Any] = field(repr=False)

    @property
    def best_params(self) -> dict[str, Any]:
        return dict(self.params[self.best_index])

    @cached_property
    def best_estimator(self) -> InductiveRobustPCA:
        """The model with the best parameters, fitted to all of M when it is first asked for."""
        M, row_features, col_features = self.data
        best = _with(self.model, self.best_params)
        return best.fit(M, row_features=row_features, col_features=col_features)

    @property
    def table(self) -> Array:
        """One line for each setting, as a structured array.

        Its parameters by name; mean and standard error over the folds (``…_se``) of ``log_error``, ``median_error`` and
        ``rmse``; ``status``, counted where folds differ; ``message``.
        """
        columns = {name: _objects(self._value(params, name) for params in self.params) for name in self._names}
        for name in SCORES:
            columns[name], columns[f"{name}_se"] = _mean_and_error(getattr(self, name))
        columns |= {"status": _objects(map(_counted, self.status)), "message": _objects(self.messages)}
        table: Array = as_records(columns)
        return table

    def curve(self, name: str) -> tuple[Array, Array, Array]:
        """``log_error`` along one parameter, the others being those that were chosen, as for a plot.

        Returns
        -------
        values, mean, standard_error : arrays
        """
        if name not in self._names:
            raise ValueError(f"{name!r} is not in the grid; it has {', '.join(map(repr, self._names)) or 'nothing'}")
        table, others = self.table, [other for other in self._names if other != name]
        best = table[self.best_index]
        along = [k for k, setting in enumerate(table) if all(np.all(setting[one] == best[one]) for one in others)]
        values = table[name][along]
        plain = all(isinstance(value, int | float) for value in values)
        values = np.array(values.tolist()) if plain else values
        return values, table["log_error"][along], table["log_error_se"][along]

    def summary(self) -> str:
        """What was compared, what was chosen and why, what failed: text for people."""
        folds = self.log_error.shape[1]
        head = f"{len(self.params)} settings, {folds} folds: each predicts {self.n_held_out} held-out cells"
        others = "; the others are the only cells of their row or column, and are never held out"
        head += f" of {self.n_observed}{others}" if self.n_held_out < self.n_observed else ""
        mean, error = _mean_and_error(self.log_error)
        names = [_named(params) for params in self.params]
        width = max(map(len, names))
        lines = [head, "typical error (mean log error ± standard error; median, root mean square):"]
        for k, name in enumerate(names):
            mark = "→" if k == self.best_index else " "
            more = f"{self.median_error[k].mean():.4g}, {self.rmse[k].mean():.4g}"
            lines.append(f"{mark} {name:{width}}  {np.exp(mean[k]):.4g} ({mean[k]:.4f} ± {error[k]:.4f}; {more})")
        lines.append(f"chosen: {names[self.best_index]}: {self.reason}")
        for name, message, status in zip(names, self.messages, self.status, strict=True):
            if message:
                lines.append(f"  - {name} failed: {message}")
            elif (status != "CONVERGED").any():
                lines.append(f"  - {name} did not always converge: {_counted(status)}")
        return "\n".join(lines)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for params in self.params for name in params))

    def _value(self, params: dict[str, Any], name: str) -> Any:
        """That of the model where a setting leaves it alone."""
        if name in params:
            return params[name]
        if name.startswith(OPTION):
            return (self.model.solver_options or {}).get(name.removeprefix(OPTION))
        return self.model.get_params(deep=False)[name]

    def __repr__(self) -> str:
        return f"CrossValidation({len(self.params)} settings, best: {_named(self.best_params)})"


def cross_validate(
    model: InductiveRobustPCA,
    M: Any,
    *,
    row_features: Any = None,
    col_features: Any = None,
    param_grid: dict[str, Iterable[Any]] | list[dict[str, Iterable[Any]]] | None = None,
    cv: int = 5,
    hold_out: str = "entries",
    one_standard_error: bool = True,
    n_jobs: int | None = None,
    random_state: int | np.random.Generator | None = 0,
) -> CrossValidation:
    """Compare settings of a model by how well they predict entries that were held out.

    The observed entries of M are dealt into folds. Each fold in turn is treated as not observed, the model is fitted to
    the others, and its L predicts the fold.

    Parameters
    ----------
    model : InductiveRobustPCA
        It is not changed.
    M, row_features, col_features : as in :meth:`InductiveRobustPCA.fit`
    param_grid : dict of lists, several such in a list, or None
        Parameters of the model and the values to try, the simpler ones first; the first parameter varies slowest. A
        single option of the solver is named like ``solver_options__noise``. None: the model as it is.
    cv : int
        Number of folds.
    hold_out : {"entries", "rows", "columns"}
        ``"entries"``: single ones, the entries of each row spread evenly over the folds. ``"rows"``, ``"columns"``:
        whole rows or columns, which features alone predict then, as for new users or items (cold start).
    one_standard_error : bool
        Take the first setting in the grid whose mean error is within one standard error of the lowest; False: the
        lowest, and of settings that tie, to a ten thousandth, the first.
    n_jobs : int or None
        Fits at the same time, in processes of their own; -1 for one per core. It does not change the answer.
    random_state : int, Generator or None
        Decides about the folds, which are the same for all settings, and for any kind of M with the same entries.

    Returns
    -------
    CrossValidation

    Notes
    -----
    Held-out entries may be gross errors, and how large these are says nothing about a model. So settings are compared
    by the mean of ``log |error|``, to which a gross error adds about the same whatever the setting. An error below
    rounding counts as rounding.

    A setting with which a fit raises is not chosen, and its message is kept. Fits that do not converge count, and their
    status is reported.

    Without features, a row or column that loses all its entries cannot be predicted, so those are never held out.

    Examples
    --------
    >>> import irpca
    >>> problem = irpca.datasets.make_problem(80, 60, d1=6, d2=5, rank=2, corruption=0.1, noise=1e-3)
    >>> found = irpca.selection.cross_validate(
    ...     irpca.InductiveRobustPCA(extra_rank=0),
    ...     problem.M,
    ...     row_features=problem.F1,
    ...     col_features=problem.F2,
    ...     param_grid={"rank": [1, 2, 3, 4]},
    ... )
    >>> found.best_params, found.best_estimator.rank_
    ({'rank': 2}, 2)
    """
    if not isinstance(model, InductiveRobustPCA):
        raise ValueError(f"model must be an InductiveRobustPCA, got {type(model).__name__}")
    one_standard_error = flag(one_standard_error, "one_standard_error")
    if n_jobs is not None and whole(n_jobs, "n_jobs") == 0:
        raise ValueError("n_jobs must not be 0; None is one at a time, -1 one per core")
    params = _settings(param_grid)
    models = [_with(model, setting) for setting in params]
    given = taken(M)
    matrix = clone(model)._matrix(given, reset=True)
    # Encoded once: the parts that are fitted have no labels.
    rows = Described.of(row_features, "row_features", "rows", given.rows).array(row_features)
    cols = Described.of(col_features, "col_features", "columns", given.columns).array(col_features)
    entries = observed_entries(matrix)
    described = row_features is not None, not (col_features is None and model.col_features is None)
    folds = _folds(entries, cv, hold_out, described, generator(random_state))
    with warnings.catch_warnings():  # here too: threads of one process share their filters
        _silence()
        most = len(models) * cv  # joblib would start as many processes as it is asked for
        outcomes = Parallel(n_jobs=n_jobs if n_jobs is None else min(n_jobs, most))(
            delayed(_outcome)(one, train, held_out, rows, cols)
            for train, held_out in _splits(entries, folds, cv)
            for one in models
        )
    lines = [outcomes[k :: len(params)] for k in range(len(params))]  # they come fold by fold
    messages = tuple(map(_first_message, lines))
    if all(messages):
        raise ValueError(f"no setting could be fitted in every fold; {_named(params[0])} failed: {messages[0]}")
    log_error, median, rmse, status, _, seconds = (
        np.array([[one[at] for one in line] for line in lines]) for at in range(len(_Outcome._fields))
    )
    best, reason = _choose(params, log_error, one_standard_error)
    held_out, data = int(np.count_nonzero(folds != NEVER)), (M, row_features, col_features)
    scores = log_error, median, rmse, status, messages, seconds
    return CrossValidation(params, *scores, best, reason, len(folds), held_out, clone(model), data)


def _settings(param_grid: Any) -> tuple[dict[str, Any], ...]:
    """Every combination, in the order given."""
    given = param_grid or {}
    with naming("param_grid"):
        grids = ParameterGrid(given if isinstance(given, list) else [given]).param_grid
    if odd := [name for grid in grids for name in grid if not isinstance(name, str)]:
        raise ValueError(f"param_grid names parameters by text, got {odd[0]!r}")
    return tuple(dict(zip(grid, values, strict=True)) for grid in grids for values in product(*grid.values()))


def _with(model: InductiveRobustPCA, params: dict[str, Any]) -> InductiveRobustPCA:
    """A copy of the model with these parameters; ``solver_options__…`` are added to the options it has."""
    plain = {name: value for name, value in params.items() if not name.startswith(OPTION)}
    copy = clone(model).set_params(**plain)
    options = {name.removeprefix(OPTION): value for name, value in params.items() if name not in plain}
    if options:
        copy.set_params(solver_options={**(copy.solver_options or {}), **options})
    return copy


def _folds(entries: csr_array, cv: int, hold_out: str, described: tuple[bool, bool], rng: np.random.Generator) -> Array:
    """The fold of each entry, in the order of ``entries``."""
    if whole(cv, "cv", least=2) > entries.nnz:
        raise ValueError(
            f"cv={cv} is more than the {entries.nnz} observed entries, which cannot fill so many folds; lower cv"
        )
    if text(hold_out, "hold_out") not in ("entries", "rows", "columns"):
        raise ValueError(f"hold_out={hold_out!r} is unknown; choose 'entries', 'rows' or 'columns'")
    lines = places(entries)
    if hold_out == "entries":
        folds = _deal(lines[0], cv, rng)
    else:
        side, name = (0, "row_features") if hold_out == "rows" else (1, "col_features")
        if not described[side]:
            raise ValueError(
                f"hold_out={hold_out!r} needs {name}: without them held-out {hold_out} cannot be predicted"
            )
        folds = _deal(np.zeros(entries.shape[side], np.intp), cv, rng)[lines[side]]
    for at, n, known in zip(lines, entries.shape, described, strict=True):
        if not known:
            folds[_find_alone(folds, at, n, cv)] = NEVER
    empty = np.count_nonzero(np.bincount(folds[folds != NEVER], minlength=cv) == 0)
    if empty:
        what = "observed entries that can be held out" if hold_out == "entries" else f"{hold_out} with observed entries"
        raise ValueError(f"there are too few {what} for {cv} folds: {empty} would be empty; lower cv")
    return folds


def _deal(groups: Array, cv: int, rng: np.random.Generator) -> Array:
    """Folds assigned in turn to the shuffled members of one group after the other."""
    order = np.lexsort((rng.random(len(groups)), groups))
    folds = np.empty(len(groups), np.int32)
    folds[order] = np.arange(len(groups)) % cv
    return folds


def _find_alone(folds: Array, lines: Array, n: int, cv: int) -> Array:
    """Which entries are in a fold with all others of their line."""
    first, last = np.full(n, cv, folds.dtype), np.full(n, NEVER, folds.dtype)
    np.minimum.at(first, lines, folds)
    np.maximum.at(last, lines, folds)
    alone: Array = (first == last)[lines]
    return alone


def _splits(entries: csr_array, folds: Array, cv: int) -> Iterator[tuple[csr_array, tuple[Array, Array, Array]]]:
    """For each fold the other entries as a matrix, and its own as rows, columns and values."""
    rows, cols = places(entries)
    for fold in range(cv):
        out = folds == fold
        yield only(entries, ~out), (rows[out], cols[out], entries.data[out])


def _silence() -> None:
    """Outcomes hold the status, and the final fit repeats what is to be said about features."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", FeatureWarning)


def _outcome(
    model: InductiveRobustPCA, train: csr_array, held_out: tuple[Array, Array, Array], F1: Any, F2: Any
) -> _Outcome:
    """Fit, predict, compare; an exception is an outcome too."""
    started = time.perf_counter()
    rows, cols, values = held_out
    try:
        with warnings.catch_warnings(), single_threaded_blas:
            _silence()
            model = clone(model).fit(train, row_features=F1, col_features=F2)
            sizes = np.abs(values - model.low_rank_.entries(rows, cols))
        if not np.isfinite(sizes).all():
            raise FloatingPointError(f"predictions are not finite. {model.status_.name}: {model.status_.advice}")
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return _Outcome(np.nan, np.nan, np.nan, FAILED, message, time.perf_counter() - started)
    # One lower bound for all settings, from the data: smaller errors are rounding.
    floor = max(rounding_floor(train.dtype, float(np.median(np.abs(train.data)))), float(np.finfo(float).tiny))
    log_error = float(np.log(np.maximum(sizes, floor)).mean())
    median, rmse = float(np.median(sizes)), float(np.sqrt(np.mean(sizes**2)))
    return _Outcome(log_error, median, rmse, model.status_.name, "", time.perf_counter() - started)


def _first_message(line: list[_Outcome]) -> str:
    failed = [(fold, one.message) for fold, one in enumerate(line) if one.message]
    if not failed:
        return ""
    where = "" if len(failed) == len(line) else f"in {len(failed)} of {len(line)} folds, first in {failed[0][0]}: "
    return where + failed[0][1]


def _choose(params: tuple[dict[str, Any], ...], log_error: Array, one_standard_error: bool) -> tuple[int, str]:
    """The setting to take, and why."""
    mean, error = _mean_and_error(log_error)
    lowest = int(np.nanargmin(mean))
    slack = max(error[lowest], TIE) if one_standard_error else TIE
    first = int(np.flatnonzero(mean <= mean[lowest] + slack)[0])
    if len(params) == 1:
        return lowest, "the only setting"
    if first == lowest:
        simpler = ", and no simpler setting is within one standard error of it" if one_standard_error and first else ""
        return first, f"the lowest mean log error, {mean[first]:.4f}{simpler}"
    within = f"within one standard error, {slack:.4f}, of" if slack > TIE else "that is as good as"
    return first, (
        f"the simplest setting {within} the lowest mean log error, {mean[lowest]:.4f} with {_named(params[lowest])}"
    )


def _mean_and_error(scores: Array) -> tuple[Array, Array]:
    """Mean over folds, and its standard error."""
    return scores.mean(axis=1), scores.std(axis=1, ddof=1) / np.sqrt(scores.shape[1])


def _objects(values: Iterable[Any]) -> Array:
    """An array that leaves its values as they are, lists and dicts too."""
    return np.fromiter(values, object)


def _counted(statuses: Array) -> str:
    """``CONVERGED``, or ``CONVERGED 4, MAX_ITER 1``."""
    counts = Counter(statuses.tolist())
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{status} {count}" for status, count in counts.most_common())


def _named(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in params.items()) or "the model as it is"
