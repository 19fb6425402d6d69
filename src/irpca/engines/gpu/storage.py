"""Where M is: dense on the device, dense in host memory and streamed from there, or a list of its observed entries."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...lowrank import Array
from .slabs import Dense, Listed, Slab

STREAMED_BYTES = 1 << 29  # of a slab: long enough for the bus, and two of them fit anywhere
SCANNED = 1 << 26  # entries that are looked through at a time
STORED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROOM = 0.6  # of the free memory of a device, that M may take: S and what is in between need the rest


class Storage(ABC):
    """M as slabs of rows on a device.

    Attributes
    ----------
    shape : (n1, n2), of the stored matrix
    turned : whether stored rows are columns of M
    device : where slabs are
    dtype : of the stored numbers
    """

    shape: tuple[int, int]
    device: torch.device
    dtype: torch.dtype
    turned = False

    @property
    def entries(self) -> int:
        """How many are stored, observed or not."""
        return self.shape[0] * self.shape[1]

    @abstractmethod
    def slabs(self, most: int) -> Iterator[Slab]:
        """All rows, in slabs of ``most`` entries, and at least a row."""

    @abstractmethod
    def part(self, rows: slice) -> Storage:
        """Some rows of M."""

    @abstractmethod
    def at(self, rows: Array, cols: Array) -> Array:
        """M at scattered entries, NaN where it is not observed."""

    @abstractmethod
    def block(self, rows: Array, cols: Array) -> Array:
        """``M[rows][:, cols]``."""

    def counts(self) -> tuple[Array, Array]:
        """How many entries of each stored row and column are observed."""
        n1, n2 = self.shape
        rows, cols = np.empty(n1, np.int64), torch.zeros(n2, dtype=torch.int64, device=self.device)
        for slab in self.slabs(SCANNED):
            seen = ~slab.values(torch.float32).isnan()
            rows[slab.rows] = seen.sum(1).cpu().numpy()
            cols += seen.sum(0)
        return rows, cols.cpu().numpy()

    def infinite(self) -> int:
        """How many entries are."""
        return sum(int(slab.values(torch.float64).isinf().sum()) for slab in self.slabs(SCANNED))


class Resident(Storage):
    """A dense tensor on the device, in any order; never copied."""

    def __init__(self, M: Tensor) -> None:
        self.M, self.device, self.dtype = M, M.device, M.dtype
        self.shape = M.shape[0], M.shape[1]

    def part(self, rows: slice) -> Resident:
        return Resident(self.M[rows])

    def slabs(self, most: int) -> Iterator[Slab]:
        n1, n2 = self.shape
        step = max(1, most // n2)
        for first in range(0, n1, step):
            some = slice(first, min(first + step, n1))
            yield Dense(self.M[some], some)

    def at(self, rows: Array, cols: Array) -> Array:
        i, j = (_index(index, self.device) for index in (rows, cols))
        return _here(self.M[i, j])

    def block(self, rows: Array, cols: Array) -> Array:
        i, j = (_index(index, self.device) for index in (rows, cols))
        return _here(self.M[i[:, None], j[None, :]])


class Streamed(Storage):
    """A dense matrix in host memory, or in a file mapped to it; slabs are copied to the device while others are read.

    There are two slabs on the device at a time. What is not in page-locked memory goes through two buffers that are.
    """

    def __init__(self, M: Tensor, device: torch.device) -> None:
        self.turned = M.stride(0) < M.stride(1)
        self.M, self.device, self.dtype = M.T if self.turned else M, device, M.dtype
        self.shape = self.M.shape[0], self.M.shape[1]

    def part(self, rows: slice) -> Streamed:
        return Streamed((self.M.T if self.turned else self.M)[rows], self.device)

    def slabs(self, most: int) -> Iterator[Slab]:
        n1, n2 = self.shape
        step = max(1, min(most, STREAMED_BYTES // self.M.element_size()) // n2)
        spans = [slice(first, min(first + step, n1)) for first in range(0, n1, step)]
        if self.device.type == "cpu":
            for some in spans:
                yield Dense(self.M[some], some)
            return
        yield from self._streamed(spans)

    def _streamed(self, spans: list[slice]) -> Iterator[Slab]:
        copying, computing = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        height, n2 = spans[0].stop - spans[0].start, self.shape[1]
        there = [torch.empty((height, n2), dtype=self.M.dtype, device=self.device) for _ in range(2)]
        locked = None
        if not self.M.is_pinned():
            locked = [torch.empty((height, n2), dtype=self.M.dtype, pin_memory=True) for _ in range(2)]
        copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
        copying.wait_stream(computing)

        def send(k: int) -> None:
            some, turn = spans[k], k % 2
            n = some.stop - some.start
            source = self.M[some]
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
            slab = Dense(there[k % 2][: some.stop - some.start], some)
            yield slab
            used[k % 2].record(computing)
            if k + 1 < len(spans):
                send(k + 1)
        computing.synchronize()

    def at(self, rows: Array, cols: Array) -> Array:
        i, j = (_index(index) for index in ((cols, rows) if self.turned else (rows, cols)))
        return _here(self.M[i, j])

    def block(self, rows: Array, cols: Array) -> Array:
        i, j = (_index(index) for index in (rows, cols))
        M = self.M.T if self.turned else self.M
        return _here(M[i[:, None], j[None, :]])


class Entries(Storage):
    """The observed entries, row by row."""

    def __init__(self, ends: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.slab = Listed(ends, cols, values, shape[1])
        self.shape, self.device, self.dtype = shape, values.device, values.dtype
        self.keys = self.slab.at * shape[1] + cols  # sorted

    @property
    def entries(self) -> int:
        return self.slab.entries

    def part(self, rows: slice) -> Entries:
        ends = self.slab.ends[rows.start : rows.stop + 1]
        some = slice(int(ends[0]), int(ends[-1]))
        n1, n2 = len(ends) - 1, self.shape[1]
        return Entries(ends - ends[0], self.slab.cols[some], self.slab.listed[some], (n1, n2))

    def slabs(self, most: int) -> Iterator[Slab]:
        yield self.slab

    def at(self, rows: Array, cols: Array) -> Array:
        wanted = torch.as_tensor(np.asarray(rows, np.int64) * self.shape[1] + cols, device=self.device)
        where = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return _here(torch.where(self.keys[where] == wanted, self.slab.listed[where], torch.nan))

    def block(self, rows: Array, cols: Array) -> Array:
        i, j = np.broadcast_arrays(np.asarray(rows)[:, None], np.asarray(cols)[None, :])
        return self.at(i.ravel(), j.ravel()).reshape(i.shape)

    def counts(self) -> tuple[Array, Array]:
        return _here(self.slab.ends.diff()), _here(self.slab.col_ends.diff())

    def infinite(self) -> int:
        return int(self.slab.listed.isinf().sum())


def _index(positions: Array, device: torch.device | str = "cpu") -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(positions, dtype=np.int64), device=device)


def _here(values: Tensor) -> Array:
    """On the host, in a precision that NumPy has."""
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    array: Array = values.cpu().numpy()
    return array


def shared(M: Array) -> Tensor:
    """A NumPy array, or memmap, as a tensor on the same memory; a copy where torch cannot share it."""
    if any(stride < 0 for stride in M.strides) or M.dtype.byteorder == ">":
        M = M.astype(M.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():  # torch has no read-only tensors, and warns; nothing here writes to M
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(M))


def device_for(M: Any, device: Any) -> torch.device:
    if device is not None:
        found = torch.device(device)
    elif isinstance(M, torch.Tensor) and M.device.type != "cpu":
        found = M.device
    else:
        found = torch.device("cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "engine='gpu' needs a GPU, and torch finds none: install a torch with CUDA and its driver, or leave engine "
            "out, and M is solved in host memory"
        )
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def _refuse_other(M: Tensor) -> None:
    if M.ndim != 2:
        raise ValueError(f"M must have two dimensions, got a tensor of shape {tuple(M.shape)}")
    if M.dtype not in STORED:
        raise ValueError(
            f"M is a tensor of {str(M.dtype).removeprefix('torch.')}; pass float64, float32, bfloat16 or float16, such "
            "as M.double()"
        )


def stored(M: Any, device: torch.device, memory: int | None) -> Storage:
    """M on a device: a tensor, a NumPy array, or a CSR array of the observed entries.

    Of a dense M in host memory no more than ``memory`` bytes are brought there, None: ROOM of what is free; a larger
    one is streamed.
    """
    if isinstance(M, torch.Tensor):
        M = M.detach()
    elif hasattr(M, "tocsr"):
        ends, cols, values = (torch.from_numpy(np.ascontiguousarray(part)) for part in (M.indptr, M.indices, M.data))
        return _entries(ends, cols, values, M.shape, device)
    else:
        M = shared(M)
    if M.layout == torch.sparse_csr:
        return _entries(M.crow_indices(), M.col_indices(), M.values(), tuple(M.shape), device)
    if M.layout != torch.strided:
        raise ValueError(f"M is a tensor of layout {M.layout}; pass M.to_sparse_csr(), or a dense one with NaN")
    _refuse_other(M)
    if M.device.type != "cpu":
        return Resident(M.to(device))
    size = M.numel() * M.element_size()
    if memory is None:
        memory = int(ROOM * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else size
    if size > memory:
        return Streamed(M, device)
    with suppress(torch.OutOfMemoryError):
        return Resident(M.to(device))
    torch.cuda.empty_cache()
    return Streamed(M, device)


def _entries(ends: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int], device: torch.device) -> Entries:
    if bad := int((~values.isfinite()).sum()):
        raise ValueError(f"{bad} of the observed entries of M are NaN or infinite; leave them out or replace them")
    return Entries(ends.to(device).long(), cols.to(device).long(), values.to(device), shape)
