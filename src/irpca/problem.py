"""What a solver is to solve: who owns M, what is known about its rows and columns, and the seeds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from . import constants
from .cached import cached_property
from .engines import choose
from .engines.base import Engine
from .features import Features
from .lowrank import Array
from .model.columns import Columns
from .model.maps import ColumnMaps
from .sample import Sample, check_scale, children

PURPOSES = "sample", "blocks", "block fits", "units"  # a new one at the end


class LatentView:
    """An engine seen through maps: the latent values of what it answers about entries of M, and no other questions."""

    def __init__(self, engine: Engine, maps: ColumnMaps) -> None:
        self._engine, self._maps = engine, maps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def block(self, rows: Array, cols: Array) -> Array:
        found: Array = self._maps.latent(self._engine.block(rows, cols), cols)
        return found

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        rows, cols, values = self._engine.draw(size, rng)
        return rows, cols, self._maps.cells(values, cols)


@dataclass(frozen=True, eq=False)
class Problem:
    """A matrix to be taken apart.

    Attributes
    ----------
    engine : Engine
        The owner of M.
    F1, F2 : Features
        Of the rows and of the columns.
    rank : int or None
        Of L; with features, of the part of L that they explain. None: to be chosen.
    seed : SeedSequence
    maps : ColumnMaps or None
        Of the columns, if the engine's M holds latent values of another table.
    latent : dict
        By maps, the owners of latent values of this M: one for all who ask.
    """

    engine: Engine
    F1: Features
    F2: Features
    rank: int | None
    seed: np.random.SeedSequence
    maps: ColumnMaps | None = None
    latent: dict[ColumnMaps, Engine] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        return self.engine.shape

    @property
    def features(self) -> tuple[Features, Features]:
        return self.F1, self.F2

    @property
    def given(self) -> tuple[bool, bool]:
        """Whether rows, and columns, have features."""
        return self.F1.given, self.F2.given

    @property
    def needed_rank(self) -> int:
        """The rank, for solvers that cannot choose one."""
        assert self.rank is not None  # solve() has seen to it
        return self.rank

    def brought_near(self) -> Problem:
        """The same, with a small M that is far away brought into memory, for solvers that read it often."""
        n1, n2 = self.shape
        if not self.engine.dear or n1 * n2 > constants.BUDGET.memory:
            return self
        return replace(self, engine=choose(self.engine.block(np.arange(n1), np.arange(n2))), latent={})

    def mapped(self, maps: ColumnMaps) -> Problem:
        """The problem of the latent values of M."""
        if maps not in self.latent:
            self.latent[maps] = self.engine.mapped(maps)
        return replace(self, engine=self.latent[maps], maps=maps)

    def seen_through(self, maps: ColumnMaps) -> Problem:
        """The same for whoever asks for no more than some entries: M itself is not mapped."""
        view: Any = LatentView(self.engine, maps)
        return replace(self, engine=view, maps=maps)

    def generator(self) -> np.random.Generator:
        """Random numbers for a solver with one use for them; the same at every call."""
        return np.random.default_rng(self.seed)

    def seed_for(self, purpose: str) -> np.random.SeedSequence:
        """A seed of its own for each purpose: one question more for one of them changes no answer to another."""
        return children(self.seed, len(PURPOSES))[PURPOSES.index(purpose)]

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for a purpose; the same at every call."""
        return np.random.default_rng(self.seed_for(purpose))

    @cached_property
    def sample(self) -> Sample:
        """Scattered entries of M, by which fits are judged; numbers that cannot be squared are refused."""
        sample = Sample.draw(self.engine, constants.BUDGET.judged, self.rng("sample"))
        check_scale(float(np.abs(sample.values).max()))
        return sample

    @cached_property
    def columns(self) -> Columns:
        """The units of the columns, and the least noise that can be told in each."""
        return Columns.of(self)
