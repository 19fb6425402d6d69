"""The engine for an M on a GPU: Triton kernels for dense M, torch for the rest."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...lowrank import Array, LowRank
from ..arithmetic import Moments, Posteriors, counts_of
from ..base import (
    Look,
    Prior,
    Sided,
    Sink,
    Standardised,
    Sums,
    Trim,
    all_counted,
    bad_entries,
    drawn,
    drawn_anywhere,
    not_finite,
    refuse_beyond_memory,
    refuse_large_block,
    spread_places,
)
from ..body import PiecedEngine, refuse_nothing
from ..questions import Answer, Core, Listing, Products, Question, Regression, Tally
from . import slabs
from .slabs import Slab
from .sparse import DeviceSparse, device_tensor, host_array, numpy_type
from .storage import ListedStorage, Storage, computed_in, count_infinite, device_for, free_memory, shared, stored

if TYPE_CHECKING:
    from ...model.maps import ColumnMaps

AT_ONCE = 1 << 25  # entries of a slab in torch, where a dozen arrays of its size are made: 1 to 4 GB
SMALL = 1 << 24  # entries up to which S comes back in host memory, as solvers look at it there

Asked = TypeVar("Asked", bound=Sided)


class GPUEngine(PiecedEngine):
    """M as a tensor on a GPU, or moved to one; nothing as long as M leaves it.

    Parameters
    ----------
    M : tensor of shape (n1, n2), of float64, float32, bfloat16 or float16, in any order, NaN being not observed
        Or a sparse CSR tensor, whose stored entries are the observed ones; or a NumPy array or memmap, which is moved
        to the device or, if it does not fit, streamed from host memory in every read.
    device : torch.device, str or None
        None: that of M, if it is a tensor on a GPU; else the current GPU.
    holes : bool
        Whether some entries of a dense M are known to be NaN. If not, it is taken as complete until one is met.
    kernels : {"auto", "triton", "torch"}
        ``"auto"``: Triton, if M is dense, the device is a GPU and Triton is installed.
    memory : int or None
        Bytes of device memory that a dense M may take; a larger one is streamed. None: three fifths of what is free.

    Attributes
    ----------
    in_kind : whether M was given as a tensor, so that S stays on the device
    asynchronous : the device may still be writing S when it is returned

    Notes
    -----
    Half precisions are computed in float32. Weights and regressions are in float64, as in every engine.

    Examples
    --------
    >>> engine = GPUEngine(torch.tensor([[1.0, torch.nan], [0.0, 2.0]]), device="cpu", holes=True)
    >>> engine.n_observed, engine.ran
    (3, 'torch on cpu')
    """

    name = "gpu"
    asynchronous = True

    def __init__(
        self,
        M: Any,
        device: Any = None,
        holes: bool = False,
        kernels: str = "auto",
        memory: int | None = None,
    ) -> None:
        self.in_kind = isinstance(M, Tensor)
        self.device = device_for(M, device)
        self.storage = stored(M, self.device, memory)
        self.wide = computed_in(self.storage.dtype)
        self.by = slabs if isinstance(self.storage, ListedStorage) else _kernels(kernels, self.device)
        self.holes |= holes
        self.reads = 0.0
        self.capabilities = _capabilities(self.storage)
        if not self.storage.entries:
            raise ValueError("every cell of M is missing")
        self._used: set[str] = set()
        self._counts: tuple[Array, Array] | None = None
        self._known: dict[tuple[tuple[int, ...], bytes, bytes], Array] = {}  # what a survey has seen
        self._surveying = False

    @property
    def ran(self) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        used = " and ".join(sorted(self._used)) or self.by.NAME
        return f"{used} on {where}{', streamed' if self.storage.streamed else ''}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.storage.shape

    @property
    def dtype(self) -> np.dtype:
        return numpy_type(self.wide)

    @property
    def holes(self) -> bool:
        """Whether some entries are known not to be observed."""
        return self.storage.known.holes

    @holes.setter
    def holes(self, holes: bool) -> None:
        self.storage.known.holes = holes

    @property
    def n_observed(self) -> int:
        return int(self.counts[0].sum()) if self.holes else math.prod(self.shape)

    @property
    def counts(self) -> tuple[Array, Array]:
        if not self.holes:
            return all_counted(self.shape)
        if self._counts is None:
            self._counts = self.storage.counts()
        if not self._counts[0].any():
            raise ValueError("every cell of M is missing")
        return self._counts

    def survey(self, looks: Sequence[Look]) -> Any:
        """Look now: whoever looks later waits for all that the device was told to do before."""
        self._known.clear()
        self._surveying = True
        try:
            for look in looks:
                if look.lines is not None:
                    self.block(*look.lines)
                elif look.cells is not None:
                    self.entries(*look.cells)
                else:
                    self.draw(look.size, np.random.default_rng(look.seed))
        finally:
            self._surveying = False

    def mapped(self, maps: ColumnMaps) -> GPUEngine:
        new = copy(self)
        new._known, new._used = {}, set(self._used)
        with self._careful():
            new.storage = self.storage.mapped(maps.converted(lambda A: device_tensor(A, self.device)))
        new.capabilities = _capabilities(new.storage)
        return new

    def glance(self, size: int) -> Array:
        return self.storage.at(*spread_places(self.shape, size))

    # Questions, of the stored rows and columns, slab by slab

    def ask(self, question: Question) -> Answer:
        self._used.add(self.by.NAME)
        with self._careful():
            return self._answer(question.T).T if self.storage.turned else self._answer(question)

    def _answer(self, question: Question) -> Answer:
        if isinstance(question, Regression):
            return self._moments(self._on_device(question, torch.float64))
        assert isinstance(question, (Core, Products))
        question = self._on_device(question, self.wide)
        # A core is found by way of the product with the basis of the columns.
        X, Y = (question.Q2, None) if isinstance(question, Core) else (question.X, question.Y)
        parts, TY, along = list[Any](), None, list[Tensor]()
        for slab in self._slabs(self.storage):
            of = question.of.cut(slab.rows, slice(None))
            product, turned, rode = self.by.trim(slab, of, X, None if Y is None else Y[slab.rows])
            parts.append(product)
            TY = turned if TY is None else TY.add_(turned)
            along.append(rode)
        tally = self._tallied(along, self.storage)
        TX: Any = None if X is None else _joined(parts)
        if isinstance(question, Core):
            return Answer((host_array(question.Q1.T.double() @ TX.double()),), (), (), tally)
        of_rows, of_cols = (() if product is None else (host_array(product),) for product in (TX, TY))
        return Answer((), of_rows, of_cols, tally)

    def _slabs(self, storage: Storage) -> Iterator[Slab]:
        """All of it; a kernel takes as much as there is."""
        return storage.slabs(AT_ONCE if self.by is slabs else storage.entries)

    def _tallied(self, along: list[Tensor], storage: Storage) -> Tally:
        tally = Tally()
        tally.add(storage.entries, counts_of(slabs.summed_along(torch.stack(along)), storage.entries))
        if not tally.finite:
            raise not_finite(count_infinite(self.storage))
        self.holes |= tally.missing > 0
        return tally

    def _moments(self, asked: Regression) -> Answer:
        """H, g and κ of all rows or columns, which stay on the device, and the sums of all lines."""
        other, spread = asked.other
        p, q = torch.tril_indices(other.shape[1], other.shape[1], device=self.device)
        pairs = torch.cat([other[:, p] * other[:, q], spread[:, None]], 1)  # H and κ in one product
        found: list[tuple[Tensor, ...]] = []
        for slab in self.storage.slabs(AT_ONCE):
            T, W, sums = self.by.weigh(slab, asked.cut(slab.rows, slice(None)))
            if asked.axis == 0:
                found.append((slab.times(W, pairs), slab.times(T, other), *sums))
            else:
                found.append((slab.t_times(W, pairs[slab.rows]), slab.t_times(T, other[slab.rows]), *sums))
        H, g, of_rows, of_cols, of_all = zip(*found, strict=True)
        moments, target = (_joined(part) if asked.axis == 0 else sum(part) for part in (H, g))
        sums = Sums(*(host_array(part) for part in (_joined(of_rows), sum(of_cols), sum(of_all))))
        if not sums.finite:
            raise not_finite(count_infinite(self.storage))
        self.holes |= sums.n_observed < self.storage.entries
        lines = moments[:, :-1], target, moments[:, -1]
        rows, cols = (lines, ()) if asked.axis == 0 else ((), lines)
        return Answer((sums.totals,), (*rows, sums.rows), (*cols, sums.cols), Tally())

    def ask_lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        answer = self.ask(question)
        *found, _ = answer.rows if question.axis == 0 else answer.cols
        with self._careful():
            band = Posteriors(Moments(*found), self._there(mean, torch.float64), prior)

        def ask(name: str, *args: Any) -> list[Any]:
            with self._careful():
                return [getattr(band, name)(*args)]

        return ask, Sums(answer.rows[-1], answer.cols[-1], answer.whole[0])

    # S

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[Any, Trim]:
        self.reads += 1
        listing = self.listing(L, limit)
        S, tally = self.outliers(self.storage, listing.T if self.storage.turned else listing)
        refuse_nothing(tally)
        keep = self.in_kind and self.storage.entries > SMALL
        return S if keep else S.to_scipy(), tally.trim

    def outliers(self, storage: Storage, asked: Listing) -> tuple[DeviceSparse, Tally]:
        """S of a part of M, or of all of it, from a question about its stored rows and columns."""
        self._used.add(self.by.NAME)
        with self._careful():
            asked = self._on_device(asked, self.wide)
            parts, along = list[DeviceSparse](), list[Tensor]()
            for slab in self._slabs(storage):
                found, rode = self.by.find(slab, asked.cut(slab.rows, slice(None)))
                parts.append(found)
                along.append(rode)
            S, tally = DeviceSparse.stacked(parts), self._tallied(along, storage)
            return S.T if storage.turned else S, tally

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        counts, tally = self.write_rows(lambda some: _Part(self, self.storage.part(some)), L, limit, sink, 1)
        refuse_nothing(tally)
        return counts, tally.trim

    # All entries

    def whole(self) -> Any:
        if not self.capabilities:
            return super().whole()
        size, listed = math.prod(self.shape) * self.wide.itemsize, isinstance(self.storage, ListedStorage)
        copied = listed or self.storage.dtype != self.wide
        refuse_beyond_memory(size * (1 + copied), free_memory(self.device), str(self.device))
        self.reads += 1
        self._used.add("torch")
        with self._careful():
            if infinite := count_infinite(self.storage):
                raise not_finite(infinite)
            M: Any = self.storage.M
            M = (M.dense() if listed else M).to(self.wide)
            self.holes = self.holes or any(bool(M[slab.rows].isnan().any()) for slab in self.storage.slabs(AT_ONCE))
            return M

    # A few entries

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        return self._looked(np.asarray(rows)[:, None], np.asarray(cols)[None, :])

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._looked(np.asarray(rows), np.asarray(cols))

    def _looked(self, rows: Array, cols: Array) -> Array:
        """What a survey has seen, or what is there."""
        if not (self._known or self._surveying):
            return self._seen(self.storage.at(rows, cols))
        key = rows.shape, rows.astype(np.int64).tobytes(), cols.astype(np.int64).tobytes()
        if key in self._known:
            return self._known[key].copy()
        found = self._seen(self.storage.at(rows, cols))
        if self._surveying:
            self._known[key] = found
        return found

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        if not isinstance(self.storage, ListedStorage):
            return drawn_anywhere(self, size, rng)
        M, at = self.storage.M, device_tensor(drawn(self.n_observed, size, rng), self.device)
        rows, cols, values = (host_array(part[at]) for part in (M.rows, M.indices, M.data.to(self.wide)))
        return rows, cols, self._seen(values)

    def _seen(self, values: Array) -> Array:
        missing, infinite = bad_entries(values)
        if infinite:
            raise not_finite(infinite)
        self.holes |= missing > 0
        self.reads += (values.size - missing) / self.n_observed
        return values

    # To the device and back

    def _on_device(self, asked: Asked, dtype: torch.dtype) -> Asked:
        """A question with its arrays on the device."""
        return asked.converted(lambda B: self._there(B, dtype))

    def _there(self, B: Array, dtype: torch.dtype) -> Tensor:
        """On the device; rounded there, so that no copy is made here."""
        return shared(np.ascontiguousarray(B)).to(self.device).to(dtype)

    @contextmanager
    def _careful(self) -> Iterator[None]:
        """No gradients, products with all digits, the device of M, and an error that helps when memory ends."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        there = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        try:
            with torch.no_grad(), there:
                yield
        except torch.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)  # they hold what was made so far
            raise _out_of_memory(self.device) from None
        finally:
            torch.set_float32_matmul_precision(before)


class _Part:
    """Some rows of M as a piece whose outliers are written."""

    def __init__(self, engine: GPUEngine, storage: Storage) -> None:
        self.engine, self.entries, self.storage, self.turned = engine, storage.at, storage, storage.turned

    def listed(self, asked: Listing, threads: int) -> tuple[Any, Tally]:
        S, tally = self.engine.outliers(self.storage, asked)
        return S.to_scipy(), tally


def _capabilities(storage: Storage) -> frozenset[str]:
    """All of M can be answered where it is as it is asked for."""
    made_in_reads = storage.streamed or (not isinstance(storage, ListedStorage) and storage.maps is not None)
    return frozenset() if made_in_reads else frozenset({"whole"})


def _kernels(kernels: str, device: torch.device) -> Any:
    """The module that answers questions about dense slabs: by Triton's kernels, or in torch."""
    if kernels not in ("auto", "triton", "torch"):
        raise ValueError(f"kernels={kernels!r} is unknown; choose 'auto', 'triton' or 'torch'")
    if kernels == "torch" or (kernels == "auto" and device.type != "cuda"):
        return slabs
    try:
        from . import triton_kernels
    except ImportError:
        if kernels == "triton":
            raise ValueError("kernels='triton' needs Triton, which is not installed; take kernels='torch'") from None
        return slabs
    return triton_kernels


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _out_of_memory(device: torch.device) -> MemoryError:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return MemoryError(
        f"the memory of {device} is full. Pass M as a NumPy array or as a tensor on the CPU, with engine='gpu': what "
        "does not fit is then streamed from host memory; or free what else is on the device, or ask for no S "
        "(sparse=False)"
    )
