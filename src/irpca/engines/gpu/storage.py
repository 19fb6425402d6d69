"""Where M is: a dense tensor on the device or in host memory and streamed from there, or its observed entries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...arrays import matrix_of
from ...cached import cached_property
from ...lowrank import Array
from ..base import spread_places
from ..memory import machine_memory
from .slabs import DenseSlab, Known, ListedSlab, Slab
from .sparse import DeviceSparse, device_tensor, host_array

if TYPE_CHECKING:
    from ...model.maps import ColumnMaps

STREAMED_BYTES = 1 << 29  # of a slab: long enough for the bus, and two of them fit anywhere
SCANNED = 1 << 26  # entries that are looked through at a time
LOOKED_AT = 1 << 10  # entries that say how large M is
ROOM = 0.6  # of the free memory of a device, that M may take: S and what is in between need the rest


class DenseStorage:
    """A dense tensor in any order, never copied: on the device, or in host memory, or in a file mapped to it.

    What is streamed is cut along memory, rows or columns. There are two slabs on the device at a time: one is copied
    while the other is computed with. What is not in page-locked memory goes through two buffers that are.

    Attributes
    ----------
    shape, dtype, entries : of M: how many entries are stored, observed or not
    turned : whether stored rows are columns of M
    streamed : whether slabs are brought to the device in every read
    known : what was found out about M
    maps : of the columns, as tensors on the device, if M is mapped in every read: then entries are latent values
    """

    def __init__(
        self,
        M: Tensor,
        device: torch.device,
        streamed: bool = False,
        known: Known | None = None,
        maps: ColumnMaps | None = None,
    ) -> None:
        self.M, self.device, self.streamed, self.maps = M, device, streamed, maps
        self.shape, self.entries = (M.shape[0], M.shape[1]), M.numel()
        self.dtype = M.dtype if maps is None else computed_in(M.dtype)
        self.turned = streamed and M.stride(0) < M.stride(1)
        self.stored = M.T if self.turned else M
        self.known = known or Known(lambda: self.at(*spread_places(self.shape, LOOKED_AT)))

    def part(self, rows: slice) -> DenseStorage:
        """Some rows of M."""
        return DenseStorage(self.M[rows], self.device, self.streamed, self.known, self.maps)

    def mapped(self, maps: ColumnMaps) -> DenseStorage:
        """The latent values of M; where there is no room for them, they are made in every read."""
        dtype = computed_in(self.dtype)
        if self.streamed or self.entries * dtype.itemsize > ROOM * free_memory(self.device):
            found = DenseStorage(self.M, self.device, self.streamed, maps=maps)
        else:
            found = DenseStorage(maps.table(self.M, dtype), self.device)
        found.known.holes = self.known.holes
        return found

    def slabs(self, most: int) -> Iterator[Slab]:
        """All stored rows, in slabs of ``most`` entries, and at least a row."""
        n1, n2 = self.stored.shape
        if self.streamed or self.maps is not None:
            most = min(most, STREAMED_BYTES // self.M.element_size())
        step = max(1, most // n2)
        spans = [slice(first, min(first + step, n1)) for first in range(0, n1, step)]
        parts = (self.stored[some] for some in spans) if self.M.device == self.device else self._moved(spans)
        for some, part in zip(spans, parts, strict=True):
            yield DenseSlab(self._latent(part, some), some, self.known)

    def _latent(self, part: Tensor, some: slice) -> Tensor:
        """The latent values of some stored rows."""
        if self.maps is None:
            return part
        if self.turned:
            return self.maps.cut(slice(None), some).table(part.T, self.dtype).T
        return self.maps.table(part, self.dtype)

    def _moved(self, spans: list[slice]) -> Iterator[Tensor]:
        copying, computing = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        height, n2 = spans[0].stop - spans[0].start, self.stored.shape[1]
        there = [torch.empty((height, n2), dtype=self.M.dtype, device=self.device) for _ in range(2)]
        locked = None
        if not self.M.is_pinned():
            locked = [torch.empty((height, n2), dtype=self.M.dtype, pin_memory=True) for _ in range(2)]
        copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
        copying.wait_stream(computing)

        def send(k: int) -> None:
            some, turn = spans[k], k % 2
            n = some.stop - some.start
            source = self.stored[some]
            if locked is not None:
                if k >= 2:
                    copied[turn].synchronize()  # the buffer is still being sent
                locked[turn][:n].copy_(source)
                source = locked[turn][:n]
            with torch.cuda.stream(copying):
                if k >= 2:
                    copying.wait_event(used[turn])
                there[turn][:n].copy_(source, non_blocking=True)
                copied[turn].record(copying)

        send(0)
        for k, some in enumerate(spans):
            computing.wait_event(copied[k % 2])
            yield there[k % 2][: some.stop - some.start]
            used[k % 2].record(computing)
            if k + 1 < len(spans):
                send(k + 1)
        computing.synchronize()

    def at(self, rows: Array, cols: Array) -> Array:
        """M at scattered entries, NaN where it is not observed; rows and columns may be of any shape."""
        values = self.M[_index(rows, self.M.device), _index(cols, self.M.device)]
        if self.maps is not None:
            values = self.maps.latent(values.to(self.device), _index(cols, self.device)).to(self.dtype)
        return host_array(values)

    def counts(self) -> tuple[Array, Array]:
        """How many entries of each row and column of M are observed."""
        n1, n2 = self.stored.shape
        rows, cols = np.empty(n1, np.int64), np.zeros(n2, np.int64)
        for slab in self.slabs(SCANNED):
            seen = ~slab.values(torch.float32).isnan()
            rows[slab.rows] = host_array(seen.sum(1))
            cols += host_array(seen.sum(0))
        return (cols, rows) if self.turned else (rows, cols)


class ListedStorage(ListedSlab):
    """The same of the observed entries, listed row by row: they are one slab, on the device."""

    turned = streamed = False

    def __init__(self, M: DeviceSparse) -> None:
        super().__init__(M)
        self.shape, self.dtype, self.entries = M.shape, M.data.dtype, M.nnz
        self.known = Known(lambda: self.at(*spread_places(self.shape, LOOKED_AT)), holes=True)

    @cached_property
    def keys(self) -> Tensor:
        """Places of the entries, as sorted numbers."""
        return self.M.rows * self.shape[1] + self.M.indices

    def part(self, rows: slice) -> ListedStorage:
        return ListedStorage(self.M[rows])

    def mapped(self, maps: ColumnMaps) -> ListedStorage:
        return ListedStorage(self.M.with_data(maps.cells(self.M.data, self.M.indices, computed_in(self.dtype))))

    def slabs(self, most: int) -> Iterator[Slab]:
        yield self

    def at(self, rows: Array, cols: Array) -> Array:
        wanted = _index(np.asarray(rows, np.int64) * self.shape[1] + cols, self.M.device)
        where = torch.searchsorted(self.keys, wanted).clamp(max=self.entries - 1)
        return host_array(torch.where(self.keys[where] == wanted, self.M.data[where], torch.nan))

    def counts(self) -> tuple[Array, Array]:
        return self.M.flagged(0), self.M.flagged(1)


Storage: TypeAlias = DenseStorage | ListedStorage


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The precision in which an M of this type is computed with, and its latent values are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def free_memory(device: torch.device) -> float:
    """Bytes that tensors on a device may still take."""
    if device.type != "cuda":
        return machine_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def count_infinite(storage: Storage) -> int:
    return sum(int(slab.values(torch.float64).isinf().sum()) for slab in storage.slabs(SCANNED))


def _index(positions: Array, device: torch.device) -> Tensor:
    return device_tensor(np.asarray(positions, np.int64), device)


def shared(M: Array) -> Tensor:
    """A NumPy array, or memmap, as a tensor on the same memory; a copy where torch cannot share it."""
    if any(stride < 0 for stride in M.strides) or M.dtype.byteorder == ">":
        M = M.astype(M.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():  # torch has no read-only tensors, and warns; nothing here writes to M
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(M))


def device_for(M: Any, device: Any) -> torch.device:
    if device is None:
        device = M.device if isinstance(M, Tensor) and M.device.type != "cpu" else "cuda"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "engine='gpu' needs a GPU, and torch finds none: install a torch with CUDA and its driver, or leave engine "
            "out, and M is solved in host memory"
        )
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def stored(M: Any, device: torch.device, memory: int | None) -> Storage:
    """M on a device: a tensor, a NumPy array, or a CSR array or tensor of the observed entries.

    Of a dense M in host memory no more than ``memory`` bytes are brought there, None: ROOM of what is free; a larger
    one is streamed.
    """
    if not hasattr(M, "tocsr"):
        M = matrix_of(M if isinstance(M, Tensor) else shared(M))
    if hasattr(M, "tocsr") or M.layout == torch.sparse_csr:
        entries = DeviceSparse.of(M, device)
        if bad := int((~entries.data.isfinite()).sum()):
            raise ValueError(f"{bad} of the observed entries of M are NaN or infinite; leave them out or replace them")
        return ListedStorage(replace(entries, indices=entries.indices.long()))
    if M.device.type != "cpu":
        return DenseStorage(M.to(device), device)
    size = M.numel() * M.element_size()
    if memory is None:
        memory = int(ROOM * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else size
    if size <= memory:
        with suppress(torch.OutOfMemoryError):
            return DenseStorage(M.to(device), device)
        torch.cuda.empty_cache()
    return DenseStorage(M, device, streamed=True)
