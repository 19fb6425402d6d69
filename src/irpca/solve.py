"""The one iteration loop: it owns the clock, the stopping rule, the history and the final read."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .callbacks import Callback
from .engines import choose, observed, single_threaded_blas
from .engines.base import Engine, MissingEntries, Trim
from .features import Features
from .lowrank import Array, LowRank
from .result import History, Result, State, Status
from .solvers import SOLVERS, Solver
from .threshold import stray_lines


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
    callbacks: Callback | Iterable[Callback] = (),
    random_state: int | np.random.Generator | None = 0,
    **options: Any,
) -> Result:
    """Separate M into ``F1 @ W @ F2.T``, of low rank, and S, sparse.

    Parameters
    ----------
    M : array, frame, sparse array or LongTable of shape (n1, n2)
        float32 and float64 are used as they are, memory-mapped files too; integers become float64. NaN and what is
        masked is not observed; of a sparse array the stored entries are observed, zeros too.
    F1, F2 : array of shape (n1, d1) and (n2, d2), Features, or None
        Features, one row per row and per column of M. None: nothing is known about that side.
    rank : int or "auto"
    solver : str
        ``"irpca"``: trimmed least squares in whitened feature space, thresholds from the data.
        ``"irpca_iht"``: the paper's Algorithm 1; needs ``rank``.
        ``"bayes"``: factors whose priors features inform, under heavy-tailed noise: for ratings, and other data that
        are mostly noise and seen in few places; finds its own rank.
        ``"pcpf"``: the convex program with features; finds its own rank.
        ``"pcp"``, ``"altproj"``, ``"accaltproj"``, ``"rpca_gd"``, ``"scaledgd"``, ``"ircur"``, ``"pca"``: methods that
        use no features, and say so among the doubts if they are given some. See :doc:`/methods`.
    engine : {"auto", "cpu", "observed", "reference"} or an Engine
    tol : float
        Stop when L changes by less than this, relative to its size, or by far less than noise makes it uncertain.
    max_iter : int
    sparse : bool
        False: do not return S. With features of both sides that saves the last read of M, of which only a part may
        have been looked at then: a NaN elsewhere is not noticed.
    callbacks : callable or several
        Called with ``(state, history)`` after each iteration; returning True stops. See :mod:`irpca.callbacks`.
    random_state : int, Generator or None
        Decides which rows, columns and entries are looked at first.
    **options
        Passed to the solver.

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
    method = _solver(solver, options)
    owner = choose(M, method.engine if method.engine and isinstance(engine, str) and engine == "auto" else engine)
    try:
        return _solve(
            owner, method, F1, F2, rank, solver, tol, max_iter, sparse, callbacks, random_state, options, started
        )
    except MissingEntries:  # so few that a look at some entries did not show them
        if engine != "auto":
            raise
        owner = observed(M)
    return _solve(owner, method, F1, F2, rank, solver, tol, max_iter, sparse, callbacks, random_state, options, started)


def _solve(
    owner: Engine,
    method: Solver,
    F1: Any,
    F2: Any,
    rank: int | str,
    solver: str,
    tol: float,
    max_iter: int,
    sparse: bool,
    callbacks: Callback | Iterable[Callback],
    random_state: int | np.random.Generator | None,
    options: dict[str, Any],
    started: float,
) -> Result:
    """What :func:`solve` does, once there is an owner of M."""
    n1, n2 = owner.shape
    if min(n1, n2) < 2:
        raise ValueError(f"M has shape {(n1, n2)}; at least two rows and two columns are needed to tell L from S")
    features1 = F1 if isinstance(F1, Features) else Features.of(F1, n1, "F1", "rows")
    features2 = F2 if isinstance(F2, Features) else Features.of(F2, n2, "F2", "columns")
    if (features1.n, features2.n) != owner.shape:
        raise ValueError(f"these Features are of a {features1.n} × {features2.n} matrix, M is {n1} × {n2}")
    unused = _unused(solver, method, rank, features1.given or features2.given)
    if not method.features:
        features1, features2 = Features.identity(n1), Features.identity(n2)
    chosen_rank = _rank(rank, features1, features2, solver, method)
    if method.rank != "found":
        _check_enough(owner, features1.d, features2.d, chosen_rank or 1)
    if not max_iter >= 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter!r}")
    if not tol >= 0:
        raise ValueError(f"tol must not be negative, got {tol!r}")
    watchers = [callbacks] if callable(callbacks) else list(callbacks)
    if "random_state" in inspect.signature(method.run).parameters:
        wants_seeds = solver == "irpca"
        options = {**options, "random_state": seeds_of(random_state) if wants_seeds else np.random.default_rng(random_state)}

    history = History()
    state: State | None = None
    final: tuple[Any, Trim] | None = None
    status = Status.CONVERGED  # a solver that ends by itself has nothing left to do
    try:
        for state in method.run(owner, features1, features2, chosen_rank, **options):
            history.append(state, time.perf_counter() - started, owner.reads)
            if not np.isfinite(state.step) or not np.isfinite(state.L.core).all():
                status = Status.DIVERGED
                break
            stop = [watch(state, history) for watch in watchers]
            if any(stop):
                status = Status.STOPPED
                break
            if state.settled and state.step <= max(tol, state.tolerance):
                seen = state.trim is not None or state.expected_corruption is None  # all of M, or nothing is expected
                if seen or not (sparse or state.one_by_one):
                    break
                final = owner.corruption(state.L, state.zeta)
                if _as_expected(state, *final, owner.counts):
                    break
                final = None
            if len(history) >= max_iter:
                status = Status.MAX_ITER
                break
    except KeyboardInterrupt:
        if state is None:
            raise
        status = Status.STOPPED
    assert state is not None
    if not state.L.core.any() and _is_zero(owner):
        raise ValueError("M is all zero: there is nothing to take apart")

    if state.failure and status in (Status.CONVERGED, Status.MAX_ITER):
        status = Status.SATURATED
    if sparse and final is None and status is not Status.DIVERGED:  # what the solver held has been let go by now
        try:
            final = owner.corruption(state.L, state.zeta) if state.weights is None else flagged(owner, state)
        except KeyboardInterrupt:  # the fit is there, and all but its S
            status, final = Status.STOPPED, owner.corruption(state.L, state.zeta)
    S, trim = final or (None, state.trim)
    S = S if sparse else None
    share = explained(state.L, left_over(trim, state.noise))
    doubts = unused + state.doubts + ((state.failure,) if state.failure else ())
    if status in (Status.CONVERGED, Status.MAX_ITER):
        doubts += tuple(_doubts(share, state, min(features1.d, features2.d), S, owner.n_observed))
    doubts += tuple(_unseen(owner, features1, features2, state))
    return Result(
        L=state.L,
        S=S,
        W=None if status is Status.DIVERGED else _latent(state, features1, features2),
        rank=state.L.rank,
        noise=state.noise,
        corruption=_corruption(state, trim),
        zeta=state.zeta,
        residual=left_over(trim, state.noise),
        explained=share,
        status=status,
        history=history,
        choices=state.choices,
        doubts=doubts,
        solver=solver,
        engine=owner.name,
        reads=owner.reads,
        seconds=time.perf_counter() - started,
        counts=owner.counts,
        shares=state.shares,
        expected=state.expected,
        certificate=state.certificate,
        weights=state.weights,
        fit=state.fit,
    )


def seeds_of(random_state: int | np.random.Generator | None) -> np.random.SeedSequence:
    """One sequence of seeds; every purpose has a child of its own, so one question more changes no other answer."""
    if isinstance(random_state, np.random.Generator):
        return np.random.SeedSequence(random_state.integers(2**63, size=4).tolist())
    return np.random.SeedSequence(random_state)


def flagged(owner: Engine, state: State):
    from scipy.sparse import csr_array
    from .calibration import GrossErrorCalibration
    w=state.weights
    n1,n2=owner.shape
    M=owner.block(np.arange(n1),np.arange(n2))
    R=M-state.L.dense()
    s2=np.multiply.outer(w.rows,w.cols)
    z=R/np.sqrt(s2+np.minimum(w.row_spread@w.col_spread.T,9*s2))
    seen=np.isfinite(M)
    cal=GrossErrorCalibration(z[seen])
    P=np.where(seen,cal(np.where(seen,z,0)),0)
    i,j=np.nonzero(P>.5)
    kept=seen&(P<=.5)
    return csr_array((R[i,j],(i,j)),shape=(n1,n2)), Trim(int(kept.sum()),len(i),float((R[kept]**2).sum()),float(np.abs(R[kept]).max(initial=0)))


def _solver(name: str, options: dict[str, Any]) -> Solver:
    if name not in SOLVERS:
        raise ValueError(f"solver={name!r} is unknown; choose one of {', '.join(map(repr, SOLVERS))}")
    known = SOLVERS[name].options
    if unknown := set(options) - set(known):
        raise TypeError(f"solver={name!r} takes no option {', '.join(sorted(unknown))}; it takes {', '.join(known)}")
    return SOLVERS[name]


def _check_enough(owner: Engine, d1: int, d2: int, rank: int) -> None:
    """Refuse a matrix of which fewer entries are observed than L has degrees of freedom."""
    needed = rank * (d1 + d2 - rank)
    if owner.n_observed < needed:
        n1, n2 = owner.shape
        raise ValueError(
            f"M has {owner.n_observed} observed entries ({owner.n_observed / (n1 * n2):.2g} of all), and L of rank "
            f"{rank} has {needed} degrees of freedom, rank · ({d1} + {d2} − rank): it takes at least as many entries, "
            "and several times as many to tell errors from L. Give fewer features, a lower rank, or more data"
        )


def _rank(rank: Any, F1: Features, F2: Features, solver: str, method: Solver) -> int | None:
    """The rank as an integer within the possible, or None for the solver to choose."""
    most = min(F1.d, F2.d)
    if isinstance(rank, str) and rank == "auto":
        if method.rank == "needed":
            raise ValueError(f"solver={solver!r} needs the rank: pass rank=r with 1 <= r <= {most}")
        return None
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise ValueError(f"rank must be a positive integer or 'auto', got {rank!r}")
    if not 1 <= rank <= most:
        raise ValueError(
            f"rank={rank} is out of range: L has {F1.d} directions for rows and {F2.d} for columns, "
            f"so choose 1 <= rank <= {most}, or 'auto'"
        )
    return None if method.rank == "found" else int(rank)


def _unused(solver: str, method: Solver, rank: Any, features: bool) -> tuple[str, ...]:
    """What was given and this solver has no use for: one word is changed to compare methods, and nothing is silent."""
    told = []
    if features and not method.features:
        told.append(f"solver={solver!r} does not use the features: this is what M says without them")
    if method.rank == "found" and not isinstance(rank, str):
        told.append(f"solver={solver!r} takes no rank: it finds its own, and rank={rank} was not used")
    return tuple(told)


def _is_zero(owner: Engine) -> bool:
    _, _, trim = owner.times(LowRank.zero(owner.shape), np.inf, np.zeros((owner.shape[1], 1)))
    return trim.largest == 0


def _as_expected(state: State, S: Any, trim: Trim, counts: tuple[Array, Array]) -> bool:
    """Whether the final read found about as many gross errors as the solver expected from its sample, in all lines."""
    assert state.expected_corruption is not None
    for axis in state.one_by_one:
        if len(stray_lines(counts[axis] - _flagged(S, axis), counts[axis])):
            return False
    found = 1 - trim.kept_share
    return found <= 1.25 * state.expected_corruption + 0.01


def _flagged(S: Any, axis: int) -> Array:
    """How many entries S has in each row (axis 0) or column."""
    if axis == 0:
        return np.diff(S.indptr)
    counts, step = np.zeros(S.shape[1], np.int64), 1 << 18  # bincount makes a copy of what it counts
    for first in range(0, S.nnz, step):
        counts += np.bincount(S.indices[first : first + step], minlength=S.shape[1])
    return counts


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
    left, right = state.L.thin()
    W = F1.coefficients(left) @ F2.coefficients(right).T
    return W


def _unseen(owner: Engine, F1: Features, F2: Features, state: State) -> Iterator[str]:
    """Say which rows and columns have too few observed entries for L to be known there, but from features."""
    for side, F, counts, at in zip(("row", "column"), (F1, F2), owner.counts, (0, 1), strict=True):
        said = F.given or bool(state.expected and state.expected[at])
        least = 1 if said else max(state.L.rank, 1)
        lines = np.flatnonzero(counts < least)
        if len(lines):
            told = f"{len(lines)} {side}{'s have' if len(lines) > 1 else ' has'} "
            told += "no observed entry" if least == 1 else f"fewer than {least} observed entries"
            few = ", ".join(map(str, lines[:8])) + (", …" if len(lines) > 8 else "")
            known = "L is what the features say" if F.given else "L is the average" if said else "L is not determined"
            yield f"{told} ({few}): {known} there"


def _doubts(share: float, state: State, most: int, S: Any, n_observed: int) -> Iterator[str]:
    """What to say of a result that takes little apart, or nothing."""
    if share < 0.5:
        yield (
            f"L explains only {share:.0%} of the energy of the entries that are not gross errors: the other "
            f"{1 - share:.0%} is noise, or lies outside what these features and this rank can say"
        )
    if S is not None and S.nnz > 0.25 * n_observed:
        yield (
            f"S holds {S.nnz / n_observed:.0%} of all entries. If so many gross errors are not "
            "plausible, features or rank leave out a part of L, which then looks the same"
        )
    if S is not None and S.nnz == 0 and np.isfinite(state.zeta):
        yield "S is empty: nothing stands out of the noise. If gross errors are expected, try a lower rank"
    if state.L.rank == most and state.expected is None:  # with a free part it may be higher
        yield f"the rank is {most}, as high as it can be: try a lower one, unless that is meant"


def _corruption(state: State, trim: Trim | None) -> float:
    if trim is not None:
        return 1 - trim.kept_share
    return np.nan if state.expected_corruption is None else state.expected_corruption


def left_over(trim: Trim | None, noise: float | None) -> float:
    """Root mean square of what is in neither L nor S, as far as it is known."""
    return float(np.sqrt(trim.energy / max(trim.kept, 1))) if trim is not None else noise or 0.0


def explained(L: LowRank, residual: float) -> float:
    """Energy of L against energy of what is left, per entry."""
    signal = float((L.core**2).sum()) / (L.shape[0] * L.shape[1])
    rest = residual**2
    return signal / (signal + rest) if signal + rest > 0 else 0.0
