"""What a solver yields, and what solve() returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from .engines.base import Noise, Trim
from .lowrank import Array, LowRank

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .calibration import Calibration


class Status(Enum):
    """How a run ended; ``advice`` says what to do about it."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    SATURATED = "saturated"
    DIVERGED = "diverged"

    @property
    def advice(self) -> str:
        return _ADVICE[self]

    @property
    def ok(self) -> bool:
        return self is Status.CONVERGED


_ADVICE = {
    Status.CONVERGED: "the last step changed L by less than the tolerance.",
    Status.MAX_ITER: "the iterations ran out while L was still moving: raise max_iter, or loosen tol.",
    Status.STOPPED: "stopped from outside; this is the last complete iterate. Give it more time, or use it as it is.",
    Status.SATURATED: (
        "no low-rank part could be told from the corruption, so L and S mean nothing here: check that the rows of the "
        "features belong to the rows and columns of M, add features, change the rank, or accept that too many entries "
        "are corrupted."
    ),
    Status.DIVERGED: "the iterates grew without bound: check the scale of M and of the features, and lower the rank.",
}


@dataclass(frozen=True)
class Choice:
    """A value that was chosen from the data, and why."""

    name: str
    value: Any
    reason: str


HARMLESS = ("empty", "full-rank", "many-outliers")  # kinds of doubt that say something of the data, not of the fit
FATAL = ("failure", "unstable", "out-of-range")  # kinds of doubt with which a result is not to be used


@dataclass(frozen=True)
class Doubt:
    """Something to doubt about a result: what was seen, what it means, what to do.

    Attributes
    ----------
    kind : a short name that code can compare, such as "unstable"
    text : a sentence or two for people
    rows, columns : positions of the lines it is about, if it is about some
    template : the text with ``{lines}`` where it names lines, so that labels can take the place of positions
    """

    kind: str
    text: str
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    template: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Expected:
    """What features F say of rows of ``L.left``, or of ``L.right``, never seen: ``offset + F @ coefficients``."""

    offset: Array
    coefficients: Array

    def __call__(self, F: Array) -> Array:
        expected: Array = self.offset + F @ self.coefficients
        return expected


@dataclass(frozen=True)
class Certificate:
    """How a fit was chosen, and how stable it is.

    Attributes
    ----------
    moved : relative distance between the fit to nine tenths of the entries and the fit to all
    candidates : name, mean log density and mean absolute error at held-out entries, of every fit that was tried
    chosen : the name of the one that was taken
    disagreement : the largest relative distance between it and another that did as well
    """

    moved: float
    candidates: tuple[tuple[str, float, float], ...]
    chosen: str
    disagreement: float


@dataclass(frozen=True, eq=False)
class State:
    """One iterate of a solver.

    Attributes
    ----------
    L : the low-rank part
    zeta : the threshold that belongs to it: S is M − L where that exceeds zeta
    step : relative change of L, ``‖L_t − L_{t−1}‖_F / ‖L_t‖_F``, or of what else must come to rest if that is larger
    trim : what rode along on the read that made L, if M was read
    noise : standard deviation of the noise as far as it is known
    tolerance : a step below this is as good as none (the statistical error is larger), beside the user's tol
    settled : whether a small step may end the run
    expected_corruption : the corrupted share that the final read should find, if the solver can tell
    expected : what features say of new rows and of new columns, if L has more parts; None where nothing is known
    shares : what part of the energy of L each of its parts holds, if it has several
    certificate : how the fit was chosen, if several raced
    weights : the noise model, if there is one: gross errors are told by it in place of zeta
    fit : the model with its posteriors, for new rows
    failure : why the result is not to be trusted, or None
    choices, doubts : what was chosen from the data, and what to doubt
    """

    L: LowRank
    zeta: float
    step: float
    trim: Trim | None = None
    noise: float | None = None
    tolerance: float = 0.0
    settled: bool = True
    expected_corruption: float | None = None
    expected: tuple[Expected | None, Expected | None] | None = None
    shares: dict[str, float] = field(default_factory=dict)
    certificate: Certificate | None = None
    weights: Noise | None = None
    fit: Any = None
    failure: str | None = None
    choices: tuple[Choice, ...] = ()
    doubts: tuple[Doubt, ...] = ()


@dataclass
class History:
    """What happened, one entry per iteration in every column.

    Attributes
    ----------
    seconds : time since the start
    reads : how many times M had been read
    zeta : threshold
    step : relative change of L
    corruption : share of the entries beyond the threshold (NaN where M was not read in full)
    residual : root mean square of what is in neither L nor S (NaN likewise)
    """

    seconds: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    zeta: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    corruption: list[float] = field(default_factory=list)
    residual: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seconds)

    def append(self, state: State, seconds: float, reads: float) -> None:
        trim = state.trim
        self.seconds.append(seconds)
        self.reads.append(reads)
        self.zeta.append(state.zeta)
        self.step.append(state.step)
        self.corruption.append(np.nan if trim is None else 1.0 - trim.kept_share)
        self.residual.append(np.nan if trim is None else float(np.sqrt(trim.energy / max(trim.kept, 1))))


@dataclass(frozen=True, eq=False)
class Result:
    """M taken apart: L, S, and how they were found.

    Attributes
    ----------
    L : LowRank
        The low-rank part; ``L.dense()`` makes it a matrix.
    S : csr_array of shape (n1, n2), or None
        The gross errors: M − L where it is more likely one than noise, or where it exceeds ``zeta``; nothing elsewhere.
        None if ``sparse=False`` was asked.
    W : array of shape (d1, d2), or None
        ``L = F1 @ W @ F2.T`` in the user's own feature coordinates; a side without features has as many
        coordinates as M has rows or columns there. None without any, and if the run diverged.
    rank, noise, corruption : int, float, float
        Rank of L, standard deviation of the noise, share of entries in S.
    zeta : float
        The threshold that separates noise from gross errors; with a noise model, that of a typical entry.
    residual : float
        Root mean square of what is in neither L nor S; more than ``noise`` if that has long tails.
    explained : float
        Share of the energy (sum of squares) of the entries not in S that L explains.
    status : Status
    history : History
    choices : tuple of Choice
        What was chosen from the data, and why.
    doubts : tuple of Doubt
        What to doubt: kind, text, and the rows or columns it is about.
    reads : float
        How many times M was read, by the solver and for S; the checks look at some entries beside.
    counts : pair of arrays
        How many entries of each row, and of each column, of M are observed.
    shares : dict
        Where L has several parts: the share of its energy that each holds, such as "features" and "free".
    expected : pair of Expected or None, or None
        What features say of new rows and columns, if L is more than ``F1 @ W @ F2.T``.
    known : pair of boolean arrays, or None
        Of which rows, and of which columns, L is known: they have enough entries, or features. None: of all.
    certificate : Certificate or None
        How the fit was chosen among several, and how stable it is.
    weights : Noise or None
        The noise model: scales of rows and columns, uncertainty of L.
    calibration : Calibration or None
        The probability that a residual, in units of its uncertainty, is a gross error.
    fit : the model with its posteriors, or None
    """

    L: LowRank
    S: csr_array | None
    W: Array | None
    rank: int
    noise: float | None
    corruption: float
    zeta: float
    residual: float
    explained: float
    status: Status
    history: History
    choices: tuple[Choice, ...]
    doubts: tuple[Doubt, ...]
    solver: str
    engine: str
    reads: float
    seconds: float
    counts: tuple[Array, Array]
    shares: dict[str, float] = field(default_factory=dict)
    expected: tuple[Expected | None, Expected | None] | None = None
    known: tuple[Array, Array] | None = None
    certificate: Certificate | None = None
    weights: Noise | None = None
    calibration: Calibration | None = None
    fit: Any = None

    @property
    def n_observed(self) -> int:
        return int(self.counts[0].sum())

    @property
    def n_iter(self) -> int:
        return len(self.history)

    @property
    def converged(self) -> bool:
        return self.status.ok

    @property
    def usable(self) -> str:
        """``"usable"``, ``"use with care"`` or ``"do not use"``."""
        if not self.status.ok or any(doubt.kind in FATAL for doubt in self.doubts):
            return "do not use"
        return "use with care" if any(doubt.kind not in HARMLESS for doubt in self.doubts) else "usable"

    @property
    def _why(self) -> str:
        """What :attr:`usable` rests on."""
        fatal = [doubt.kind for doubt in self.doubts if doubt.kind in FATAL]
        serious = [doubt.kind for doubt in self.doubts if doubt.kind not in HARMLESS]
        if fatal or (serious and self.status.ok):
            return f"{', '.join(fatal or serious)}; see what to doubt below"
        return "no check found anything wrong" if self.status.ok else f"the run ended {self.status.name}"

    def summary(self) -> str:
        """Whether to use it, what was found, what was chosen and why, what to doubt: text for people."""
        n1, n2 = self.L.shape
        noise = "unknown" if self.noise is None else f"{self.noise:.3g}"
        holes = "" if self.n_observed == n1 * n2 else f", {self.n_observed / (n1 * n2):.2%} observed,"
        lines = [
            f"{self.usable}: {self._why}",
            f"{n1} × {n2} matrix{holes} = rank {self.rank} + {self.corruption:.2%} gross errors + noise {noise}",
            f"  {self.status.name}: {self.status.advice}",
            f"  L explains {self.explained:.1%} of the energy of the entries that are not gross errors;"
            f" an entry is a gross error beyond ±{self.zeta:.3g}",
            f"  solver {self.solver}, engine {self.engine}: {self.n_iter} iterations, {self.reads:.2f} reads of M, "
            f"{self.seconds:.2f} s",
        ]
        if self.shares:
            lines.append(
                "  of the energy of L: " + ", ".join(f"{part} {share:.1%}" for part, share in self.shares.items())
            )
        if self.choices:
            lines.append("chosen from the data:")
            lines += [f"  {choice.name} = {_short(choice.value)}: {choice.reason}" for choice in self.choices]
        if self.doubts:
            lines.append("to doubt:")
            lines += [f"  - {doubt}" for doubt in self.doubts]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Result(shape={self.L.shape}, rank={self.rank}, corruption={self.corruption:.3g}, "
            f"status={self.status.name}, n_iter={self.n_iter})"
        )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
