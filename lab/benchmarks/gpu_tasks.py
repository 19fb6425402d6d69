"""Problems that are made on the device, a few rows at a time, and answers that are judged there.

The distribution is that of ``problems.py``, the paper's section 5.1. Each band of rows draws its own
outliers from the seed and its place, so that the true support can be drawn again: no second array of the size of M is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from irpca import LowRank
from irpca.datasets.synthetic import _draw_features
from irpca.lowrank import relative_distance, singular_triplets

Tensor = torch.Tensor
BAND = 1 << 27  # entries that are made, or judged, at a time: half a GB in float32
NOISE = 1 << 20  # added to the seeds of outliers: those of noise


@dataclass(frozen=True)
class Recipe:
    """All that a problem depends on, but for the kind of device: the same recipe there is the same numbers."""

    n: int
    d: int
    rank: int
    corruption: float
    dtype: str = "float32"
    features: str = "literal"
    seed: int = 0

    @property
    def bytes(self) -> int:
        return self.n * self.n * np.dtype(self.dtype).itemsize

    @cached_property
    def known(self) -> tuple[np.ndarray, np.ndarray, LowRank]:
        """F1 and F2 in the precision of M, and L."""
        rng = np.random.default_rng([self.seed, 1])
        F1, F2 = (_draw_features(rng, self.n, self.d, 1.0, self.features).astype(self.dtype) for _ in range(2))
        u, s, v = singular_triplets(rng.uniform(size=(self.d, self.d)), self.rank)
        return F1, F2, LowRank(F1 @ u, np.diag(s), F2 @ v)

    @property
    def size_of_L(self) -> float:
        """The root mean square of its entries."""
        return _norm(self.known[2]) / self.n

    @property
    def smallest(self) -> float:
        """The smallest outlier; the largest is twice that."""
        return 5 * self.rank / self.n

    def bands(self) -> Iterator[tuple[int, slice]]:
        step = max(1, BAND // self.n)
        for k, first in enumerate(range(0, self.n, step)):
            yield k, slice(first, min(first + step, self.n))

    def draws(self, k: int, rows: slice, device: str) -> Tensor:
        """One number for each entry of a band: it is corrupted if that is less than the corrupted share."""
        draw = torch.Generator(device).manual_seed(self.seed + k)
        return torch.rand(rows.stop - rows.start, self.n, generator=draw, device=device)

    def fill(self, M: Tensor, rows: slice, k: int, device: str) -> None:
        """Write a band of L + S into M, which may be elsewhere."""
        left, right = (torch.from_numpy(np.ascontiguousarray(B)).to(device, M.dtype) for B in self.known[2].thin())
        drawn = self.draws(k, rows, device)
        corrupted = drawn < self.corruption
        # What is left of a draw says how large, and in which direction.
        share = drawn.div_(self.corruption / 2).sub_(1)
        S = (share.abs() + 1).mul_(self.smallest).copysign_(share).mul_(corrupted)
        M.copy_(torch.addmm(S.to(M.dtype), left[rows], right.T))


@dataclass
class Task:
    """M, the device that it was made on, and what only judges know."""

    recipe: Recipe
    M: Tensor
    device: str
    noise: float = 0.0

    @property
    def F1(self) -> np.ndarray:
        return self.recipe.known[0]

    @property
    def F2(self) -> np.ndarray:
        return self.recipe.known[1]

    @property
    def L(self) -> LowRank:
        return self.recipe.known[2]

    def add_noise(self, noise: float) -> None:
        """In place."""
        assert not self.noise
        self.noise = noise
        for k, rows in self.recipe.bands():
            draw = torch.Generator(self.M.device).manual_seed(self.recipe.seed + NOISE + k)
            N = torch.randn(self.M[rows].shape, generator=draw, device=self.M.device, dtype=self.M.dtype)
            self.M[rows].add_(N, alpha=noise)

    def judged(self, result: Any) -> dict[str, Any]:
        """Errors of a result: that of L, and how many entries are wrongly in S, or wrongly not."""
        found = {
            "error": relative_distance(self.L, result.L),
            "rank": result.rank,
            "status": result.status.name,
            "reads": result.reads,
        }
        false, missed = (None, None) if result.S is None else self.wrong(result.S)
        return found | {"false": false, "missed": missed}

    def wrong(self, S: Any) -> tuple[int, int]:
        """How many entries are in S and should not be, and how many should be and are not."""
        device = self.device  # another one would draw other numbers
        indptr, indices = _as_tensor(S.indptr, "cpu"), _as_tensor(S.indices, device)
        false = missed = 0
        for k, rows in self.recipe.bands():
            true = (self.recipe.draws(k, rows, device) < self.recipe.corruption).reshape(-1)
            starts = indptr[rows.start : rows.stop + 1]
            lines = torch.repeat_interleave(starts.diff().to(device))
            columns = indices[int(starts[0]) : int(starts[-1])]
            at = lines * self.recipe.n + columns
            right = int(true[at].sum())
            false += len(at) - right
            missed += int(true.sum()) - right
        return false, missed


def make(recipe: Recipe, device: str, on_host: bool = False) -> Task:
    """The problem, made on that device; M stays there, or goes to the memory of the host."""
    M = torch.empty(recipe.n, recipe.n, dtype=getattr(torch, recipe.dtype), device="cpu" if on_host else device)
    for k, rows in recipe.bands():
        recipe.fill(M[rows], rows, k, device)
    return Task(recipe, M, device)


def _as_tensor(values: Any, device: str) -> Tensor:
    return (values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))).to(device)


def _norm(L: LowRank) -> float:
    R1, R2 = (np.linalg.qr(B, mode="r") for B in L.thin())
    return float(np.linalg.norm(R1 @ R2.T))
