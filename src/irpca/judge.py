"""Values chosen from the data, each with its reason, and the verdict on a fit."""

from __future__ import annotations

import numpy as np

from .engines.base import Engine, Trim
from .lowrank import Array, LowRank
from .result import Choice, State
from .sampling import Sample, atoms, check_scale, resolution, stored_precision
from .threshold import Level, consensus, has_core, has_valley, level, rounding_floor

GLANCE = 1 << 13  # entries that tell an exact fit from others
QUICK = 1 << 15  # entries to judge a fit by while looking for it
THOROUGH = 1 << 17  # and for the final estimates
GAIN = 0.01  # the least a fit must improve on L = 0, in mean log residual, to mean anything
ENTRIES_PER_UNKNOWN = 3  # the least to believe a fit on a block
HOLLOW = 10  # fewer clean entries than this for every unknown: a fit to nothing
NEAR = 1e-5  # of the largest entry of L: no gross error is that small where others are exact
BLOWN_UP = 3.0  # L beyond this multiple of the largest entry of M is an artefact
NEGLIGIBLE = 0.01  # a step this small beside the statistical error is as good as none
POWERS, STANDS_OUT = 10, 1.2  # steps of the power method, and what is no accident
PIECE = 256  # rows and columns of what L leaves, to be looked at
LEFT_OUT = (
    "what L leaves is not noise: a direction stands out of it, so the features leave out a part of L, which then looks "
    "like noise and gross errors. extra_rank='auto' looks for that part; it may be no more than the mean, if no "
    "constant is among the features"
)
STILL_LEFT_OUT = (
    "what L leaves is not noise: a direction stands out of it, but there are too few entries for a free part beside "
    "the features to be believed. extra_rank=k makes one of k directions all the same"
)
FASTEST = 0.05  # the least that the length of a step is believed to shrink to


class Judge:
    """Judges fits by scattered entries of M, most of which no fit has seen.

    Parameters
    ----------
    engine : Engine
    noise : float or None
        Standard deviation of the noise, if it is known.
    rng : Generator
    lagging : bool
        Whether single rows may lag behind a fit that is exact elsewhere: not if features tie them all together.
    entries : int
        How many to look at.
    """

    def __init__(
        self,
        engine: Engine,
        noise: float | None,
        rng: np.random.Generator,
        lagging: bool = True,
        entries: int = QUICK,
    ) -> None:
        self.engine, self.noise, self.rng, self.lagging = engine, noise, rng, lagging
        self.rises = 5  # how often the level may rise again: it must come to rest
        self.majority = False  # whether the noise is what the majority of the entries has
        self.most = float(np.sqrt(2 * np.log(engine.n_observed)))  # the largest of so many Gaussians lies about there
        self.entries = 0
        self.look(entries)

    def look(self, entries: int) -> None:
        """Draw the entries to judge by, unless as many have been drawn."""
        if entries <= self.entries:
            return
        self.entries = entries
        drawn = Sample.draw(self.engine, entries, self.rng)
        check_scale(float(np.abs(drawn.values).max()))
        spectrum = np.unique(drawn.values, return_counts=True)
        self.atoms = atoms(*spectrum)
        self.resolution = resolution(*spectrum)
        self.drawn, self.sample = drawn, self.telling(drawn)
        self.stored = stored_precision(*spectrum)

    @property
    def observed_share(self) -> float:
        n1, n2 = self.engine.shape
        return self.engine.n_observed / (n1 * n2)

    def floor(self, L: LowRank) -> float:
        """The size of rounding errors in M − L."""
        return self.floor_of(self._largest(L))

    def floor_of(self, largest: float) -> float:
        """The same if no entry of L exceeds ``largest``."""
        return max(rounding_floor(self.engine.dtype, largest), 2 * self.stored * largest)

    def telling(self, sample: Sample) -> Sample:
        """The sample without what would pass for an exact fit by chance.

        Atoms are left out, and values that come in steps are blurred by half a step, which is how well they are known.
        """
        keep = self._telling(sample.values)
        if keep.all() and not self.resolution:
            return sample
        return Sample(sample.rows[keep], sample.cols[keep], self._blurred(sample.values[keep]))

    def residuals(self, piece: Array, fitted: Array) -> Array:
        """Sizes of the residuals of a dense block, told in the same way."""
        keep = self._telling(piece)
        return np.abs(self._blurred(piece[keep]) - fitted[keep])

    def _fits_steps(self, L: LowRank) -> bool:
        """Whether L meets values that come in steps exactly, not just the most frequent one: then no blur is due."""
        values, counts = np.unique(self.drawn.values, return_counts=True)
        rare = self.drawn.values != values[counts.argmax()]
        return bool((self.drawn.sizes(L)[rare] <= self.floor(L)).mean() > 0.5)

    def _telling(self, values: Array) -> Array:
        observed = ~np.isnan(values)
        keep = observed & ~np.isin(values, self.atoms) if len(self.atoms) else observed
        return keep if keep.sum() >= 30 else observed

    def _blurred(self, values: Array) -> Array:
        if not self.resolution:
            return values
        return values + self.rng.uniform(-self.resolution, self.resolution, values.shape)

    def _largest(self, L: LowRank) -> float:
        return float(np.abs(self.sample.at(L)).max(initial=0.0))

    def level(self, L: LowRank, unknowns: int = 0) -> Level:
        """What the sampled residuals say of a fit with so many unknowns."""
        if self.resolution and self._fits_steps(L):
            self.resolution = 0.0
            self.sample = self.telling(self.drawn)
        return self.judged(self.sample.sizes(L), self._largest(L), unknowns / self.engine.n_observed)

    def judged(self, sizes: Array, largest: float, fitted: float) -> Level:
        """What residuals of these sizes say, L being no larger than ``largest`` and ``fitted`` unknowns per entry."""
        return level(
            sizes / np.sqrt(max(1 - fitted, 0.1)),  # residuals of a fit are smaller than the noise by what was fitted
            self.floor_of(largest),
            self.noise,
            self.most,
            self.majority,
            NEAR * largest if self.lagging else 0.0,
        )

    def distinct(self, L: LowRank) -> bool:
        """Whether clean entries and gross errors are two crowds, so that the clean ones need not be the majority."""
        return self.noise is not None or has_valley(self.sample.sizes(L), self.floor(L))

    def updated(self, before: Level, L: LowRank, unknowns: int = 0) -> tuple[Level, bool]:
        """The level for the next step, and whether it is steady: then it stays as it was, and L comes to rest."""
        now = self.level(L, unknowns)
        # A level that leaves hardly more entries than unknowns is that of a fit to nothing.
        hollow = now.clean * self.engine.n_observed < HOLLOW * unknowns
        lower, higher = now.sigma < 0.95 * before.sigma, now.sigma > 1.2 * before.sigma and self.rises > 0
        self.rises -= higher
        steady = hollow or not (lower or higher)
        return (before if steady else now), steady

    def state(
        self,
        L: LowRank,
        now: Level,
        step: float,
        trim: Trim | None,
        chosen: tuple[Choice, ...] = (),
        failure: str | None = None,
        unknowns: int = 0,
        doubts: tuple[str, ...] = (),
        rate: float = 1.0,
    ) -> State:
        """An iterate with what is known of the noise. At rest, that is taken from many more entries, for the record.

        Each step is about ``rate`` times as long as the one before it; what is left after this one is as much shorter.
        """
        negligible = NEGLIGIBLE * _statistical_error(L, unknowns, now, self.observed_share) / max(rate, FASTEST)
        tolerance = max(negligible, 10 * float(np.finfo(self.engine.dtype).eps))
        entries = len(self.sample.values)
        if not now.exact and step <= tolerance:
            sample = self.telling(Sample.draw(self.engine, THOROUGH, self.rng))
            now = self.judged(sample.sizes(L), self._largest(L), unknowns / self.engine.n_observed)
            entries = len(sample.values)
        blur = self.resolution if self.noise is None else 0.0  # which is ours, not M's
        noise = float(np.sqrt(max(now.sigma**2 - blur**2 / 3, 0.0)))
        return State(
            L,
            now.zeta,
            step,
            trim,
            noise,
            tolerance,
            expected_corruption=float(np.mean(self.drawn.sizes(L) > now.zeta)),  # atoms too: they are in M
            failure=failure,
            choices=(*chosen, self._noise_choice(now, noise, entries)),
            doubts=doubts,
        )

    def _noise_choice(self, now: Level, noise: float, entries: int) -> Choice:
        if now.exact:
            why = f"residuals of the clean entries are below {now.floor:.2g}, which is rounding"
        elif self.noise is not None:
            why = "as given"
        elif self.majority:
            why = (
                f"from the median of the residuals at {entries} random entries: they tail off slowly, "
                "with no gap between noise and gross errors"
            )
        else:
            why = f"standard deviation of the core of the residuals at {entries} random entries"
        if self.resolution:
            why += f" (values of M come in steps of {2 * self.resolution:.3g})"
        return Choice("noise", noise, why)

    def score(self, L: LowRank) -> float:
        """Mean log residual: the lower, the better the fit."""
        return consensus(self.sample.sizes(L), self.floor(L))

    def leaves_structure(self, L: LowRank, zeta: float) -> bool:
        """Whether a direction stands out of the trimmed residual, in some rows and columns of M."""
        if self.resolution:  # rounding is no noise: it follows L
            return False
        rows, cols = (np.sort(self.rng.choice(n, size=min(n, PIECE), replace=False)) for n in self.engine.shape)
        T = self.engine.block(rows, cols) - L.rows(rows)[:, cols]
        kept = np.abs(T) <= zeta
        T = np.where(kept, T, 0.0)
        # The largest of so few singular values of noise: see noise_edge.
        lengths = np.sqrt(kept.sum(axis=1).max()) + np.sqrt(kept.sum(axis=0).max()) + 1
        edge = np.sqrt((T**2).sum() / max(kept.sum(), 1)) * lengths
        v: Array = self.rng.standard_normal((T.shape[1], 1))
        for _ in range(POWERS):
            v = T.T @ (T @ v)
            v = v / max(float(np.linalg.norm(v)), float(np.finfo(float).tiny))
        return bool(np.linalg.norm(T @ v) > STANDS_OUT * edge)

    def objection(self, L: LowRank, found: Level, entries: int, unknowns: int, seen: Level) -> str | None:
        """Why a fit is not to be believed, or None.

        Parameters
        ----------
        L, found : the fit, and the level of its residuals at the sampled entries
        entries, unknowns : how many entries it was made from, and how many numbers were fitted
        seen : the level of its residuals at the entries it was made from
        """
        floor = self.floor(L)
        gain = consensus(np.abs(self.sample.values), floor) - self.score(L)
        if self._largest(L) > BLOWN_UP * np.abs(self.drawn.values).max():
            return "entries of L are far larger than any of M: too many directions for so few entries; lower the rank"
        if gain < GAIN:
            return (
                "L explains nothing: residuals are as large as M itself, as if features and M did not belong together"
            )
        kept = float(np.mean(self.sample.sizes(L) <= found.zeta))
        # Less is kept where the noise is not what it is said to be.
        clean = found.clean if kept > 0.5 * found.clean else kept
        if clean < 0.95 and clean * entries < ENTRIES_PER_UNKNOWN * unknowns:
            return (
                f"too few clean entries: about {clean:.1%} of {entries} for {unknowns} unknowns, "
                f"at least {ENTRIES_PER_UNKNOWN} times as many are needed"
            )
        if not found.exact and not has_core(self.sample.sizes(L), found.sigma):
            return "residuals do not crowd around zero: corruption could not be told from noise"
        if found.sigma > 2 * max(seen.sigma, floor):
            return (
                f"the fit does not hold elsewhere: noise {seen.sigma:.3g} where it was made, {found.sigma:.3g} at large"
            )
        return None


def _statistical_error(L: LowRank, unknowns: int, now: Level, observed: float) -> float:
    """The relative error of L that noise leaves even to someone who knows the corruption."""
    size = float(np.linalg.norm(L.core))
    return now.sigma * float(np.sqrt(unknowns / (max(now.clean, 0.01) * observed))) / size if size > 0 else 0.0


def choose_rank(singular_values: Array, shape: tuple[int, int], noise: float, kept_share: float) -> Choice:
    """The number of singular values of a core estimated by least squares that stand out of the noise.

    Noise of standard deviation σ, seen at a share p of the entries, adds to a core in orthonormal coordinates a
    matrix of independent entries of standard deviation σ/√p. The largest singular value of such a k1×k2 matrix is
    close to (√k1 + √k2) σ/√p, and hardly ever beyond (√k1 + √k2 + 1) σ/√p.

    Parameters
    ----------
    singular_values : array, descending
    shape : (k1, k2) of the core
    noise : σ, with rounding counted in
    kept_share : p
    """
    edge = noise_edge(shape, noise, kept_share)
    rank = int(np.count_nonzero(singular_values > edge))
    most = len(singular_values)
    if rank == 0:
        return Choice("rank", 1, f"no singular value stands out of the noise (edge {edge:.3g}); 1 is the least")
    if rank == most:
        return Choice("rank", rank, f"all {most} singular values stand out of the noise (edge {edge:.3g})")
    last, following = singular_values[rank - 1], singular_values[rank]
    return Choice(
        "rank",
        rank,
        f"singular value {rank} is {last:.3g}, the next {following:.3g}; noise alone reaches {edge:.3g}",
    )


def noise_edge(shape: tuple[int, int], noise: float, kept_share: float) -> float:
    """The largest singular value that noise alone gives to a core of this shape, estimated by least squares."""
    return float((np.sqrt(shape[0]) + np.sqrt(shape[1]) + 1) * noise / np.sqrt(kept_share))
