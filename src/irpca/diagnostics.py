"""The conditions of the paper's theorems checked on a decomposition, leverage scores, and measures of recovery."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from .arguments import generator, naming, number
from .engines import as_matrix, choose
from .engines.base import Engine
from .engines.sparse_part import flagged
from .features import Features
from .lowrank import Array, LowRank
from .result import Result
from .wording import count

if TYPE_CHECKING:
    from .engines.sparse_part import Sparse

Seed = int | np.random.Generator | None

WIDTH = 100
PREAMBLE = (
    "These are sufficient conditions of the paper's theorems, not necessary ones: recovery usually works far beyond "
    "them, and most real tables are beyond most of the limits, because these are for the worst case. Where all hold, "
    "recovery is guaranteed; a value beyond its limit does not mean that the result is wrong, only that the theorem "
    "makes no promise. Whether to trust the result is answered by its summary(). The condition to take seriously is "
    "feasibility: what the features do not explain cannot be recovered from them."
)
WORST_CASE = "Nothing to do: such limits are for the worst pattern of outliers; scattered ones may be far more frequent"


@dataclass(frozen=True)
class Check:
    """One condition, ``value <= limit``. None stands for a number that is not known.

    Attributes
    ----------
    name : str
    value, limit : float or None
    meaning : str
        What was measured, and what it means: sentences for people.
    advice : str
        What to do where the condition does not hold, or is not known to.
    """

    name: str
    value: float | None
    limit: float | None
    meaning: str
    advice: str = ""

    @property
    def verdict(self) -> Literal["holds", "fails", "cannot tell"]:
        if self.value is None or self.limit is None:
            return "cannot tell"
        return "holds" if self.value <= self.limit else "fails"


@dataclass(frozen=True)
class Assumptions:
    """The conditions of the theorems and the values found; ``print`` explains all of them, ``[name]`` is one check."""

    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        return {check.name: check for check in self.checks}[name]

    def __str__(self) -> str:
        held, beyond = (sum(check.verdict == verdict for check in self.checks) for verdict in ("holds", "fails"))
        found = f"Conditions that hold: {held} of {len(self.checks)}; beyond the limit: {beyond}"
        if unknown := len(self.checks) - held - beyond:
            found += f"; cannot be decided: {unknown}"
        given: set[str] = set()
        parts = [textwrap.fill(PREAMBLE, WIDTH), f"{found}."]
        for check in self.checks:
            parts.append(_explained(check, again=check.advice in given))
            given |= {check.advice} if check.verdict != "holds" else set()
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        held = sum(check.verdict == "holds" for check in self.checks)
        return f"Assumptions({held} of {len(self.checks)} sufficient conditions hold; print() explains them)"


def _explained(check: Check, again: bool) -> str:
    """Numbers and verdict, and below them what they mean; advice that was given before is not repeated."""
    value, limit = ("not known" if x is None else f"{x:.3g}" for x in (check.value, check.limit))
    verdict = {"fails": "beyond the limit"}.get(check.verdict, check.verdict)
    text = check.meaning if again or check.verdict == "holds" else f"{check.meaning} {check.advice}."
    body = textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return f"{check.name}: {value}, limit {limit}, {verdict}\n{body}"


def check_assumptions(M: Any, F1: Any, F2: Any, result: Result, *, random_state: Seed = None) -> Assumptions:
    """Check the conditions under which the paper's theorems guarantee recovery, and explain what they mean.

    The conditions are sufficient, not necessary, and their constants are worst cases: most real tables are beyond most
    of the limits, and recovery usually works far beyond them. Whether to trust a result is answered by its
    ``summary()``; of these conditions, look at *feasibility*: do the features explain the table?

    Parameters
    ----------
    M : array of shape (n1, n2), an Engine, or None
        Read up to six times. None: conditions that need it are answered "cannot tell".
    F1, F2 : array of shape (n1, d1) and (n2, d2), or None
    result : Result
        What ``solve`` returned. Its L and S stand for the true ones: where they are wrong, so is the answer.
    random_state : int, Generator or None
        For the random projections of M.

    Returns
    -------
    Assumptions
        ``print`` it for the explanation; ``found["feasibility"]`` is one :class:`Check`, with ``value``, ``limit``,
        ``verdict`` ("holds", "fails", "cannot tell"), ``meaning`` and ``advice``.

    Notes
    -----
    *feasibility* (Assumption 1) is the share of the energy of M − S outside the span of the features. Its
    limit is that share less the components that are stronger than noise: singular values over 1.5 σ (√n1 + √n2).

    *incoherence* (Assumption 2): the limit is where Assumption 3, whitened, allows one gross error per row.

    *row* and *column sparsity* (Assumption 3) come as printed. *Joint sparsity* is weaker and enough, as the proof
    needs it (κ²) and for ``variant="whitened"``, where κ is 1: without the detour through symmetric matrices,
    ‖E‖₂ <= √(rows · columns) ‖E‖∞ is all the proof needs.

    *noise* is ‖N‖∞ / max|L| against 1/(40 μ² d κ²). The paper bounds ‖N‖∞ itself, which changes with the
    units of M, and then never uses the bound. μ², d and κ² stand for μ1 μ2, √(d1 d2) and κ1 κ2.

    Examples
    --------
    >>> import irpca
    >>> problem = irpca.datasets.make_problem(600, 600, 2, 2, 2, corruption=1e-5, features="conditioned")
    >>> result = irpca.solve(problem.M, problem.F1, problem.F2, rank=2, solver="irpca_iht")
    >>> found = check_assumptions(problem.M, problem.F1, problem.F2, result)
    >>> found
    Assumptions(10 of 10 sufficient conditions hold; print() explains them)
    >>> found["joint sparsity, whitened"].verdict
    'holds'
    >>> found["feasibility"].meaning
    'The features explain all cells that are not outliers, up to rounding.'
    """
    if not isinstance(result, Result):
        raise ValueError(f"result must be what irpca.solve returns, got a {type(result).__name__}")
    engine, S, outside = None if M is None else choose(M), result.S, None
    A, B = _sides(F1, F2, engine, result)
    noise = None if result.noise is None else result.noise * np.sqrt(2 * np.log(A.n * B.n))
    if engine is not None:
        S = engine.corruption(result.L, result.zeta)[0] if S is None else S
        outside = _Outside(engine, result.L, result.zeta, A, B)
        noise = outside.trim.largest
    largest = max(float(np.abs(block).max()) for block in _blocks(result.L))
    rng = generator(random_state)
    checks = _feasibility(outside, rng), *_incoherence(A, B), *_sparsity(S, A, B), _bounded(A, B, result)
    return Assumptions((*checks, *_noise(noise, largest, A, B)))


def iteration_bound(F1: Any, F2: Any, c_W: float, epsilon: float) -> int:
    """T of Theorems 1 and 2: the number of iterations after which they guarantee an accuracy of ``epsilon``.

    The smallest whole T > ⌈log₅(2 μ1 μ2 σ1 σ2 √(d1 d2 / (n1 n2)) c_W / ε)⌉ + 1. The proof needs one less.

    Parameters
    ----------
    F1, F2 : array of shape (n1, d1) and (n2, d2)
    c_W : float
        Bound on ‖W‖₂.
    epsilon : float
        Bound on the entries of L − L* and S − S*, in the units of M, in addition to the effect of noise.

    Examples
    --------
    >>> iteration_bound(np.ones((100, 1)), np.ones((50, 1)), c_W=2.0, epsilon=1e-3)
    8
    """
    A, B = (_alone(F, name) for F, name in ((F1, "F1"), (F2, "F2")))
    number(c_W, "c_W", above=0)
    number(epsilon, "epsilon", above=0)
    factors = [2, A.mu, B.mu, A.sigma_max, B.sigma_max, np.sqrt(A.d * B.d / (A.n * B.n)), c_W]
    size = np.log(factors).sum() - np.log(epsilon)  # itself it may be beyond the range of floats
    return max(1, int(np.ceil(size / np.log(5))) + 2)


def _alone(F: Any, name: str) -> Features:
    """Features of a table that is not there."""
    if isinstance(F, Features):
        return F
    F = as_matrix(F, name)
    return Features.of(F, len(F), name)


def leverage_scores(F: Any) -> Array:
    """Squared row lengths of an orthonormal basis of the columns of F, n×d; they sum to its rank.

    Examples
    --------
    >>> leverage_scores([[1.0], [1.0], [2.0], [0.0]]).round(3)
    array([0.167, 0.167, 0.667, 0.   ])
    """
    return _alone(F, "F").leverage


def incoherence(F: Any) -> float:
    """μ of Assumption 2, ``max_i ‖e_iᵀ V_F‖ √(n/d)``: 1 is best, √(n/d) worst.

    Examples
    --------
    >>> round(incoherence(np.ones((16, 1))), 12)
    1.0
    """
    return _alone(F, "F").mu


def energy_outside(M: Any, F1: Any, F2: Any, result: Result | None = None) -> float:
    """Share of the energy of M, or of M − S if a result is given, outside the span of the features. One read.

    Examples
    --------
    >>> round(energy_outside([[3.0, 4.0], [3.0, 4.0]], None, [[1.0], [0.0]]), 12)
    0.64
    """
    if not isinstance(result, Result | None):
        raise ValueError(f"result must be what irpca.solve returns, or None, got a {type(result).__name__}")
    engine = choose(M)
    A, B = _sides(F1, F2, engine, result)
    L, zeta = (LowRank.zero(engine.shape), np.inf) if result is None else (result.L, result.zeta)
    with np.errstate(over="ignore", invalid="ignore"):
        share = _Outside(engine, L, zeta, A, B).share
    if np.isnan(share):
        raise ValueError("values of M are so large that they cannot be squared: rescale M")
    return share


def _sides(F1: Any, F2: Any, engine: Engine | None, result: Result | None) -> tuple[Features, Features]:
    """The features of both sides; M and a result of another shape are refused."""
    shapes = [one.shape for one in (engine, None if result is None else result.L) if one is not None]
    if shapes[0] != shapes[-1]:
        raise ValueError(f"result is of a table of the shape {shapes[-1]}, and M has {shapes[0]}")
    n1, n2 = shapes[0]
    return Features.of(F1, n1, "F1", "rows"), Features.of(F2, n2, "F2", "columns")


def relative_error(L: Any, L_true: Any) -> float:
    """``‖L − L_true‖_F / ‖L_true‖_F`` of arrays or :class:`~irpca.LowRank`, in blocks of rows.

    Examples
    --------
    >>> relative_error([[3.0, 4.0]], [[3.0, 0.0]]) == 4 / 3
    True
    """
    L, L_true = _compared(L, "L", L_true, "L_true", sparse=False)
    pairs = zip(_blocks(L), _blocks(L_true), strict=True)
    with np.errstate(over="ignore"):  # then the error is infinite
        wrong, whole = np.linalg.norm([(np.linalg.norm(A - B), np.linalg.norm(B)) for A, B in pairs], axis=0)
    return float(wrong / whole) if whole else float(np.inf if wrong else 0.0)


class SupportScores(NamedTuple):
    """Precision: the share of flagged entries that are corrupted. Recall: of corrupted entries that are flagged."""

    precision: float
    recall: float


def support_scores(S: Any, S_true: Any) -> SupportScores:
    """Precision and recall of the entries where S, dense or sparse, is not zero. Of nothing, either is 1.

    Examples
    --------
    >>> support_scores([[1.0, 2.0, 0.0]], [[5.0, 0.0, 0.0]])
    SupportScores(precision=0.5, recall=1.0)
    """
    S, S_true = _compared(S, "S", S_true, "S_true", sparse=True)
    flagged, corrupted = (csr_array(A, dtype=bool) for A in (S, S_true))
    both, n1, n2 = (int(A.count_nonzero()) for A in (flagged.multiply(corrupted), flagged, corrupted))
    return SupportScores(both / n1 if n1 else 1.0, both / n2 if n2 else 1.0)


def _compared(A: Any, name: str, B: Any, other: str, sparse: bool) -> tuple[Any, Any]:
    """Two matrices of one shape: arrays of numbers, or LowRank, or sparse ones."""
    found = []
    for one, called in ((A, name), (B, other)):
        if not (hasattr(one, "tocsr") if sparse else isinstance(one, LowRank)):
            with naming(called):
                one = as_matrix(one, called)
        found.append(one)
    if found[0].shape != found[1].shape:
        raise ValueError(
            f"{name} has the shape {found[0].shape} and {other} {found[1].shape}; compare matrices of one shape"
        )
    return found[0], found[1]


def _blocks(A: Any, entries: int = 1 << 18) -> Iterator[Array]:
    """A, an array or LowRank, in blocks of rows."""
    A = A if isinstance(A, LowRank) else np.asarray(A)
    height = max(1, entries // A.shape[1])
    for first in range(0, A.shape[0], height):
        last = min(first + height, A.shape[0])
        yield A.rows(np.arange(first, last)) if isinstance(A, LowRank) else A[first:last]


class _Outside:
    """X − P1 X P2, the part of X = M − S = T + L outside the span of the features, as an operator.

    Making it reads M once. The problem is transposed where columns have no features: Q2 is given if any features are.
    """

    def __init__(self, engine: Engine, L: LowRank, zeta: float, F1: Features, F2: Features) -> None:
        self.ask = lambda X: engine.products(L, zeta, X)[::2]  # T X and what was trimmed
        self.ask_back = lambda Y: engine.products(L, zeta, Y=Y)[1:]  # Tᵀ Y and that
        self.U, self.V = L.thin()
        if F2.Q is None:
            F1, F2, self.U, self.V, self.ask, self.ask_back = F2, F1, self.V, self.U, self.ask_back, self.ask
        self.Q1, self.Q2 = F1.Q, np.zeros((F2.n, 0)) if F2.Q is None else F2.Q
        product, self.trim = self.ask(np.hstack([self.Q2, self.V]))
        TQ2, TV = np.split(product.astype(float), [self.Q2.shape[1]], axis=1)
        self.inside = self._to_Q1(TQ2 + self.U @ (self.V.T @ self.Q2))
        U, V = self.U, self.V
        self.total = self.trim.energy + 2 * float(np.sum(U * TV)) + float(np.sum((U.T @ U) * (V.T @ V)))
        # The identity spans everything.
        self.energy = 0.0 if F2.Q is None else max(self.total - float(np.sum(self.inside**2)), 0.0)

    @property
    def share(self) -> float:
        return self.energy / self.total if self.total > 0 else 0.0

    def _to_Q1(self, U: Array) -> Array:
        return U if self.Q1 is None else self.Q1.T @ U

    def times(self, V: Array) -> Array:
        inside = self.inside @ (self.Q2.T @ V)
        return self.ask(V)[0] + self.U @ (self.V.T @ V) - (inside if self.Q1 is None else self.Q1 @ inside)

    def t_times(self, U: Array) -> Array:
        return self.ask_back(U)[0] + self.V @ (self.U.T @ U) - self.Q2 @ (self.inside.T @ self._to_Q1(U))

    def directions(self, rng: np.random.Generator, most: int = 8) -> tuple[int, float]:
        """The number of components stronger than noise, and the energy in them. Reads M four times."""
        n1, n2 = len(self.U), len(self.V)
        U = self.times(rng.standard_normal((n2, min(most, n1, n2))))
        U = self.times(np.linalg.qr(self.t_times(np.linalg.qr(U)[0]))[0])
        found, rest = 0, self.energy
        for s in np.linalg.svd(self.t_times(np.linalg.qr(U)[0]), compute_uv=False):
            sigma = np.sqrt(max(rest - s**2, 0.0) / max(self.trim.kept, 1))
            if s <= 1.5 * sigma * (np.sqrt(n1) + np.sqrt(n2)):
                break
            found, rest = found + 1, max(rest - s**2, 0.0)
        return found, float(self.energy - rest)


def _feasibility(outside: _Outside | None, rng: np.random.Generator) -> Check:
    name = "feasibility"
    if outside is None:
        return Check(name, None, None, "Whether the features explain the table needs M.", "Pass M")
    if outside.trim.kept_share < 0.5:  # what features do not explain went to S
        meaning = (
            "More than half of the cells count as outliers (S): whether the features explain the others says little."
        )
        return Check(name, None, None, meaning, "See the summary() of the result")
    tiny = 1e-12  # a millionth of L: rounding, or L not yet there
    if outside.share <= tiny:
        return Check(name, outside.share, tiny, "The features explain all cells that are not outliers, up to rounding.")
    k, energy = outside.directions(rng)
    limit = max((outside.energy - energy) / outside.total, tiny)
    meaning = f"The features leave {outside.share:.3g} of the energy of the table (outliers removed) unexplained. "
    if outside.share <= limit:
        return Check(name, outside.share, limit, meaning + "That is noise: the features are sufficient.")
    meaning += f"Noise accounts for {limit:.3g}; components of the remainder that are stronger than noise: {k}."
    return Check(name, outside.share, limit, meaning, "Add features, or allow further components: extra_rank='auto'")


def _incoherence(*sides: Features) -> Iterator[Check]:
    for name, line, F in zip(("F1", "F2"), ("row", "column"), sides, strict=True):
        worst = float(np.sqrt(F.n / F.d))
        meaning = (
            f"Incoherence measures how evenly the {line}s determine the coefficients of the features: 1 is even, and "
            f"at {worst:.3g} a single {line} determines one of them. Up to the limit one outlier per {line} is allowed."
        )
        advice = f"Errors in {line}s of high leverage matter most: see irpca.diagnostics.leverage_scores({name})"
        if not F.given:
            meaning = f"Without features of the {line}s the theorem allows no outlier at all: it makes no promise."
            advice = f"Nothing to do, unless there are features of the {line}s"
        yield Check(f"incoherence of {name}", F.mu, worst / 20**0.5, meaning, advice)


SOURCES = {
    "printed": "as printed in the paper",
    "proved": "as its proof needs it",
    "whitened": "for variant='whitened' (no dependence on the condition number of the features)",
}


def _sparsity(S: Sparse | None, F1: Features, F2: Features) -> Iterator[Check]:
    """Bounds on the outliers in a row and in a column, and the weaker one on the geometric mean of both."""
    rows, cols = (None, None) if S is None else (int(flagged(S, axis).max()) for axis in (0, 1))
    mu, kappa = max(F1.mu, F2.mu), max(F1.kappa, F2.kappa)
    joint = float(np.sqrt(F1.n * F2.n / (F1.d * F2.d))) / (20 * F1.mu * F2.mu)
    for kind, source, limit in (
        ("row", "printed", F1.n / (20 * mu**2 * F1.d * kappa)),
        ("column", "printed", F2.n / (20 * mu**2 * F2.d * kappa)),
        ("joint", "proved", joint / (F1.kappa * F2.kappa)),
        ("joint", "whitened", joint),
    ):
        name, allowed = f"{kind} sparsity, {source}", f"the theorem, {SOURCES[source]}, allows {limit:.3g}."
        if rows is None or cols is None:
            found = f"The outliers (S) were not computed; {allowed}"
            yield Check(name, None, limit, found, "Pass M, or solve with sparse=True")
            continue
        value = {"row": rows, "column": cols, "joint": float(np.sqrt(rows * cols))}[kind]
        if kind != "joint":
            found = f"No {kind} has more than {count(int(value), 'outlier')}"
        else:
            found = f"The geometric mean of the most outliers in a row and in a column is {value:.3g}"
            allowed = f"this condition is weaker than the two on rows and columns and enough for the proof; {allowed}"
        yield Check(name, value, limit, f"{found}; {allowed}", WORST_CASE)


def _bounded(F1: Features, F2: Features, result: Result) -> Check:
    """The proof needs of c_W only that ζ_1 bounds L; ‖R1 W R2ᵀ‖₂ / (σ1 σ2) <= ‖W‖₂ is enough for that."""
    norm = float(max(result.L.singular_values, default=0.0))
    W = norm if result.W is None else float(np.linalg.norm(result.W, 2))
    least = norm / (F1.sigma_max * F2.sigma_max)
    c_W = next((choice.value for choice in result.choices if choice.name == "c_W"), None)
    meaning = (
        "The first threshold must exceed the largest expected value (L). For that the parameter c_W of "
        f"solver='irpca_iht' must be at least {least:.3g} with variant='whitened', and ‖W‖₂ = {W:.3g} with 'paper'"
    )
    meaning += "." if c_W is None else f"; {c_W:.3g} was chosen."
    advice = "Compare with the c_W you gave, if you gave one" if c_W is None else "Pass a larger c_W"
    return Check("bounded W", least, c_W, meaning, advice)


def _noise(noise: float | None, largest: float, F1: Features, F2: Features) -> Iterator[Check]:
    share = noise / largest if noise is not None and largest > 0 else None
    kinds = ("noise", "", F1.kappa * F2.kappa), ("noise, whitened", ", for variant='whitened',", 1.0)
    for name, variant, square in kinds:
        factor = F1.mu * F2.mu * float(np.sqrt(F1.d * F2.d)) * square
        if share is None:
            yield Check(name, None, 1 / (40 * factor), "The size of the noise is not known.", "Pass M")
            continue
        meaning = (
            f"The largest noise is {share:.3g} of the largest expected value (L). Where its conditions hold, Theorem "
            f"2 then promises{variant} expected values to within {3 * factor * share:.3g} of the largest."
        )
        advice = (
            "Nothing to do: typical errors are far smaller than this bound; expected(return_std=True) estimates them"
        )
        yield Check(name, share, 1 / (40 * factor), meaning, advice)
