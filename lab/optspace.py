"""A low-rank matrix from some of its entries, none of them grossly wrong: OptSpace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array, issparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import svds

from irpca.arguments import generator, number, whole
from irpca.lowrank import Array, LowRank

Tangent = tuple[Array, Array]  # A and B of the direction A Yᵀ + X Bᵀ at L = X S Yᵀ, with XᵀA = 0 and YᵀB = 0

OVERFULL = 2.0  # times the mean number of entries: more of a row or column is left out of the start
SUFFICIENT_DECREASE = 1e-4  # share of what the slope promises that a step must keep
HALVINGS = 30
PATIENCE = 5  # one step of conjugate gradients may gain little; so many that gain nothing mean rest
AMPLE = 2.0  # observed entries per degree of freedom
DOMINANT = 0.5  # share of a singular vector in one of its entries: far from incoherent
FAR = 2.0  # times the largest observed value: further than unobserved entries should lie


@dataclass(frozen=True, eq=False, repr=False)
class Completion:
    """A completed matrix, and how it was found.

    Attributes
    ----------
    L : LowRank
        Orthonormal outer factors, singular values in the core; ``L.dense()`` makes it a matrix.
    rmse : float
        Root mean square of what L leaves of the observed entries.
    n_iter : int
    converged : bool
        Whether L fits the observed entries, or no longer comes to fit them better.
    history : array of shape (n_iter + 1,)
        ``rmse`` of the start and after each iteration.
    doubts : tuple of str
        What to doubt.
    """

    L: LowRank
    rmse: float
    n_iter: int
    converged: bool
    history: Array
    doubts: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Completion(shape={self.L.shape}, rank={self.L.rank}, rmse={self.rmse:.3g}, "
            f"converged={self.converged}, n_iter={self.n_iter})"
        )


def optspace(
    observed: Any,
    rank: int,
    *,
    tol: float = 1e-6,
    max_iter: int = 500,
    random_state: int | np.random.Generator | None = 0,
) -> Completion:
    """Complete a matrix of known rank from some of its entries (Keshavan, Montanari and Oh, 2010).

    Minimises ``Σ (M_ij − (X S Yᵀ)_ij)²`` over the observed entries: over the spans of X and Y, points of two Grassmann
    manifolds, with the best core S for each pair. Time and memory are those of the observed entries.

    Parameters
    ----------
    observed : scipy sparse array of shape (n1, n2), in COO, CSR, CSC, LIL or DOK format
        Its *stored* entries are the observed ones; a stored zero is an observed zero. Computed with in float64.
    rank : int
        Smaller than the number n1 of rows and n2 of columns that have entries; at least ``rank (n1 + n2 − rank)``
        entries are needed.
    tol : float
        Stop when the rmse is below ``tol`` times the root mean square of the entries, or falls by less than the share
        ``tol`` of itself per iteration.
    max_iter : int
    random_state : int, Generator or None
        Decides which entries of overfull rows and columns are left out of the start, and where that begins.

    Returns
    -------
    Completion

    Notes
    -----
    An incoherent, well-conditioned matrix of rank r is found exactly, with high probability, from a multiple of
    ``n r max(r, log n)`` entries at uniformly random places.

    The steps are the authors': trim overfull rows and columns, take singular vectors, solve for S, descend on the two
    manifolds, solve for S again. Ours is how it descends: in conjugate directions (Polak–Ribière), in the metric of L
    itself, where the condition of S does not matter, with a line search from the best step of the linearised problem
    on, and back to the manifolds by the singular subspaces of L + step, which exist even where S loses rank.

    As in the authors' program, nothing holds the factors incoherent. Where many rows or columns have few entries, as
    ratings do, the minimum overfits those, or lies at infinity: a small ``max_iter`` then predicts better.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import coo_array
    >>> rng = np.random.default_rng(0)
    >>> M = rng.standard_normal((80, 2)) @ rng.standard_normal((2, 60))
    >>> rows, cols = np.nonzero(rng.random(M.shape) < 0.3)
    >>> found = optspace(coo_array((M[rows, cols], (rows, cols)), shape=M.shape), rank=2)
    >>> found.converged, bool(np.abs(found.L.dense() - M).max() < 1e-4)
    (True, True)
    """
    if whole(max_iter, "max_iter") < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter!r}")
    if not number(tol, "tol") >= 0:
        raise ValueError(f"tol must not be negative, got {tol!r}")
    entries, rows, cols = _entries(observed)
    _check_rank(rank, entries)

    scale = float(np.abs(entries.values).max())
    entries = replace(entries, values=entries.values / scale)
    goal = tol * _rms(entries.values)
    L, residual = _refit(entries, _start(entries, int(rank), generator(random_state)))
    gradient = direction = _tangent(L, entries.sparse(residual))
    history = [_rms(residual)]
    while not (converged := _settled(history, goal, tol)) and len(history) <= max_iter:
        taken = _search(entries, L, residual, gradient, direction) or _search(entries, L, residual, gradient, gradient)
        if taken is None:  # even the gradient leads nowhere: all that is left is rounding
            converged = True
            break
        previous = L, gradient, direction
        L, residual = taken
        gradient = _tangent(L, entries.sparse(residual))
        direction = _conjugate(L, gradient, *previous)
        history.append(_rms(residual))

    n1, n2 = observed.shape
    return Completion(
        L=LowRank(_spread(L.left, rows, n1), scale * L.core, _spread(L.right, cols, n2)),
        rmse=scale * history[-1],
        n_iter=len(history) - 1,
        converged=converged,
        history=scale * np.array(history),
        doubts=tuple(_doubts(entries, L, converged, n1 - len(rows), n2 - len(cols))),
    )


@dataclass(frozen=True, eq=False)
class _Entries:
    """Observed entries, row by row, of a matrix in which no row or column is empty."""

    values: Array
    rows: Array
    cols: Array
    starts: Array  # of the rows, and the end of the last
    shape: tuple[int, int]

    def sparse(self, values: Array) -> csr_array:
        """A sparse array with ``values`` at the observed places."""
        return csr_array((values, self.cols, self.starts), shape=self.shape)

    def of(self, U: Array, V: Array) -> Array:
        """What ``U @ V.T`` is at the observed places; column by column, to need the room of one."""
        total = np.zeros(len(self.values))
        for u, v in zip(U.T, V.T, strict=True):
            total += u[self.rows] * v[self.cols]
        return total


def _start(entries: _Entries, rank: int, rng: np.random.Generator) -> LowRank:
    """The leading singular vectors of the trimmed entries with zeros between them; the core is for later."""
    kept = _trimmed(entries.rows, rng) & _trimmed(entries.cols, rng)
    if not entries.values[kept].any():
        kept[:] = True  # nothing but zeros would be left to start from
    thinned = entries.sparse(np.where(kept, entries.values, 0.0))
    u, s, vt = svds(thinned, k=rank, v0=rng.standard_normal(min(entries.shape)))
    return LowRank.from_product(u * s, vt.T)  # in whatever order svds gives them


def _trimmed(lines: Array, rng: np.random.Generator) -> Array:
    """Which entries stay when every overfull line (row or column) keeps as many as it may, chosen at random."""
    counts = np.bincount(lines)
    first = np.cumsum(counts) - counts
    order = np.lexsort((rng.random(len(lines)), lines))
    place = np.empty(len(lines), dtype=int)  # of an entry in the shuffled order of its line
    place[order] = np.arange(len(lines)) - np.repeat(first, counts)
    return place < OVERFULL * counts.mean()


def _refit(entries: _Entries, L: LowRank) -> tuple[LowRank, Array]:
    """The best core S between the factors of L, and the residual at the observed places."""
    X, Y, r = L.left, L.right, L.rank
    # Normal equations Σ (x_i ⊗ y_j)(x_i ⊗ y_j)ᵀ, the sum over j first. They are solved for the change of S, which
    # becomes small, so that their squared condition costs nothing.
    pairs1, pairs2 = ((Q[:, :, None] * Q[:, None, :]).reshape(-1, r * r) for Q in (X, Y))
    moments = pairs1.T @ (entries.sparse(np.ones(len(entries.values))) @ pairs2)
    normal = moments.reshape(r, r, r, r).swapaxes(1, 2).reshape(r * r, r * r)
    residual = entries.values - entries.of(X @ L.core, Y)
    change = np.linalg.lstsq(normal, (X.T @ (entries.sparse(residual) @ Y)).ravel(), rcond=None)[0].reshape(r, r)
    return LowRank.from_core(X, L.core + change, Y), residual - entries.of(X @ change, Y)


def _tangent(L: LowRank, Z: Any) -> Tangent:
    """The tangent part of Z, without what the core can take: of the residual, it is the negative gradient."""
    return _across(L, Z @ L.right, Z.T @ L.left)


def _across(L: LowRank, ZY: Array, ZtX: Array) -> Tangent:
    return ZY - L.left @ (L.left.T @ ZY), ZtX - L.right @ (L.right.T @ ZtX)


def _inner(a: Tangent, b: Tangent) -> float:
    return float(np.vdot(a[0], b[0]) + np.vdot(a[1], b[1]))


def _conjugate(L: LowRank, gradient: Tangent, old: LowRank, old_gradient: Tangent, old_direction: Tangent) -> Tangent:
    """Polak–Ribière, or the gradient where that does not lead down; what is old is projected to where L is now."""
    XX, YY = old.left.T @ L.left, old.right.T @ L.right

    def carried(tangent: Tangent) -> Tangent:
        A, B = tangent
        return _across(L, A @ YY + old.left @ (B.T @ L.right), B @ XX + old.right @ (A.T @ L.left))

    gained = _inner(gradient, gradient) - _inner(gradient, carried(old_gradient))
    beta = max(0.0, gained / _inner(old_gradient, old_gradient))
    A, B = carried(old_direction)
    direction = gradient[0] + beta * A, gradient[1] + beta * B
    return direction if _inner(gradient, direction) > 0 else gradient


def _search(
    entries: _Entries, L: LowRank, residual: Array, gradient: Tangent, direction: Tangent
) -> tuple[LowRank, Array] | None:
    """L and its residual after a step that leads down, or None if there is none."""
    A, B = direction
    along = entries.of(np.hstack([A, L.left]), np.hstack([L.right, B]))
    if not along.any():
        return None
    energy, slope = float(residual @ residual), 2 * _inner(gradient, direction)
    step = float(residual @ along) / float(along @ along)
    for _ in range(HALVINGS):
        moved, rest = _refit(entries, _retract(L, step, direction))
        if rest @ rest < energy - SUFFICIENT_DECREASE * step * slope:
            return moved, rest
        step /= 2
    return None


def _retract(L: LowRank, step: float, direction: Tangent) -> LowRank:
    """``L + step · (A Yᵀ + X Bᵀ)``, truncated to the rank of L."""
    A, B = direction
    return LowRank.from_product(np.hstack([L.left @ L.core + step * A, L.left]), np.hstack([L.right, step * B]), L.rank)


def _settled(history: list[float], goal: float, tol: float) -> bool:
    if history[-1] <= goal:
        return True
    return len(history) > PATIENCE and history[-1 - PATIENCE] - history[-1] <= PATIENCE * tol * history[-1]


def _rms(values: Array) -> float:
    return float(np.linalg.norm(values) / np.sqrt(len(values)))


def _spread(factor: Array, present: Array, n: int) -> Array:
    """The factor with rows of zeros between those that are present."""
    full = np.zeros((n, factor.shape[1]))
    full[present] = factor
    return full


def _entries(observed: Any) -> tuple[_Entries, Array, Array]:
    """The observed entries, checked, and the rows and columns that have any."""
    if not issparse(observed) or observed.ndim != 2:
        raise TypeError(
            f"observed must be a scipy sparse array that stores the observed entries, got {type(observed).__name__}: "
            "make it one with scipy.sparse.coo_array((values, (rows, cols)), shape=(n1, n2))"
        )
    if observed.format in ("bsr", "dia"):
        raise TypeError(
            f"observed is in {observed.format.upper()} format, which cannot tell an observed zero from a missing "
            "entry: make it a coo_array or csr_array of the observed entries"
        )
    if observed.dtype.kind not in "biuf":
        raise TypeError(f"observed must hold real numbers, got dtype {observed.dtype}")
    stored = observed.tocoo()
    order = np.lexsort((stored.col, stored.row))
    rows, cols, values = stored.row[order], stored.col[order], stored.data[order].astype(float)
    repeated = np.flatnonzero((np.diff(rows) == 0) & (np.diff(cols) == 0))
    if repeated.size:
        where = f"row {rows[repeated[0]]}, column {cols[repeated[0]]}"
        raise ValueError(f"observed stores some entries more than once, as at {where}: keep one value of each")
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        where = f"row {rows[wrong[0]]}, column {cols[wrong[0]]}"
        raise ValueError(
            f"observed holds {values[wrong[0]]} at {where}: every stored entry must be finite, what is missing must "
            "not be stored"
        )
    if not values.any():
        raise ValueError("observed holds no entry other than zero: there is nothing to complete")
    present1, rows = np.unique(rows, return_inverse=True)
    present2, cols = np.unique(cols, return_inverse=True)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows))])
    index = stored.col.dtype  # what scipy.sparse takes without a copy
    shape = len(present1), len(present2)
    return _Entries(values, rows, cols.astype(index), starts.astype(index), shape), present1, present2


def _check_rank(rank: Any, entries: _Entries) -> None:
    n1, n2 = entries.shape
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise ValueError(f"rank must be a positive integer, got {rank!r}")
    if not 1 <= rank < min(n1, n2):
        raise ValueError(
            f"rank={rank} is out of range: {n1} rows and {n2} columns have observed entries, "
            f"so choose 1 <= rank < {min(n1, n2)}"
        )
    if len(entries.values) < _unknowns(entries, int(rank)):
        raise ValueError(
            f"rank={rank} is too high for {len(entries.values)} observed entries: {n1} rows and {n2} columns of that "
            f"rank have {_unknowns(entries, int(rank))} degrees of freedom. Lower the rank, or observe more"
        )


def _unknowns(entries: _Entries, rank: int) -> int:
    """Degrees of freedom of a matrix of this rank."""
    n1, n2 = entries.shape
    return rank * (n1 + n2 - rank)


def _doubts(entries: _Entries, L: LowRank, converged: bool, empty1: int, empty2: int) -> Iterator[str]:
    """What to say of a result that is unfinished, or not determined by the observed entries."""
    n1, n2 = entries.shape
    reach = _largest(L)  # beside entries that are scaled to 1
    if not converged:
        told = "the iterations ran out while the fit still improved"
        yield told if reach > FAR else f"{told}: raise max_iter, or loosen tol"
    if empty1 or empty2:
        yield f"{empty1} rows and {empty2} columns have no observed entry: L is zero there, for want of knowledge"
    few1, few2 = (np.count_nonzero(np.bincount(lines) < L.rank) for lines in (entries.rows, entries.cols))
    if few1 or few2:
        yield (
            f"{few1} rows and {few2} columns have fewer than {L.rank} observed entries, too few for rank {L.rank}: "
            "L is one of many answers there"
        )
    graph = coo_array((np.ones(len(entries.rows)), (entries.rows, n1 + entries.cols)), shape=(n1 + n2, n1 + n2))
    islands = connected_components(graph, directed=False, return_labels=False)
    if islands > 1:
        yield (
            f"the observed entries fall into {islands} blocks that share no row or column: nothing tells what lies "
            "between them"
        )
    ratio = len(entries.values) / _unknowns(entries, L.rank)
    if ratio < AMPLE:
        yield f"only {ratio:.1f} entries are observed per degree of freedom: other matrices may fit as well"
    share = max(float((factor**2).max()) for factor in (L.left, L.right))
    if share > DOMINANT:
        yield (
            f"{share:.0%} of a singular vector lies in a single row or column, as happens when L fits that alone: "
            "try a lower rank"
        )
    if reach > FAR:
        yield (
            f"L reaches {reach:.2g} times the largest observed value, as happens where few entries are fitted closely: "
            "try a smaller max_iter or a lower rank"
        )


def _largest(L: LowRank, block: int = 100) -> float:
    """The largest entry of L in magnitude, as far as it is where its longest rows and columns meet."""
    U, V = (factor @ np.sqrt(np.abs(L.core)) for factor in (L.left, L.right))  # the core is diagonal, not negative
    U, V = (factor[np.argsort(-(factor**2).sum(axis=1))[:block]] for factor in (U, V))
    return float(np.abs(U @ V.T).max())
