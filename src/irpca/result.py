"""What a solver yields, and what solve() returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from .constants import MAX_ERROR_RATIO
from .engines.base import Trim
from .engines.sparse_part import on_device, places, to_host, with_data
from .lowrank import Array, LowRank
from .wording import count

if TYPE_CHECKING:
    from .engines.sparse_part import Sparse
    from .model.calibration import Calibration
    from .model.entry_scale import EntryScale, Judge
    from .model.maps import ColumnMaps


class Status(Enum):
    """How a run ended; ``meaning`` says that in words, ``advice`` also what to do about it."""

    CONVERGED = "the expected values no longer change", ""
    MAX_ITER = "the expected values were still changing after max_iter iterations", "raise max_iter, or raise tol"
    STOPPED = (
        "stopped by a callback or the time budget, with the best fit by then",
        "raise the time budget and fit again",
    )
    INTERRUPTED = "interrupted by Ctrl-C, with the best fit by then", "fit again to the end"
    SATURATED = (
        "no pattern could be separated from the errors, so expected values and outliers mean nothing here",
        "check that the features are in the order of the table, add features, change rank=, or accept that too many "
        "cells are wrong",
    )
    DIVERGED = (
        "the numbers grew without bound",
        "check the scale of the table and of the features, and lower the rank",
    )

    def __init__(self, meaning: str, todo: str) -> None:
        self.meaning, self.advice = meaning, ": ".join(filter(None, (meaning, todo))) + "."

    @property
    def ok(self) -> bool:
        return self is Status.CONVERGED


@dataclass(frozen=True)
class Choice:
    """A value that was chosen from the data, and why."""

    name: str
    value: Any
    reason: str


NOTES = (  # kinds of doubt that do not touch expected values and outliers
    *("hardly-predicted", "unknown-lines", "unseen-lines"),
    *("code", "copied-row", "other-unit", "stuck", "swapped"),
)
# kinds of doubt with which a result is not to be used
FATAL = ("failure", "intervals", "no-pattern", "not-predicted", "too-small")


@dataclass(frozen=True)
class Doubt:
    """Something to doubt about a result: what was seen, what it means, what to do.

    Attributes
    ----------
    kind : a short name that code can compare, such as "unstable"
    text : a sentence or two for people
    rows, columns : positions of the lines it is about, if it is about some
    template : the text with ``{lines}`` where it names lines (or ``{rows}`` and ``{columns}``, and ``{row}`` and
        ``{column}`` the first ones), so that labels can take the place of positions
    """

    kind: str
    text: str
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    template: str = ""

    def __str__(self) -> str:
        return self.text


LEAST_SKILL = 1 - MAX_ERROR_RATIO**2  # from which on predictions are worth using
MOST_KINDS = 40  # columns whose kinds a summary tells
NAMED = 8  # lines that a text names
TEXT = "<U20"  # the names of mistakes in an array; the longest has 17 letters


def names(labels: Sequence[Any]) -> str:
    """The first few of them, separated by commas."""
    return ", ".join(map(str, labels[:NAMED])) + (", …" if len(labels) > NAMED else "")


def grouped(doubts: Sequence[Doubt]) -> list[tuple[Doubt, str]]:
    """The first doubt of every kind, about rows or columns, and its text, which says how many more there are."""
    kinds = [(doubt.kind, bool(doubt.rows), bool(doubt.columns)) for doubt in doubts]
    first = [k for k, kind in enumerate(kinds) if kind not in kinds[:k]]
    more = {k: kinds.count(kinds[k]) - 1 for k in first}
    return [(doubts[k], f"{doubts[k]}. {n} more like this" if n else str(doubts[k])) for k, n in more.items()]


def about_lines(kind: str, axis: int, lines: Array, template: str) -> Doubt:
    """A doubt about some rows (0) or columns; the template says ``{lines}`` where it names them."""
    positions = tuple(int(i) for i in lines)
    text = template.replace("{lines}", names(positions))
    return Doubt(kind, text, positions if axis == 0 else (), positions if axis == 1 else (), template)


def about_cells(kind: str, template: str, rows: Array, columns: Array | tuple[()] = ()) -> Doubt:
    """A doubt about cells of some rows and columns; the template says ``{rows}``, ``{columns}``, or ``{row}``."""
    some, others = tuple(int(i) for i in rows), tuple(int(j) for j in np.unique(columns))
    text = template.replace("{rows}", names(some)).replace("{columns}", names(others)).replace("{row}", str(some[0]))
    return Doubt(kind, text, some, others, template)


MIN_LINE_EVIDENCE = 2  # cells of a line that fit to rounding beside the one for each component that fits by itself


def unfitted_lines(axis: int, lines: Array) -> Doubt:
    """A doubt about rows (0) or columns that an exact fit of the others does not fit."""
    side = ("row", "column")[axis]
    which = f"1 {side} does" if len(lines) == 1 else f"{len(lines)} {side}s do"
    text = f"{which} not fit as the others do: {{lines}}. The expected values there are unreliable: so few cells fit "
    return about_lines("broken-lines", axis, lines, text + "exactly that they may do so by chance. Check their source")


@dataclass(frozen=True, eq=False)
class Expected:
    """What features F say of rows of ``L.left``, or of ``L.right``, never seen: ``offset + F @ coefficients``."""

    offset: Array
    coefficients: Array

    def __call__(self, F: Array) -> Array:
        expected: Array = self.offset + F @ self.coefficients
        return expected


@dataclass(frozen=True, eq=False)
class Unseen:
    """How well cells are predicted that a fit has not seen; gross errors are weighed out.

    Attributes
    ----------
    skill : float
        Share of the variance that is predicted, of a typical column: one less the square of the mean absolute error
        over that of the column's median; of root mean squares, where most cells of a column hold one value.
    skills, errors : arrays of shape (n2,)
        The same of every column, and its mean absolute error in units of M; NaN of columns with too few cells to tell.
    covered : pair of float
        The share of cells within their 50 % and 95 % intervals.
    coverage : array of shape (2, n2)
        The same of every column.
    agreement : float
        The share of the outliers that are among as many clearest ones by fits that have not seen them; NaN where there
        are too few to tell.
    cells : int
        How many cells were held out, each once.
    """

    skill: float
    skills: Array
    errors: Array
    covered: tuple[float, float]
    coverage: Array
    agreement: float
    cells: int

    def of_columns(self, labels: Sequence[Any]) -> dict[str, dict[str, float]]:
        """The numbers of every column of which they are known, the worst predicted first."""
        told = np.flatnonzero(np.isfinite(self.skills))
        return {
            str(labels[j]): {
                "skill": float(self.skills[j]),
                "error": float(self.errors[j]),
                "covered_50": float(self.coverage[0, j]),
                "covered_95": float(self.coverage[1, j]),
            }
            for j in told[np.argsort(self.skills[told], kind="stable")]
        }


@dataclass(frozen=True, eq=False)
class Certificate:
    """How a fit was chosen, and how well it does at cells that it has not seen.

    Attributes
    ----------
    candidates : name, mean log density and mean absolute error at held-out entries, of every fit that was tried
    chosen : the name of the one that was taken
    unseen : Unseen, or None where the fit is exact, or was cut short
    """

    candidates: tuple[tuple[str, float, float], ...]
    chosen: str
    unseen: Unseen | None = None


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
    converged : whether a run that this state ends has converged
    expected_corruption : the corrupted share, if the solver knows it without a read of all of M
    expected, shares, certificate, scale, fit, choices, doubts : as in :class:`Result`
    gross : about the share of gross errors, by the model of the noise
    stage, progress : what is being done before the last fit begins, and about what share of the work is done
    failure : why the result is not to be trusted, or None
    maps : of the columns, if L is of latent values of the cells
    whole : makes this state with all that belongs to it, where that takes time and is needed only if it is the last
    """

    L: LowRank
    zeta: float
    step: float
    trim: Trim | None = None
    noise: float | None = None
    tolerance: float = 0.0
    settled: bool = True
    converged: bool = True
    expected_corruption: float | None = None
    expected: tuple[Expected | None, Expected | None] | None = None
    shares: dict[str, float] = field(default_factory=dict)
    certificate: Certificate | None = None
    scale: EntryScale | None = None
    gross: float = 0.0
    fit: Any = None
    stage: str = ""
    progress: float | None = None
    failure: str | None = None
    maps: ColumnMaps | None = None
    choices: tuple[Choice, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    whole: Callable[[], State] | None = None


@dataclass
class History:
    """What happened, one entry per iteration in every column.

    Attributes
    ----------
    seconds : time since the start
    stage : what was being done before the last fit began; "" after that
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
    stage: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seconds)

    def append(self, state: State, seconds: float, reads: float) -> None:
        trim = state.trim
        self.seconds.append(seconds)
        self.reads.append(reads)
        self.stage.append(state.stage)
        self.zeta.append(state.zeta)
        self.step.append(state.step)
        self.corruption.append(np.nan if trim is None else 1.0 - trim.kept_share)
        self.residual.append(np.nan if trim is None else float(np.sqrt(trim.energy / max(trim.kept, 1))))


@dataclass(frozen=True, eq=False)
class Mistakes:
    """What kind of mistake every outlier is (:mod:`irpca.mistakes`).

    Attributes
    ----------
    names : tuple of str
        Such as "× 10" or "stuck"; "" where the mistake has no name.
    which : array of int
        Of every entry of S, in its order, the position of its name.
    """

    names: tuple[str, ...]
    which: Array

    @property
    def texts(self) -> Array:
        """The name of every outlier."""
        texts: Array = np.array(self.names, TEXT)[self.which]
        return texts


def in_units_of_M(S: Sparse, scale: EntryScale) -> Sparse:
    """What cells hold less what is expected, from the residuals of their latent values."""
    scale = scale.converted(S.tensor_of) if on_device(S) else scale
    observed, expected = scale.in_units_of_M(S.data, *places(S))
    found: Sparse = with_data(S, observed - expected)
    return found


@dataclass(frozen=True, eq=False)
class Latent:
    """L and S of the latent values of a table whose columns were mapped."""

    L: LowRank
    S: Sparse | None


@dataclass(frozen=True, eq=False)
class Result:
    """M taken apart: L, S, and how they were found.

    Attributes
    ----------
    L : LowRank
        The low-rank part; ``L.dense()`` makes it a matrix.
    S : csr_array of shape (n1, n2), DeviceSparse, or None
        The gross errors: M − L where it is more likely one than noise, or where it exceeds ``zeta``; nothing elsewhere.
        Of a tensor M on a GPU with more than 2²⁴ cells it stays there: ``S.tensor()`` is a ``torch.sparse_csr`` tensor,
        ``S.to_scipy()`` a copy in host memory, and ``S.indptr``, ``S.indices``, ``S.data`` are its parts.
        None if ``sparse=False`` was asked, and where M has more than 2²⁴ cells and ``outliers_to`` was given.
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
    solver, engine : str
        What ran; of the GPU engine with the kernels and the device, such as ``"gpu (triton on NVIDIA H200)"``.
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
    scale : EntryScale or None
        Scales of the noise and uncertainty of L, at every entry; None where the solver has no model of them.
    calibration : Calibration or None
        The probability that a residual, in units of its uncertainty, is a gross error.
    fit : the model with its posteriors, or None
    outliers_path : str or None
        The folder of Parquet files that holds the outliers, if ``outliers_to`` was given and they were written.
    latent : Latent or None
        Where columns were mapped: L and S of latent values, to which rank, W, noise, zeta, residual, explained, scale
        and calibration belong. ``L.dense()`` and S are in units of M all the same.
    mistakes : Mistakes or None
        What kind of mistake every outlier is; None where M is not in memory.
    """

    L: LowRank
    S: Sparse | None
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
    scale: EntryScale | None = None
    calibration: Calibration | None = None
    fit: Any = None
    outliers_path: str | None = None
    latent: Latent | None = None
    mistakes: Mistakes | None = None

    def in_units_of_M(self, maps: ColumnMaps | None = None) -> Result:
        """The same, if L and S are of latent values: with what these say of M in their place.

        A run that ended before there was a scale has no outliers then; its L is that of the ``maps`` given.
        """
        from .model.maps import MappedLowRank

        if self.scale is None or self.scale.maps is None:
            return self if maps is None else replace(self, L=MappedLowRank(self.L, maps), S=None)
        S = None if self.S is None else in_units_of_M(self.S, self.scale)
        return replace(self, L=MappedLowRank(self.L, self.scale.maps), S=S, latent=Latent(self.L, self.S))

    def in_host_memory(self, what: str) -> Result:
        """The same with its outliers in host memory, for ``what`` is made of them there."""
        if not on_device(self.S):
            return self
        latent = self.latent
        if latent is not None and latent.S is not None:
            latent = replace(latent, S=to_host(latent.S, what))
        return replace(self, S=to_host(self.S, what), latent=latent)

    @property
    def maps(self) -> ColumnMaps | None:
        """Of the columns, where they were mapped."""
        return None if self.scale is None else self.scale.maps

    @property
    def factors(self) -> LowRank:
        """What the noise is about: L, of latent values where columns were mapped."""
        return self.L if self.latent is None else self.latent.L

    @property
    def residuals(self) -> Sparse | None:
        """S, of latent values where columns were mapped."""
        return self.S if self.latent is None else self.latent.S

    @property
    def n_observed(self) -> int:
        return int(self.counts[0].sum())

    @property
    def failed(self) -> bool:
        """Whether there is no answer."""
        return self.status in (Status.SATURATED, Status.DIVERGED)

    @property
    def judge(self) -> Judge:
        """What says how probable it is that an entry is an outlier; S itself was found with a limit above rounding."""
        from .model.entry_scale import Judge

        calibration = None if self.failed else self.calibration
        limit = self.zeta if self.scale is None or calibration is None else calibration.limit
        return Judge(limit, self.scale, calibration, self.noise == 0 and not self.failed, self.known)

    @property
    def n_iter(self) -> int:
        return self.history.stage.count("")

    @property
    def converged(self) -> bool:
        return self.status.ok

    @property
    def usable(self) -> str:
        """``"usable"``, ``"use with care"`` or ``"do not use"``."""
        if not self.status.ok or any(doubt.kind in FATAL for doubt in self.doubts):
            return "do not use"
        return "use with care" if self._serious else "usable"

    @property
    def unseen(self) -> Unseen | None:
        """How well cells are predicted that a fit has not seen; None where no cells were left out."""
        return None if self.certificate is None else self.certificate.unseen

    @property
    def _serious(self) -> list[Doubt]:
        """The doubts that make the verdict."""
        return [doubt for doubt in self.doubts if doubt.kind not in NOTES]

    @property
    def _why(self) -> str:
        """What :attr:`usable` rests on."""
        if not self.status.ok:
            return self.status.meaning
        serious = [doubt for doubt in self.doubts if doubt.kind in FATAL] or self._serious
        if not serious:
            return "no check found anything wrong"
        first = str(serious[0]).partition(":")[0].partition(". ")[0]
        return first if len(serious) == 1 else f"{first}; and {count(len(serious) - 1, 'more check')} below"

    def summary(self, labels: Sequence[Any] | None = None) -> str:
        """Whether to use it, what was found, what was chosen and why, what to check: text for people.

        Parameters
        ----------
        labels : list, or None
            What to call the columns of M. None: their positions.
        """
        n1, n2 = self.L.shape
        missing = n1 * n2 - self.n_observed
        holes = f"; {missing:,} cells ({missing / (n1 * n2):.2%}) are missing" if missing else ""
        lines = [
            f"{self.usable}: {self._why}",
            f"Table: {n1:,} rows × {n2:,} columns{holes}",
            f"Outliers: {self._outliers}",
            f"Expected values: {count(self.rank, 'component')}; they explain {self.explained:.1%} of the sum of "
            "squares of all cells but outliers",
            f"Noise: {self._noise}",
            f"Computation: {self.status.name}, {self.status.advice} {count(self.n_iter, 'iteration')}, "
            f"{self.seconds:.2f} s (solver {self.solver}, engine {self.engine}, {self.reads:.3g} reads of the table)",
        ]
        if self.unseen is not None:
            lines.insert(4, f"Cells left out: {self.predicted(labels)}")
        if self.shares:
            parts = {"features": "can be written with the features", "free": "cannot"}
            shares = (f"{share:.1%} {parts.get(part, part)}" for part, share in self.shares.items())
            lines.append("Of the expected values (sum of squares): " + ", ".join(shares))
        if self.maps is not None:
            lines.append(f"Columns: {self.kinds(labels)}")
        if self.choices:
            lines.append("Chosen from the data:")
            lines += [f"  {choice.name} = {_short(choice.value)}: {choice.reason}" for choice in self.choices]
        notes = [doubt for doubt in self.doubts if doubt.kind in NOTES]
        for heading, some in (("What to check:", self._serious), ("Details:", notes)):
            lines += [heading] * bool(some) + [f"  - {text}" for _, text in grouped(some)]
        return "\n".join(lines)

    def predicted(self, labels: Sequence[Any] | None = None) -> str:
        """What :attr:`unseen` says, "61% of the variance of a typical column …", and of which columns it is not so."""
        unseen = self.unseen
        if unseen is None:
            return ""
        same = ""
        if np.isfinite(unseen.agreement):
            same = f"; {unseen.agreement:.0%} of the outliers are clear without their own cell, too"
        half, most = unseen.covered
        text = (
            f"{max(unseen.skill, 0.0):.0%} of the variance of a typical column is predicted; 95 % intervals hold "
            f"{most:.1%} of the cells, 50 % intervals {half:.1%}{same}"
        )
        poor = np.flatnonzero(unseen.skills < LEAST_SKILL)
        if len(poor) and unseen.skill >= LEAST_SKILL:
            text += f". Columns that are hardly predicted: {names([labels[j] if labels else j for j in poor.tolist()])}"
        return text

    def kinds(self, labels: Sequence[Any] | None = None) -> str:
        """What every column holds, where columns were mapped: "price: logarithm; garage: yes or no"."""
        if self.maps is None:
            return ""
        kinds = self.maps.names
        if len(set(kinds)) == 1:
            return f"all are fitted through the same map, {kinds[0]}"
        shown = [f"{label}: {kind}" for label, kind in zip(labels or range(len(kinds)), kinds, strict=True)]
        return "; ".join(shown[:MOST_KINDS]) + ("; …" if len(shown) > MOST_KINDS else "")

    @property
    def _outliers(self) -> str:
        if self.S is None and self.outliers_path is None:
            return "not asked for"
        n = round(self.corruption * self.n_observed) if self.S is None else self.S.nnz
        cells = f"{count(n, 'cell')} ({n / max(self.n_observed, 1):.2%})"
        if self.outliers_path is not None:
            cells += f" in {self.outliers_path}"
        if self.noise == 0:
            return f"{cells}, those that do not fit the others"
        if self.calibration is None:
            return f"{cells}, those more than {self.zeta:.3g} from what is expected"
        if self.outliers_path is not None:
            return f"{cells}, more likely wrong than noise"
        change = "outliers(fdr=…), outliers(probability=…) or outliers(threshold=…)"
        return f"{cells}, more likely wrong than noise; for more or fewer: {change}"

    @property
    def _noise(self) -> str:
        if self.noise == 0:
            return "none: expected and observed are equal but for rounding, outside the outliers"
        if self.noise is None:
            return "unknown to this solver"
        mapped = "" if self.maps is None else ", of mapped values, whose own is about 1"
        return (
            f"standard deviation {self.noise:.3g} in a typical cell{mapped}; it differs by row and column, see "
            "std in outliers()"
        )

    def __repr__(self) -> str:
        return (
            f"Result(shape={self.L.shape}, rank={self.rank}, corruption={self.corruption:.3g}, "
            f"status={self.status.name}, n_iter={self.n_iter})"
        )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
