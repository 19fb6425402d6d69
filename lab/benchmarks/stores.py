"""A zarr store of any size whose answer is known, made and kept: no more than a few chunks are in memory.

The distribution is that of the paper's section 5.1, as in ``problems.py``: F1, F2 and W are drawn from the
seed, and each chunk draws its own outliers from the seed and its place, so that the support of a chunk can be drawn
again without reading the store. Without noise the mantissas of float32 numbers are all but random: no codec makes much
less of them. Of those tried on 2 GB and two cores, Blosc with lz4 and bit shuffling was read fastest and is as small as
any: 1.08 times smaller than M, at 0.7 to 0.8 GB/s, against 0.4 to 0.5 GB/s of zarr's default (zstd).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from irpca import LowRank
from irpca.datasets.synthetic import _draw_features
from irpca.lowrank import singular_triplets
from lab.machine import count_cores

Place = tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """All that a store depends on: the same recipe is the same numbers."""

    n1: int
    n2: int
    d1: int
    d2: int
    rank: int
    corruption: float
    chunk: int
    seed: int = 0

    @property
    def known(self) -> tuple[np.ndarray, np.ndarray, LowRank]:
        """F1, F2 in float32, and L."""
        return _known(self)[0]

    @property
    def nbytes(self) -> int:
        """Of M as an array."""
        return 4 * self.n1 * self.n2

    def places(self) -> list[Place]:
        return [(i, j) for i in range(-(-self.n1 // self.chunk)) for j in range(-(-self.n2 // self.chunk))]

    def slices(self, place: Place) -> tuple[slice, slice]:
        (i, j), c = place, self.chunk
        return slice(i * c, min((i + 1) * c, self.n1)), slice(j * c, min((j + 1) * c, self.n2))

    def support(self, place: Place) -> np.ndarray:
        """Where a chunk is corrupted: positions in the flat chunk, sorted."""
        return self._outliers(place)[0]

    def chunk_of(self, place: Place) -> np.ndarray:
        """One chunk of M."""
        rows, cols = self.slices(place)
        left, right = _known(self)[1]
        M = left[rows] @ right[cols].T
        where, values = self._outliers(place)
        M.reshape(-1)[where] += values
        return M

    def _outliers(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        rows, cols = self.slices(place)
        draw = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, 2, *place])))
        size = (rows.stop - rows.start) * (cols.stop - cols.start)
        where = np.flatnonzero(draw.random(size, dtype=np.float32) < self.corruption)
        smallest = 5 * self.rank / np.sqrt(self.n1 * self.n2)
        values = draw.uniform(smallest, 2 * smallest, len(where)) * draw.choice([-1, 1], len(where))
        return where, values.astype(np.float32)


@cache  # not part of a recipe: that travels to other processes
def _known(recipe: Recipe) -> tuple[tuple[np.ndarray, np.ndarray, LowRank], list[np.ndarray]]:
    """What ``Recipe.known`` says, and thin factors of L in float32."""
    rng = np.random.default_rng([recipe.seed, 1])
    F1, F2 = (
        _draw_features(rng, n, d, 1.0, "literal").astype(np.float32)
        for n, d in ((recipe.n1, recipe.d1), (recipe.n2, recipe.d2))
    )
    u, s, v = singular_triplets(rng.uniform(size=(recipe.d1, recipe.d2)), recipe.rank)
    L = LowRank(F1 @ u, np.diag(s), F2 @ v)
    return (F1, F2, L), [factor.astype(np.float32) for factor in L.thin()]


def square(gigabytes: float, chunk: int, d: int, rank: int, corruption: float) -> Recipe:
    """A square M of about that size, 10⁹ bytes each; whole hundreds of rows if there are so many."""
    n = int((gigabytes * 1e9 / 4) ** 0.5 + 0.5)
    n = round(n, -2) if n >= 1000 else n
    return Recipe(n, n, d, d, rank, corruption, chunk)


def make(path: Path, recipe: Recipe) -> Any:
    """The zarr array at that path, made if it is not there, with F1 and F2 as .npy files beside it."""
    import zarr

    if path.exists():
        M = zarr.open_array(path, mode="r")
        if M.attrs.get("recipe") != asdict(recipe):
            raise ValueError(f"{path} holds another problem, or was not finished: remove it, or give another --store")
        return M
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, F in zip(("F1", "F2"), recipe.known, strict=False):
        np.save(path.with_name(f"{path.stem}_{name}.npy"), F)
    M = zarr.create_array(
        path,
        shape=(recipe.n1, recipe.n2),
        chunks=(min(recipe.chunk, recipe.n1), min(recipe.chunk, recipe.n2)),
        dtype="float32",
        compressors=[zarr.codecs.BloscCodec(typesize=4, cname="lz4", clevel=5, shuffle="bitshuffle")],
    )

    def piece(place: Place) -> None:
        M[recipe.slices(place)] = recipe.chunk_of(place)

    recipe.known  # noqa: B018  # drawn before there are threads
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(count_cores()) as pool:
        for _ in pool.map(piece, recipe.places()):
            pass
    M.attrs["recipe"] = asdict(recipe)  # last: the store is whole
    return zarr.open_array(path, mode="r")


def stored_bytes(path: Path) -> int:
    return sum(os.path.getsize(file) for file in _files(path))


def forget(path: Path) -> None:
    """Ask the system to drop the store from its page cache, so that what follows reads from the disk. Needs no root."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in _files(path):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)  # pages that are not on the disk yet cannot be dropped
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file())
