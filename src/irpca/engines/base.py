"""What a solver may ask of the owner of M.

With R = M − L and T = R where ``|R| <= zeta``, else 0, most algorithms of this field need only thin products with T;
the default model asks for the regressions of all rows or columns, whose entries are weighed and not trimmed. A solver
sees these answers; M, and anything of its size, stays with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from ..lowrank import Array, LowRank

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..model.maps import ColumnMaps


@dataclass(frozen=True)
class Trim:
    """What rode along on a read of M.

    Attributes
    ----------
    kept : number of entries with ``|M - L| <= zeta``
    trimmed : number of the others
    energy : ``‖T‖²_F``
    largest : ``‖T‖_∞``
    """

    kept: int
    trimmed: int
    energy: float
    largest: float

    @property
    def kept_share(self) -> float:
        return self.kept / (self.kept + self.trimmed)


MOST_SPREAD = 9.0  # times s²: the variance of L counts for no more in the density of an entry (docs/design.md)
MEDIAN = 0.6744897501960817  # of |x| for a standard normal x: a Cauchy variable of this half-width has the same
CAUCHY = float(np.sqrt(2 / np.pi)) / MEDIAN  # the peak of its density, relative to the normal one
COMPONENTS = (1.0, 2.0, 4.0)  # standard deviations of clean noise, in units of its scale (docs/design.md)


class Sided:
    """A dataclass with arrays that are as long as M has rows, and as many that are as long as it has columns.

    PAIRS names these fields: that of the rows, then that of the columns. Other fields may be Sided themselves.
    """

    PAIRS: ClassVar[tuple[tuple[str, str], ...]] = ()

    @property
    def sides(self) -> tuple[list[Any], list[Any]]:
        """The arrays of the rows and those of the columns, with those of fields; None for what is not there."""
        rows, cols = ([getattr(self, pair[axis]) for pair in self.PAIRS] for axis in (0, 1))
        for inner in self._inner.values():
            of_rows, of_cols = inner.sides
            rows, cols = rows + of_rows, cols + of_cols
        return rows, cols

    def with_sides(self, rows: Sequence[Any], cols: Sequence[Any]) -> Self:
        """The same with other arrays, in the order of ``sides``."""
        changed: dict[str, Any] = {}
        for k, (row, col) in enumerate(self.PAIRS):
            changed[row], changed[col] = rows[k], cols[k]
        first = len(self.PAIRS)
        for name, inner in self._inner.items():
            last = first + len(inner.sides[0])
            changed[name] = inner.with_sides(rows[first:last], cols[first:last])
            first = last
        return replace(self, **changed)  # type: ignore[type-var]

    def cut(self, rows: slice | Array, cols: slice | Array) -> Self:
        """What belongs to some rows and columns."""
        of_rows, of_cols = self.sides
        return self.with_sides(
            [None if A is None else A[rows] for A in of_rows], [None if A is None else A[cols] for A in of_cols]
        )

    def converted(self, convert: Callable[[Any], Any]) -> Self:
        """The same in arrays of another kind, or elsewhere."""
        rows, cols = ([None if A is None else convert(A) for A in side] for side in self.sides)
        return self.with_sides(rows, cols)

    @property
    def T(self) -> Self:
        """The same for the transposed M."""
        rows, cols = self.sides
        return self.with_sides(cols, rows)

    @property
    def _inner(self) -> dict[str, Sided]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Sided)}


@dataclass(frozen=True, eq=False)
class Noise(Sided):
    """How noise and gross errors are distributed: it decides what an entry counts for, and whether it is wrong.

    An entry has the scale ``s² = rows[i] · cols[j]``. Clean noise is a mixture of Gaussians of standard deviations 1, 2
    and 4 times s, of the given ``shares``. A share ``gross`` of all entries are gross errors: Gaussian of standard
    deviation ``broad`` or, a share ``heavy`` of them, Cauchy of the same median size. L itself is uncertain by the
    variance ``row_spread[i] · col_spread[j]``, which is added.

    Attributes
    ----------
    rows, cols : arrays of shape (n1,) and (n2,)
    row_spread, col_spread : arrays of shape (n1, 2) and (n2, 2)
    shares : array of shape (3,)
    gross, broad, heavy : float
    units : array of shape (n2,), or None
        The regressions of lines are of ``M / units``: all of the above is in these units of the columns.
    """

    PAIRS = (("rows", "cols"), ("row_spread", "col_spread"))
    rows: Array
    cols: Array
    row_spread: Array
    col_spread: Array
    shares: Array
    gross: float
    broad: float
    heavy: float = 0.5
    units: Array | None = None
    parameters: Array = field(init=False)  # the numbers, as kernels take them: three shares, gross, broad, heavy

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", np.array([*self.shares, self.gross, self.broad, self.heavy]))

    def part(self, rows: slice) -> tuple[Array, ...]:
        """What a kernel needs for some rows."""
        return self.rows[rows], self.cols, self.row_spread[rows], self.col_spread, self.parameters


@dataclass(frozen=True, eq=False)
class Standardised(Sided):
    """A threshold for each entry: ``|M − L| > limit · sqrt(rows_i · cols_j)`` is listed.

    Attributes
    ----------
    rows, cols : arrays of shape (n1,) and (n2,)
    limit : float
    """

    PAIRS = (("rows", "cols"),)
    rows: Any
    cols: Any
    limit: float


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known about the factors of a side before M is looked at: line i is ``N(mean_i, scale_i · variance)``.

    Attributes
    ----------
    variance : array of shape (K,)
        How far lines are from what is expected of them, in each direction; 0: not at all.
    scale : array of shape (n,)
    mean : array of shape (n, K), or None
        What is expected. None: ``basis @ A`` with coefficients A that are found along with the factors.
    basis : array of shape (n, d), or None
    ridge : array of shape (K,), or None
        Precision of the prior of the coefficients, about zero.
    coefficients : array of shape (d, K), or None
        To begin with.
    other_covariance, other_spread : arrays of shape (K, K) and (n_other,)
        The factors of line j of the other side are uncertain by the covariance ``other_spread[j] · other_covariance``.
    weigh : array of shape (K, K)
        Σ of the other side's ``v vᵀ``: the uncertainty of a line is reported as the trace of this times its covariance.
    """

    variance: Array
    scale: Array
    other_covariance: Array
    other_spread: Array
    weigh: Array
    mean: Array | None = None
    basis: Array | None = None
    ridge: Array | None = None
    coefficients: Array | None = None

    def part(self, lines: slice) -> Prior:
        """Of some lines."""
        mean, basis = (None if A is None else A[lines] for A in (self.mean, self.basis))
        return replace(self, scale=self.scale[lines], mean=mean, basis=basis)


@dataclass(eq=False)
class Sums:
    """What rides along on a read with a :class:`Noise`: sums over the observed entries, under the L of the question.

    Attributes
    ----------
    rows, cols : arrays of shape (n1, 2) and (n2, 2)
        Of each line: Σ w (R² + var L) / s², and Σ (1 − P), P being the probability of a gross error.
    totals : array of shape (7,)
        Σ of the probabilities of the three clean components, Σ P, the energy by which ``broad`` is learned (Σ P R², the
        Cauchy ones weighted), Σ log density, Σ of the probabilities of Cauchy errors.
    """

    rows: Array
    cols: Array
    totals: Array

    @classmethod
    def zero(cls, shape: tuple[int, int]) -> Sums:
        return cls(np.zeros((shape[0], 2)), np.zeros((shape[1], 2)), np.zeros(7))

    def part(self, rows: slice) -> tuple[Array, Array, Array]:
        return self.rows[rows], self.cols, self.totals

    def add(self, other: Sums) -> None:
        self.rows += other.rows
        self.cols += other.cols
        self.totals += other.totals

    @property
    def finite(self) -> bool:
        """Whether M and L are, wherever M is observed."""
        return bool(np.isfinite(self.totals).all())

    @property
    def n_observed(self) -> int:
        """The probabilities of an entry add up to 1."""
        return round(float(self.totals[:4].sum()))

    @property
    def T(self) -> Sums:
        return Sums(self.cols, self.rows, self.totals)


@dataclass(frozen=True, eq=False)
class Lines:
    """Posteriors of the factors of all rows, or of all columns.

    Attributes
    ----------
    mean, expected : arrays of shape (n, K)
        Posterior and prior mean.
    variance : array of shape (n, K)
        The diagonal of each posterior covariance.
    spread : array of shape (n,)
        Its trace with ``Prior.weigh``.
    covariance : array of shape (K, K)
        The average of all.
    coefficients : array of shape (d, K), or None
    precision : array of shape (K,)
        How precisely M tells a coefficient of each direction.
    sums : Sums
    """

    mean: Array
    expected: Array
    variance: Array
    spread: Array
    covariance: Array
    coefficients: Array | None
    precision: Array
    sums: Sums


ONCE = 1 << 20  # entries that are looked at together
LARGEST_BLOCK = 1 << 24  # entries of a block, which is a copy in memory: a solver that asks for more wants all of M


class Normal(Protocol):
    """Least squares for X on a frozen set of kept entries: ``M − L − Q1 X Q2ᵀ`` small there; Q1 may be the identity.

    ``times(X) = gradient`` at the solution. Each question marked * counts as one read.

    Attributes
    ----------
    gradient : ``Q1.T @ T @ Q2``, in double precision
    trim : what rode along on the read that decided what is kept
    """

    gradient: Array
    trim: Trim

    def times(self, P: Array) -> Array:
        """* ``Q1.T @ K @ Q2`` with K = Q1 P Q2ᵀ where kept, else 0. Costs 4·n1·n2·d2 flops."""
        ...

    def products(self, L: LowRank, X: Array, Y: Array) -> tuple[Array, Array]:
        """* ``K @ X`` and ``K.T @ Y`` with K = L where kept, else 0. Costs 2·n1·n2·(r + columns of both) flops."""
        ...


class Sink(Protocol):
    """Where the outliers of a piece of M go: called where the piece is, so it must survive pickling.

    It may be called twice for one place, in two processes.
    """

    def write(self, place: tuple[int, int], rows: Array, cols: Array, observed: Array, expected: Array) -> Array:
        """Take entries of M, by their rows and columns in M; says which of them it kept, as booleans."""
        ...


@dataclass(frozen=True, eq=False)
class Look:
    """Entries that will be asked for: one of three kinds.

    Attributes
    ----------
    lines : rows and columns, as for ``block``
    cells : rows and columns, as for ``entries``
    size, seed : as for ``draw``, with a new generator of this seed
    """

    lines: tuple[Array, Array] | None = None
    cells: tuple[Array, Array] | None = None
    size: int = 0
    seed: np.random.SeedSequence | None = None


class Engine(Protocol):
    """The only owner of M.

    Each method marked * reads M once and adds 1 to ``reads``; the others add the share of M they touch. Answers are
    thin: what is as long as M stays with it, but for S.
    The small answer of ``core`` is in double precision, the tall ones of the others in that of M.
    Where M is not observed, T and K are zero, and nothing is counted. An engine need not have looked for NaN in
    advance: ``n_observed`` and ``counts`` are right once it has met one.

    Attributes
    ----------
    name : where M lives
    capabilities : what it can do that not every engine can: "whole"; a solver says what it needs
    dear : whether to look at a few entries costs about as much as to read all of M, so that it is worth to ``survey``
    asynchronous : whether S may still be being written when it is returned, so that it is worth to ``survey`` before
    watch : where a read takes long: told how many chunks of M have been read, and of how many
    reads : how many times M was read
    holes : whether some entries of a dense M are known to be NaN; a solve that goes on may set it
    """

    name: str
    capabilities: frozenset[str] = frozenset()
    dear: bool = False
    asynchronous: bool = False
    watch: Callable[[int, int], None] | None = None
    reads: float = 0.0
    holes: bool = False

    @property
    def ran(self) -> str | None:
        """What answered the questions so far, such as "triton on NVIDIA H200", where there is a choice."""
        return None

    @property
    def source(self) -> Any:
        """Where the chunks of M come from, if it has any."""
        return None

    @property
    def edges(self) -> Any:
        """Where the rows and the columns of a chunk of M end, and those of the next begin, if it has any."""
        return None

    @property
    def labels(self) -> tuple[Any, Any] | None:
        """Those of the rows and of the columns, where M brings its own."""
        return None

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def n_observed(self) -> int: ...

    @property
    def counts(self) -> tuple[Array, Array]:
        """How many entries of each row, and of each column, are observed. Reads nothing."""
        ...

    def survey(self, looks: Sequence[Look]) -> Any:
        """What will be asked of ``block``, ``entries`` and ``draw``: all in one read, where random access is dear.

        Answers what was found, to be given to :meth:`recall` of another engine of the same M.
        """
        return None

    def recall(self, found: Any) -> None:
        """Take what a survey found as known."""
        return

    def forget(self) -> None:
        """What was looked at ahead is no longer needed."""
        return

    def mapped(self, maps: ColumnMaps) -> Engine:
        """An owner of the latent values of M, whose reads are counted from those of this one on."""
        ...

    def glance(self, size: int) -> Array:
        """Some entries of M, at places that are always the same; where random access is dear, in one chunk."""
        ...

    def place(self, B: Array) -> Array:
        """Keep a tall thin block next to M, in M's precision."""
        return np.ascontiguousarray(B, dtype=self.dtype)

    def core(self, L: LowRank, zeta: float, Q1: Array, Q2: Array) -> tuple[Array, Trim]:
        """* ``Q1.T @ T @ Q2``, d1×d2. Costs 2·n1·n2·(r + d2) flops."""
        ...

    def products(
        self, L: LowRank, zeta: float, X: Array | None = None, Y: Array | None = None, kept: bool = False
    ) -> tuple[Any, Any, Trim]:
        """* ``T @ X`` and ``T.T @ Y``, None for what is not asked; with ``kept``, of the kept entries as ones.

        Costs 2·n1·n2·(r + columns of both) flops.
        """
        ...

    def normal(self, L: LowRank, zeta: float, Q1: Array | None, Q2: Array) -> Normal:
        """* The normal equations of least squares on the entries that L keeps; Q1 None: rows have no features."""
        ...

    def solve_lines(self, axis: int, U: Array, V: Array, noise: Noise, prior: Prior) -> Lines:
        """* The regression of every row of M on V (0), or of every column on U (1).

        L = U Vᵀ and the noise model give entries their weights. Costs n1·n2·K² flops beside those of the weights, and
        K² numbers for some lines at a time.
        """
        ...

    def whole(self) -> Any:
        """* M itself as a dense array where it is, NaN where it is not observed: of NumPy, or a tensor on a device.

        Not to be written to, and no copy if M is stored so. For engines with the capability "whole"; others refuse it.
        """
        raise not_whole(self.name)

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[csr_array, Trim]:
        """* S = M − L where that exceeds the limit in magnitude, as a CSR array; what rides along is of the others.

        Of a large M on a device S stays there, as a :class:`~irpca.engines.gpu.DeviceSparse`.

        Costs 2·n1·n2·r flops, a root for every entry if the limit is :class:`Standardised`, and writes S once.
        """
        ...

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        """* The same, but each piece's part of S goes to the sink; answers how many each row and column has."""
        ...

    def block(self, rows: Array, cols: Array) -> Array:
        """The small dense ``M[rows][:, cols]``, NaN where M is not observed; 2²⁴ entries at most."""
        ...

    def entries(self, rows: Array, cols: Array) -> Array:
        """M at the scattered entries ``(rows[k], cols[k])``, NaN where it is not observed."""
        ...

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Rows, columns and values of ``size`` observed entries at random, in the order of memory.

        All of them if there are no more; else some may be drawn twice.
        """
        ...


def all_counted(shape: tuple[int, int]) -> tuple[Array, Array]:
    """``counts`` of an engine that has every entry."""
    n1, n2 = shape
    return np.broadcast_to(np.int64(n2), n1), np.broadcast_to(np.int64(n1), n2)


def drawn(count: int, size: int, rng: np.random.Generator) -> Array:
    """The positions of ``size`` of ``count`` entries, sorted: a memory-mapped page is read once. All if no more."""
    return np.arange(count) if count <= size else np.sort(rng.integers(count, size=size))


def drawn_anywhere(engine: Engine, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """What ``engine.draw`` answers where most entries are observed: what is not is drawn again."""
    n1, n2 = engine.shape
    at, values = _observed_at(engine, drawn(n1 * n2, size, rng))
    if len(at) < size < n1 * n2 and engine.n_observed <= size:
        pieces = [_observed_at(engine, np.arange(k, min(k + ONCE, n1 * n2))) for k in range(0, n1 * n2, ONCE)]
        at, values = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    elif len(at) < size < n1 * n2:
        while short := size - len(at):
            more, seen = _observed_at(engine, rng.integers(n1 * n2, size=short * n1 * n2 // engine.n_observed + 1))
            at, values = np.append(at, more[:short]), np.append(values, seen[:short])
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
    rows, cols = np.divmod(at, n2)
    return rows, cols, values


def _observed_at(engine: Engine, at: Array) -> tuple[Array, Array]:
    """Those of some positions that are observed, and M there."""
    values = engine.entries(*np.divmod(at, engine.shape[1]))
    seen = ~np.isnan(values)
    return (at, values) if seen.all() else (at[seen], values[seen])


def spread_places(shape: tuple[int, int], size: int) -> tuple[Array, Array]:
    """Rows and columns of entries that are spread over a matrix, always the same."""
    rows, cols = np.divmod(np.unique(np.linspace(0, shape[0] * shape[1] - 1, size).astype(np.int64)), shape[1])
    return rows, cols


def in_precision(zeta: float, dtype: np.dtype) -> Any:
    """The threshold in the precision of M: an entry of that very size is kept, in float32 as in float64.

    What is infinite is never kept.
    """
    return dtype.type(min(float(zeta), float(np.finfo(dtype).max)))


def not_finite(infinite: int, where: str = "") -> Exception:
    """The error for that many infinite entries in M; if there are none, it is L that is not finite."""
    if infinite:
        return ValueError(
            f"M holds infinite values{where}; replace them, or make them NaN, which stands for a missing cell"
        )
    return FloatingPointError(
        "M - L is not finite although M is: L has grown out of the range of its numbers; "
        "check the scale of M and of the features, and lower the rank"
    )


def bad_entries(values: Array) -> tuple[int, int]:
    """How many are NaN, and how many infinite."""
    bad = values[~np.isfinite(values)]
    missing = int(np.isnan(bad).sum())
    return missing, bad.size - missing


def title(engine: Engine) -> str:
    """The name of an engine and, of one that says so, what runs: ``"gpu (triton on NVIDIA H200)"``."""
    return engine.name if engine.ran is None else f"{engine.name} ({engine.ran})"


def not_whole(engine: str, solver: str = "this solver") -> NotImplementedError:
    """The error for a solver that needs M as a dense array, of an engine that never has all of it."""
    return NotImplementedError(
        f"{solver} works on all of M as one dense array, in memory or on a GPU, which the {engine} engine does not "
        "have; take solver='irpca', or pass M as a NumPy array with engine='memory'"
    )


def refuse_beyond_memory(size: float, memory: float, where: str) -> None:
    """Refuse a solver that would keep so many bytes of dense arrays beside M."""
    if size > memory:
        raise MemoryError(
            f"this solver works on all of M as a dense array and keeps another of that size: {size / 1e9:.3g} GB more, "
            f"and {where} has {memory / 1e9:.3g} GB; take solver='irpca', which needs neither"
        )


def refuse_wrong_length(B: Array, n: int) -> None:
    """Slices would be taken of what is there, and loops read whatever lies behind it in memory."""
    if len(B) != n:
        raise ValueError(f"shape mismatch: a block of {len(B)} rows where M has {n}")


def refuse_large_block(rows: Array, cols: Array) -> None:
    """A block is a copy: it has to stay small."""
    if len(rows) * len(cols) > LARGEST_BLOCK:
        raise ValueError(
            f"a block of {len(rows)} × {len(cols)} entries is more than the {LARGEST_BLOCK} that a block may have"
        )
