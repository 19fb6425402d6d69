"""The one iteration loop: it owns the clock, the stopping rule, the history, the seeds and the final read."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from . import constants
from .arguments import flag, naming, number, whole, whole_or_auto
from .arguments import path as checked
from .callbacks import Callback, listed
from .checkpoint import Journal
from .engines import choose, single_threaded_blas
from .engines.base import Engine, Look, Trim, not_whole, title
from .engines.sparse_part import flagged, places, to_host
from .features import Features
from .lowrank import Array, LowRank
from .mistakes import mistakes_of
from .model.calibration import Calibration
from .model.entry_scale import Judge, calibrate
from .outlier_files import OutlierFiles
from .problem import Problem
from .result import Doubt, History, Result, State, Status
from .sample import stored_precision
from .solvers import Solver, solver_named
from .verdict import Case, doubts_of, looks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .engines.sparse_part import Sparse

Seed = int | np.random.Generator | np.random.SeedSequence | None
PURPOSES = (
    "solver",
    "calibration",
    "check",
    "glance",
)  # a new one goes to the end: the seeds of the others stay as they are


@single_threaded_blas  # what is done between reads is small: threads would only wait for each other
def solve(
    M: Any,
    F1: Any = None,
    F2: Any = None,
    *,
    rank: int | str = "auto",
    solver: str = "irpca",
    engine: str | Engine = "auto",
    tol: float = 1e-10,
    max_iter: int = 100,
    sparse: bool = True,
    outliers_to: str | Path | None = None,
    callbacks: Callback | Iterable[Callback] | None = (),
    resume: str | os.PathLike[str] | None = None,
    random_state: Seed = 0,
    **options: Any,
) -> Result:
    """Separate M into ``F1 @ W @ F2.T``, of low rank, and S, sparse.

    Parameters
    ----------
    M : array, frame, sparse array or LongTable of shape (n1, n2)
        float32 and float64 are used as they are, memory-mapped files too; integers become float64. NaN and what is
        masked is not observed; of a sparse array the stored entries are observed, zeros too.
        Or M in chunks, never in memory as a whole: a dask or zarr array, a zarr group of one matrix, an xarray with a
        dask array inside, a dask DataFrame of row, column and value, or the path of a zarr store, of a folder of
        ``.npy`` files or of a Parquet table of row, column and value, whose ids, sorted, are the rows and columns. See
        :doc:`/guides/huge-data`.
        Or a torch tensor: dense, or in compressed rows (``torch.sparse_csr``) of which the stored entries are
        observed. One on the CPU is used as it is, without gradients; one on a CUDA device stays there, see
        :doc:`/guides/gpu`. bfloat16 and float16 are computed with as float32.
    F1, F2 : array of shape (n1, d1) and (n2, d2), Features, or None
        Features, one row per row and per column of M. None: nothing is known about that side. They may be torch
        tensors, or arrays of any library with ``__dlpack__``, on any device, also on another than M: they are small,
        and are brought into host memory.
    rank : int or "auto"
    solver : str
        ``"irpca"``: robust matrix factorisation with features in the priors; exact where the data are exact.
        ``"trimmed"``: its exact fit alone, trimmed least squares, for data without noise; needs features.
        ``"bayes"``: its model of noisy data alone.
        ``"irpca_iht"``: the paper's Algorithm 1; needs ``rank``.
        ``"pcpf"``: the convex program with features; finds its own rank.
        ``"pcp"``, ``"altproj"``, ``"accaltproj"``, ``"rpca_gd"``, ``"scaledgd"``, ``"ircur"``, ``"pca"``: methods that
        use no features; the result has a doubt that says so if some are given. See :doc:`/methods`.
    engine : {"auto", "memory", "gpu", "distributed", "reference"} or an Engine
    tol : float
        Stop when L changes by less than this, relative to its size, or by far less than noise makes it uncertain.
    max_iter : int
    sparse : bool
        False: do not return S. With features of both sides that saves the last read of M, of which only a part may
        have been read then: a NaN elsewhere is not noticed.
    outliers_to : str, path or None
        Write the outliers there: a folder of Parquet files, such as ``"S.parquet"``, with the columns row, column,
        observed, expected and probability, that pandas, polars, pyarrow and dask read as one table. It appears when it
        is complete; after a crash the same call goes on with what was written. Needs ``pip install "irpca[files]"``.
        S comes back, too, if M has at most 2²⁴ cells; beyond that it is None, and never in memory as a whole.
    callbacks : callable or several
        Called with ``(state, history)`` after each iteration; returning True stops. See :mod:`irpca.callbacks`.
    resume : path or None
        A file that :func:`irpca.callbacks.checkpoint` made in an earlier solve with the same M and arguments, which was
        interrupted: go on from it, and in it, to the same result. ``reads`` and ``seconds`` of the result and of its
        history are those of this run. A ``random_state`` of None is that of the earlier run.
    random_state : int, Generator, SeedSequence or None
        Decides which entries are sampled: nothing in a table of up to 32,768 cells, except to solvers that are random.
    **options
        Passed to the solver. ``columns="auto"`` finds out what the columns of M hold, as the estimator does by itself;
        without it all are fitted as they are.

    Returns
    -------
    Result

    Examples
    --------
    >>> import irpca
    >>> problem = irpca.datasets.make_problem(300, 200, d1=8, d2=6, rank=2, corruption=0.2)
    >>> result = irpca.solve(problem.M, problem.F1, problem.F2)
    >>> result.status.name, result.rank, problem.relative_error(result.L) < 1e-10
    ('CONVERGED', 2, True)
    """
    started = time.perf_counter()
    method, owner = _solver(solver, options), choose(M, engine)
    if not method.needs <= owner.capabilities:
        raise not_whole(owner.name, f"solver={solver!r}")
    n1, n2 = owner.shape
    if min(n1, n2) < 2:
        raise ValueError(f"M has shape {(n1, n2)}; at least two rows and two columns are needed")
    F1 = F1 if isinstance(F1, Features) else Features.of(F1, n1, "F1", "rows")
    F2 = F2 if isinstance(F2, Features) else Features.of(F2, n2, "F2", "columns")
    if (F1.n, F2.n) != owner.shape:
        raise ValueError(f"these Features are of a {F1.n} × {F2.n} matrix, M is {n1} × {n2}")
    unused = _unused(solver, method, rank, F1.given or F2.given)
    if not method.features:
        F1, F2 = Features.identity(n1), Features.identity(n2)
    chosen_rank = _rank(rank, F1, F2, solver, method)
    whole(max_iter, "max_iter", least=1)
    number(tol, "tol", least=0)
    files = _outlier_files(outliers_to, flag(sparse, "sparse"), M, owner, solver)
    watchers = listed(callbacks)
    resumed = None if resume is None else checked(resume, "resume")
    with _watched(owner, watchers), Journal.asked_for(owner, watchers, resumed) as journal:
        if journal is not None:
            owner = cast(Engine, journal)
            random_state = journal.seed if random_state is None else random_state
        seeds = seeds_of(random_state)
        if journal is not None:
            journal.begin(_asked(solver, method, rank, tol, options, seeds, (F1, F2)))
        problem = Problem(owner, F1, F2, chosen_rank, seeds["solver"])
        if owner.dear:
            owner.survey(_looks(method, problem, options, seeds))
        if method.rank != "found":
            _check_enough(owner, F1, F2, chosen_rank or 1)
        run = _Run(problem, seeds, started, sparse, files)
        ending = {name: value for name, value in (("tol", tol), ("max_iter", max_iter)) if method.takes(name)}
        run.iterate(method.run(problem, **options, **ending), watchers, tol, max_iter)
        if journal is not None:
            journal.ending()
        return run.result(solver, unused)


class _Run:
    """One call of solve(): the iterations, the final read of M, and the result.

    Attributes
    ----------
    problem : as the solver was given it; once columns are mapped, that of their latent values
    state, status, history : the last iterate, how the iterations ended, and what happened
    files : where outliers shall be written
    streamed : whether they go there piece by piece, and are never in memory as a whole
    """

    def __init__(
        self,
        problem: Problem,
        seeds: dict[str, np.random.SeedSequence],
        started: float,
        sparse: bool,
        files: OutlierFiles | None,
    ) -> None:
        self.problem, self.seeds, self.started = problem, seeds, started
        self.table = problem.engine  # the owner of M, where later that of its latent values is asked
        self.sparse, self.files = sparse, files
        self.streamed = files is not None and np.prod(problem.shape) > constants.BUDGET.memory
        self.history, self.status = History(), Status.CONVERGED  # a solver that ends by itself has nothing left to do
        self.state: State | None = None
        before = self.owner.reads
        _refuse_zero(self.owner, np.random.default_rng(seeds["glance"]))
        self.own_reads = self.owner.reads - before  # of solve() itself: few, and not the solver's

    @property
    def owner(self) -> Engine:
        return self.problem.engine

    @property
    def reads(self) -> float:
        return round(self.owner.reads - self.own_reads, 9)

    def iterate(self, states: Iterator[State], watchers: Iterable[Callback], tol: float, max_iter: int) -> None:
        """Take states from a solver until one is settled and still, a callback stops, or max_iter were made."""
        rounding = 10 * float(np.finfo(self.owner.dtype).eps)  # a step below it is as good as none
        try:
            with _interrupts():
                while self.status is Status.CONVERGED:
                    # A fit that is not finite is given up, and told: NumPy need not warn.
                    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                        state = next(states, None)
                    if state is None:
                        break
                    self.state = state
                    if state.maps is not None and self.problem.maps is None:  # from now on latent values are looked at
                        self.problem = self.problem.mapped(state.maps)
                    self.history.append(state, time.perf_counter() - self.started, self.reads)
                    if not np.isfinite(state.step) or not (state.stage or np.isfinite(state.L.core).all()):
                        self.status = Status.DIVERGED
                    elif any([watch(state, self.history) for watch in watchers]):
                        self.status = Status.STOPPED
                    elif state.settled and state.step <= max(tol, state.tolerance, rounding):
                        break
                    elif self.history.stage.count("") >= max_iter:
                        self.status = Status.MAX_ITER
                if self.status is Status.CONVERGED and self.state is not None and self.state.whole:
                    self.state = self.state.whole()  # before a journal ends: a fit that is resumed asks for the same
        except KeyboardInterrupt:
            if self.state is None:
                raise
            self.status = Status.INTERRUPTED

    def result(self, solver: str, unused: tuple[Doubt, ...]) -> Result:
        """The last state, what it leaves of M, and what to doubt."""
        state = self.state
        assert state is not None
        if self.status is Status.CONVERGED and not state.converged:
            self.status = Status.MAX_ITER
        if state.failure and self.status in (Status.CONVERGED, Status.MAX_ITER):
            self.status = Status.SATURATED
        judge, trim, S, counted, sink = self._judge_by_threshold(state), state.trim, None, None, None
        if self.status is not Status.DIVERGED:
            try:
                with _interrupts():
                    state = state.whole() if state.whole else state
                    state, judge = self._judge_of(state)
                    sink = self.files and self.files.of(state.L, judge, getattr(self.owner, "edges", None))
                    if self.sparse:
                        S, counted, trim = self._read_outliers(state.L, judge, sink if self.streamed else None)
            except KeyboardInterrupt:  # the fit is there, and all but its S
                self.status, sink = Status.INTERRUPTED, None
                if self.sparse and not self.streamed:
                    S, counted, trim = self._read_outliers(state.L, judge, None)
        if S is not None:
            S = judge.outliers(S)
            counted = flagged(S, 0), flagged(S, 1)
            if sink is not None:
                _put(sink, self.owner, state.L, to_host(S, "outliers_to"))
        if counted is not None and trim is not None:  # of the candidates beyond a looser limit
            outliers = int(counted[0].sum())
            trim = replace(trim, kept=trim.kept + trim.trimmed - outliers, trimmed=outliers)
        reads, residual = self.reads, left_over(trim, state.noise)
        case = Case(self.owner, self.problem.features, state, counted, judge, self.status, self.seeds["check"])
        doubts = unused + doubts_of(case)
        path = None if sink is None or counted is None else sink.finish(int(counted[0].sum()))
        found = Result(
            L=state.L,
            S=S,
            W=None if self.status is Status.DIVERGED else _latent(state, *self.problem.features),
            rank=state.L.rank,
            noise=state.noise,
            corruption=_corruption(state, trim, judge.calibration),
            zeta=state.zeta,
            residual=residual,
            explained=explained(state.L, residual),
            status=self.status,
            history=self.history,
            choices=state.choices,
            doubts=doubts,
            solver=solver,
            engine=title(self.owner),
            reads=reads,
            seconds=time.perf_counter() - self.started,
            counts=self.owner.counts,
            shares=state.shares,
            expected=state.expected,
            known=judge.known,
            certificate=state.certificate,
            scale=judge.scale or state.scale,
            calibration=judge.calibration,
            fit=state.fit,
            outliers_path=path,
        )
        found = found.in_units_of_M(state.maps)
        mistakes, named = mistakes_of(found, self.table)
        return replace(found, mistakes=mistakes, doubts=doubts + named)

    def _judge_by_threshold(self, state: State) -> Judge:
        known = known_lines(self.owner, *self.problem.features, state)
        return Judge(state.zeta, exact=state.noise == 0 and not state.failure, known=known)

    def _judge_of(self, state: State) -> tuple[State, Judge]:
        """What an outlier is: a residual beyond the threshold or, with a model of the noise, by its probability."""
        judge = self._judge_by_threshold(state)
        if state.scale is not None:
            judge, zeta = _calibrated(self.owner, state, judge, np.random.default_rng(self.seeds["calibration"]))
            state = replace(state, zeta=zeta)
        if self.status is Status.SATURATED:
            judge = replace(judge, calibration=None, exact=False)
        return state, judge

    def _read_outliers(self, L: LowRank, judge: Judge, sink: OutlierFiles | None) -> Outliers:
        """The final read of M: candidates of S, or S written to files, and then how many each line has."""
        owner = self.owner
        if owner.asynchronous:  # the device will be busy with S while a fit is checked
            owner.survey(list(looks(owner.shape, self.seeds["check"])))
        if sink is None:
            S, trim = owner.corruption(L, judge.candidates)
            return S, None, trim
        sink.begin()
        counted, trim = owner.write(L, judge.candidates, sink)
        return None, counted, trim


@contextmanager
def _interrupts() -> Iterator[None]:
    """Ctrl-C within compiled code comes as a SystemError, whose cause is the interrupt."""
    try:
        yield
    except SystemError as error:
        if error.__cause__ is None or isinstance(error.__cause__, Exception):
            raise
        raise error.__cause__ from None


@contextmanager
def _watched(engine: Engine, watchers: Iterable[Callback]) -> Iterator[None]:
    """Callbacks that want to know are told when a chunk of M was read; after it the engine is as it was."""
    told = [watch.reading for watch in watchers if hasattr(watch, "reading")]

    def tell(done: int, total: int) -> None:
        for reading in told:
            reading(done, total)

    before, engine.watch = engine.watch, tell if told else None
    try:
        yield
    finally:
        engine.watch = before


def _looks(
    method: Solver, problem: Problem, options: dict[str, Any], seeds: dict[str, np.random.SeedSequence]
) -> list[Look]:
    """Where M will be looked at, from the glance at the start to the checks at the end."""
    found = [
        Look(size=constants.BUDGET.few, seed=seeds["glance"]),
        Look(size=constants.BUDGET.sample, seed=seeds["calibration"]),
        *looks(problem.shape, seeds["check"]),
    ]
    return found + (method.looks(problem, **options) if method.looks else [])


Outliers = tuple["Sparse | None", tuple[Array, Array] | None, Trim]  # S, or how many there are per line; the others


def _outlier_files(path: str | Path | None, sparse: bool, M: Any, owner: Engine, solver: str) -> OutlierFiles | None:
    """Where outliers shall be written; what stands in the way is said before the fit begins."""
    if path is None:
        return None
    if not sparse:
        raise ValueError("sparse=False asks for no outliers and outliers_to for a file of them; give one of the two")
    labels = getattr(owner, "labels", None) or (getattr(M, "row_labels", None), getattr(M, "col_labels", None))
    return OutlierFiles.at(checked(path, "outliers_to"), owner.shape, owner.dtype, solver, labels)


def _put(sink: OutlierFiles, owner: Engine, L: LowRank, S: csr_array) -> None:
    """Write an S that is in memory."""
    rows, cols = places(S)
    sink.begin()
    sink.put((0, 0), rows, cols, owner.entries(rows, cols), L.entries(rows, cols), S.data)


def seeds_of(random_state: Seed) -> dict[str, np.random.SeedSequence]:
    """A seed for every purpose, all from one: one question more for one of them changes no answer to another."""
    if isinstance(random_state, np.random.Generator):  # it moves on: the next call will see other numbers
        root = np.random.SeedSequence(random_state.integers(2**63, size=4).tolist())
    elif isinstance(random_state, np.random.SeedSequence):  # it does not: as with an int
        root = np.random.SeedSequence(random_state.entropy, spawn_key=random_state.spawn_key)
    else:
        with naming("random_state"):
            root = np.random.SeedSequence(random_state)
    return dict(zip(PURPOSES, root.spawn(len(PURPOSES)), strict=True))


def _calibrated(owner: Engine, state: State, judge: Judge, rng: np.random.Generator) -> tuple[Judge, float]:
    """The judge with probabilities learned from residuals at random entries; and the limit of a typical entry."""
    assert state.scale is not None
    rows, cols, values = owner.draw(constants.BUDGET.sample, rng)
    residuals = values - state.L.sampled(rows, cols)
    unit = state.scale.unit_at(residuals, rows, cols)
    # Of latent values the mixture takes those of few values for narrow noise and gross errors: its share says nothing.
    gross = state.gross if state.maps is None else 0.0
    known = any(state.scale.confused)  # unless the run ended early
    learned = calibrate([(state.scale, residuals, rows, cols)], gross, known)[0]
    stored = max(4 * float(np.finfo(values.dtype).eps), stored_precision(*np.unique(values, return_counts=True)))
    rounding = float(np.median(stored * np.abs(values) / unit))  # of a value, and of a sum of a few products
    typical = float(np.median(unit[np.isfinite(unit)])) if np.isfinite(unit).any() else state.noise or 1.0
    limit = max(learned.limit, constants.MIN_OUTLIER_LIMIT, rounding)
    return replace(judge, limit=limit, scale=learned.scale, calibration=learned.calibration), limit * typical


def known_lines(owner: Engine, F1: Features, F2: Features, state: State) -> tuple[Array, Array]:
    """The rows and columns whose expected values (L) are determined by the data.

    Those with features, and those with at least as many entries as L has components. With fewer, if the fit has a
    posterior: those whose posterior variance of L is at most half of the prior variance.
    """
    known = []
    for axis, (F, counts) in enumerate(zip((F1, F2), owner.counts, strict=True)):
        enough = counts >= max(state.L.rank, 1)
        if F.given:
            enough = np.ones(F.n, bool)
        elif state.fit is not None and state.L.rank:
            enough |= (counts > 0) & (_uncertainty(state.fit, axis) <= constants.MAJORITY)
        known.append(enough)
    return known[0], known[1]


def _uncertainty(fit: Any, axis: int) -> Array:
    """The posterior variance of L in every row (0) or column, relative to that before its entries were seen."""
    side, other = (fit.rows, fit.cols) if axis == 0 else (fit.cols, fit.rows)
    before = float(side.variance @ np.diag(other.second))
    after: Array = side.spread * float(np.sum(side.covariance * other.second))
    return after / before if before > 0 else np.zeros_like(after)


def _solver(name: str, options: dict[str, Any]) -> Solver:
    method = solver_named(name)
    known = method.options
    if unknown := set(options) - set(known):
        raise TypeError(f"solver={name!r} takes no option {', '.join(sorted(unknown))}; it takes {', '.join(known)}")
    return method


def _asked(
    solver: str,
    method: Solver,
    rank: Any,
    tol: float,
    options: dict[str, Any],
    seeds: dict[str, np.random.SeedSequence],
    features: tuple[Features, Features],
) -> dict[str, Any]:
    """What a checkpoint must agree with. ``max_iter``, ``sparse`` and callbacks may change: they only end a run."""
    if "whole" in method.needs:
        raise ValueError(
            f"solver={solver!r} keeps arrays as large as M, which a checkpoint does not hold: leave checkpoint and "
            "resume out, or take another solver, such as 'irpca'"
        )
    known = inspect.signature(method.run).parameters
    seed = seeds["solver"]
    return {
        "solver": solver,
        "rank": rank,
        "tol": tol,
        **{name: options.get(name, known[name].default) for name in method.options},
        "seed": (seed.entropy, seed.spawn_key[:-1]),
        "F1": features[0].F,
        "F2": features[1].F,
    }


def _check_enough(owner: Engine, F1: Features, F2: Features, rank: int) -> None:
    """Refuse a matrix of which fewer entries are observed than L has degrees of freedom; empty lines have none."""
    d1, d2 = (
        F.d if F.given else int(np.count_nonzero(counts)) for F, counts in zip((F1, F2), owner.counts, strict=True)
    )
    needed = rank * (d1 + d2 - rank)
    if owner.n_observed < needed:
        n1, n2 = owner.shape
        raise ValueError(
            f"M has {owner.n_observed} observed cells ({owner.n_observed / (n1 * n2):.2g} of all), too few for rank "
            f"{rank}: the expected values (L) then have {needed} degrees of freedom, rank · ({d1} + {d2} − rank), and "
            "at least as many cells are needed, several times as many to detect outliers. Give a lower rank, fewer "
            "features, or more data"
        )


def _rank(rank: int | str, F1: Features, F2: Features, solver: str, method: Solver) -> int | None:
    """The rank as an integer within the possible, or None for the solver to choose."""
    most, rank = min(F1.d, F2.d), whole_or_auto(rank, "rank")
    if isinstance(rank, str):
        if method.rank == "needed":
            raise ValueError(f"solver={solver!r} needs the rank: pass rank=r with 1 <= r <= {most}")
        return None
    if not 1 <= rank <= most:
        raise ValueError(
            f"rank={rank} is out of range: M and its features allow {F1.d} components for rows and {F2.d} for columns, "
            f"so choose 1 <= rank <= {most}, or 'auto'"
        )
    return None if method.rank == "found" else rank


def _unused(solver: str, method: Solver, rank: Any, features: bool) -> tuple[Doubt, ...]:
    """Doubts about arguments that this solver does not use: nothing is ignored silently."""
    unused = []
    if features and not method.features:
        text = f"solver={solver!r} does not use features: those given had no effect"
        unused.append(Doubt("unused-features", text))
    if method.rank == "found" and not isinstance(rank, str):
        text = f"solver={solver!r} takes no rank: it finds its own, and rank={rank} was not used"
        unused.append(Doubt("unused-rank", text))
    return tuple(unused)


def _refuse_zero(owner: Engine, rng: np.random.Generator) -> None:
    """Refuse an M that is entirely zero; all of it is read only if a few entries are."""
    _, _, values = owner.draw(constants.BUDGET.few, rng)
    if not values.any():
        *_, trim = owner.products(LowRank.zero(owner.shape), np.inf, np.zeros((owner.shape[1], 1)))
        if trim.largest == 0:
            raise ValueError("M is all zero: there is nothing to find")


def _latent(state: State, F1: Features, F2: Features) -> Array | None:
    """W in the user's own coordinates."""
    W: Array
    if state.expected is not None:
        rows, cols = state.expected
        if rows is None or cols is None:
            return None
        W = rows.coefficients @ state.L.core @ cols.coefficients.T
        return W
    if not (F1.given or F2.given):
        return None
    W = F1.coefficients(state.L.left) @ state.L.core @ F2.coefficients(state.L.right).T
    return W


def _corruption(state: State, trim: Trim | None, calibration: Calibration | None) -> float:
    """The share of the entries in S, or what is known of it."""
    if trim is not None:
        return 1 - trim.kept_share
    if calibration is not None:
        return calibration.share
    return np.nan if state.expected_corruption is None else state.expected_corruption


def left_over(trim: Trim | None, noise: float | None) -> float:
    """Root mean square of the residuals that are not in S, as far as it is known."""
    return float(np.sqrt(trim.energy / max(trim.kept, 1))) if trim is not None else noise or 0.0


def explained(L: LowRank, residual: float) -> float:
    """Share of the energy of L in that of L and residual, per entry."""
    signal = float((L.core**2).sum()) / (L.shape[0] * L.shape[1])
    rest = residual**2
    return signal / (signal + rest) if signal + rest > 0 else 0.0
