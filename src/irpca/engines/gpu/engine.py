"""The engine for an M on a GPU: Triton kernels for dense M, torch for the rest."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar

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
    in_precision,
    not_finite,
    refuse_beyond_memory,
    refuse_large_block,
    spread_places,
)
from ..body import PiecedEngine, refuse_nothing
from ..memory import machine_memory
from ..questions import Answer, Core, Listing, Masked, Products, Question, Regression, Tally, Trimmed
from . import slabs
from .slabs import Dense, Listed, Slab
from .sparse import DeviceSparse
from .storage import Entries, Storage, Streamed, device_for, shared, stored

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
        self.in_kind = isinstance(M, torch.Tensor)
        self.device = device_for(M, device)
        self.storage = stored(M, self.device, memory)
        self.wide = torch.float64 if self.storage.dtype == torch.float64 else torch.float32
        self.holes = holes
        self.reads = 0.0
        self.triton: Any = None if self._listed else _triton(kernels, self.device)
        self.capabilities = frozenset() if isinstance(self.storage, Streamed) else frozenset({"whole"})
        if not self.storage.entries:
            raise ValueError("every cell of M is missing")
        self._used: set[str] = set()
        self._counts: tuple[Array, Array] | None = None
        self._typical: float | None = None
        self._known: dict[tuple[str, bytes, bytes], Array] = {}  # what a survey has seen
        self._surveying = False

    @property
    def ran(self) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        streamed = ", streamed" if isinstance(self.storage, Streamed) else ""
        used = sorted(self._used) or ["torch" if self.triton is None else "triton"]
        return f"{' and '.join(used)} on {where}{streamed}"

    @property
    def shape(self) -> tuple[int, int]:
        n1, n2 = self.storage.shape
        return (n2, n1) if self.storage.turned else (n1, n2)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64 if self.wide == torch.float64 else np.float32)

    @property
    def n_observed(self) -> int:
        return int(self.counts[0].sum()) if self.holes or self._listed else math.prod(self.shape)

    @property
    def _listed(self) -> bool:
        return isinstance(self.storage, Entries)

    @property
    def counts(self) -> tuple[Array, Array]:
        if not (self.holes or self._listed):
            return all_counted(self.shape)
        if self._counts is None:
            rows, cols = self.storage.counts()
            self._counts = (cols, rows) if self.storage.turned else (rows, cols)
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

    def glance(self, size: int) -> Array:
        return self.storage.at(*spread_places(self.shape, size))

    # T

    def ask(self, question: Question) -> Answer:
        with self._careful():
            if isinstance(question, Core):
                return self._core(question)
            assert isinstance(question, Products)
            TX, TY, tally = self._walk(question.of, question.X, question.Y)
            of_rows, of_cols = (() if product is None else (_to_host(product),) for product in (TX, TY))
            return Answer((), of_rows, of_cols, tally)

    def _core(self, question: Core) -> Answer:
        """By way of the product with the basis of the stored columns."""
        if self.storage.turned:
            _, product, tally = self._walk(question.of, None, question.Q1)
            G = _to_host(product.T.double() @ self._there(question.Q2, torch.float64))
        else:
            product, _, tally = self._walk(question.of, question.Q2, None)
            G = _to_host(self._there(question.Q1, torch.float64).T @ product.double())
        return Answer((G,), (), (), tally)

    def _walk(self, asked: Trimmed | Masked, X: Any, Y: Any) -> tuple[Any, Any, Tally]:
        """What is asked for times the blocks of both sides, None for what is not asked; on the device."""
        if self.storage.turned:
            asked, X, Y = asked.T, Y, X
        asked = self._on_device(asked, self.wide)
        X, Y = (None if B is None else self._there(B, self.wide) for B in (X, Y))
        n2 = self.storage.shape[1]
        TX: list[Tensor] = []
        TY = None if Y is None else torch.zeros((n2, Y.shape[1]), dtype=self.wide, device=self.device)
        along: list[Tensor] = []
        for slab in self._slabs(self.storage):
            if self._by_kernel(slab):
                product, turned_product, rode = self._fused(slab, asked, X, Y)
            else:
                A, rode = slabs.trimmed(slab, asked)
                product = None if X is None else slab.times(A, X)
                turned_product = None if Y is None else slab.t_times(A, Y)
            along.append(rode)
            if product is not None:
                TX.append(product)
            if TY is not None and turned_product is not None:
                TY += turned_product
        tally = self._tallied(along, self.storage)
        product = None if X is None else _joined(TX)
        return (TY, product, tally) if self.storage.turned else (product, TY, tally)

    def _slabs(self, storage: Storage) -> Iterator[Slab]:
        """All of it; a kernel takes as much as there is."""
        return storage.slabs(AT_ONCE if self.triton is None else storage.entries)

    def _by_kernel(self, slab: Slab) -> TypeGuard[Dense]:
        """Whether a question about a slab is answered by a kernel; which it was is remembered."""
        by_kernel = self.triton is not None and isinstance(slab, Dense)
        self._used.add("triton" if by_kernel else "torch")
        return by_kernel

    def _fused(
        self, slab: Dense, asked: Trimmed | Masked, X: Tensor | None, Y: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """The same by a kernel: one read along rows and, if it is asked for, one along columns."""
        kernels, some, L = self.triton, slab.rows, (asked.U[slab.rows], asked.V)
        decides = asked.by if isinstance(asked, Masked) else asked
        zeta, ones, scale = decides.zeta, decides.ones, self._scale(decides.zeta)
        frozen = (decides.U[some], decides.V) if decides is not asked else None

        def ask(M: Tensor, B: Tensor | None, turned: bool = False) -> tuple[Tensor | None, Tensor]:
            """The product with a block, as many columns at a time as a kernel takes."""
            factors, others = (L[::-1], frozen and frozen[::-1]) if turned else (L, frozen)
            widest = kernels.WIDEST // (self.wide.itemsize // 4)
            blocks = [None] if B is None or not B.shape[1] else B.split(widest, 1)
            parts = [kernels.trimmed(M, factors, zeta, scale, block, ones, others, self.holes) for block in blocks]
            product = None if B is None else B.new_zeros((len(M), 0))
            if blocks[0] is not None:
                product = torch.cat([part.product for part in parts], 1) if len(parts) > 1 else parts[0].product
            return product, parts[0].rode

        product, turned, rode = None, None, None
        if X is not None or Y is None:
            product, rode = ask(slab.M, X)
        if Y is not None:
            turned, other = ask(slab.M.T, Y[some], turned=True)
            rode = other if rode is None else rode
        assert rode is not None
        if not self.holes and bool(rode[0].isnan()):
            self.holes = True  # or not finite: the kernel that looks for holes can tell
            again = self._fused(slab, asked, X, Y)
            self.holes = bool(again[2][1] > 0)
            return again
        return product, turned, rode

    def _scale(self, bound: float) -> float:
        """About the size of a T within a bound: in that unit float32 can sum its squares."""
        sizes = [size for size in (bound, self._typical_size()) if 0 < size < math.inf]
        return 2.0 ** round(math.log2(min(sizes))) if sizes else 1.0

    def _typical_size(self) -> float:
        if self._typical is None:
            seen = np.abs(self.glance(1 << 10).astype(float))
            self._typical = float(np.max(seen, initial=0.0, where=np.isfinite(seen)))
        return self._typical

    def _tallied(self, along: list[Tensor], storage: Storage) -> Tally:
        tally = Tally()
        tally.add(storage.entries, counts_of(slabs.gathered(along), storage.entries))
        self._take_note(tally)
        return tally

    @property
    def _entries(self) -> int:
        return self.storage.entries

    def _take_note(self, tally: Tally) -> None:
        if not tally.finite:
            raise not_finite(self.storage.infinite())
        self.holes |= tally.missing > 0

    # The regressions of lines

    def ask_lines(self, question: Regression, mean: Array, prior: Prior) -> tuple[Callable[..., list[Any]], Sums]:
        with self._careful():
            answer, moments = self._moments(question)
            band = Posteriors(moments, self._there(mean, torch.float64), prior)

        def ask(name: str, *args: Any) -> list[Any]:
            with self._careful():
                return [getattr(band, name)(*args)]

        return ask, answer

    def _moments(self, asked: Regression) -> tuple[Sums, Moments]:
        turned = self.storage.turned
        asked = self._on_device(asked.T if turned else asked, torch.float64)
        axis, (other, spread) = asked.axis, asked.other
        p, q = torch.tril_indices(other.shape[1], other.shape[1], device=self.device)
        pairs = torch.cat([other[:, p] * other[:, q], spread[:, None]], 1)  # H and κ in one product
        H: list[Tensor] = []
        g: list[Tensor] = []
        sums: list[tuple[Tensor, ...]] = []
        for slab in self.storage.slabs(AT_ONCE):
            T, W, sum_of = self._weighed(slab, asked)
            product = slab.times if axis == 0 else slab.t_times
            H.append(product(W, pairs))
            g.append(product(T, other))
            sums.append(sum_of)
        of_rows, of_cols, of_all = zip(*sums, strict=True)
        total = Sums(*(_to_host(part) for part in (torch.cat(of_rows), sum(of_cols), sum(of_all))))
        if not total.finite:
            raise not_finite(self.storage.infinite())
        self.holes |= not self._listed and total.n_observed < self._entries
        moments, target = (torch.cat(part) if axis == 0 else sum(part) for part in (H, g))
        return total.T if turned else total, Moments(moments[:, :-1], target, moments[:, -1])

    def _weighed(self, slab: Slab, asked: Regression) -> Any:
        if not self._by_kernel(slab):
            return slabs.weighed(slab, asked)
        M, P = slabs.in_units(slab, slab.M, asked), slab.low_rank(asked.U, asked.V)
        return self.triton.weighed(M, P, asked.noise.cut(slab.rows, slice(None)))

    # S

    def corruption(self, L: LowRank, limit: float | Standardised) -> tuple[Any, Trim]:
        self.reads += 1
        S, tally = self.outliers(self.storage, self.listing(L, limit))
        refuse_nothing(tally)
        keep = self.in_kind and self._entries > SMALL
        return S if keep else S.to_scipy(), tally.trim

    def outliers(self, storage: Storage, asked: Listing) -> tuple[DeviceSparse, Tally]:
        """S of a part of M, or of all of it."""
        with self._careful():
            if not storage.turned:
                return self._found(storage, asked)
            S, tally = self._found(storage, asked.T)
            return S.T, tally

    def _found(self, storage: Storage, asked: Listing) -> tuple[DeviceSparse, Tally]:
        """The same, of the stored rows."""
        asked = self._on_device(asked, self.wide)
        index = torch.int32 if storage.shape[1] < 2**31 else torch.int64
        parts: list[Any] = []
        along: list[Tensor] = []
        for slab in self._slabs(storage):
            find = self._fused_list if self._by_kernel(slab) else slabs.flagged
            found = find(slab, asked, index)  # type: ignore[arg-type]
            parts.append(found)
            along.append(found.rode)
        tally = self._tallied(along, storage)
        counted = _to_host(_joined([part.counts[0] for part in parts])), _to_host(sum(part.counts[1] for part in parts))
        ends = parts[0].ends
        if len(parts) > 1:
            ends = torch.cat([ends[:1], _joined([part.ends.diff() for part in parts]).cumsum(0)])
        columns, values = (_joined([getattr(part, name) for part in parts]) for name in ("cols", "values"))
        return DeviceSparse(storage.shape, ends, columns, values, counted), tally

    def _fused_list(self, slab: Dense, asked: Listing, index: torch.dtype) -> slabs.Found:
        """The same by a kernel."""
        limit = asked.limit
        scale = self._scale(math.inf if isinstance(limit, Standardised) else limit)
        given = slab.M, asked.cut(slab.rows, slice(None)), scale, index
        found = self.triton.listed(*given, self.holes)
        if not self.holes and bool(found.rode[0].isnan()):
            found = self.triton.listed(*given, True)
        return found

    def write(self, L: LowRank, limit: float | Standardised, sink: Sink) -> tuple[tuple[Array, Array], Trim]:
        counts, tally = self.write_rows(lambda some: _Part(self, self.storage.part(some)), L, limit, sink, 1)
        refuse_nothing(tally)
        return counts, tally.trim

    # All entries

    def whole(self) -> Any:
        if isinstance(self.storage, Streamed):
            return super().whole()
        size, copied = math.prod(self.shape) * self.wide.itemsize, self._listed or self.storage.dtype != self.wide
        refuse_beyond_memory(size * (1 + copied), _free_memory(self.device), str(self.device))
        self.reads += 1
        self._used.add("torch")
        with self._careful():
            if infinite := self.storage.infinite():
                raise not_finite(infinite)
            (slab,) = self.storage.slabs(self._entries)
            M = slab.values(self.wide)
            if isinstance(slab, Listed):
                listed, M = M, torch.full(self.shape, torch.nan, dtype=self.wide, device=self.device)
                M[slab.at, slab.cols] = listed
            else:
                self.holes |= any(bool(M[part.rows].isnan().any()) for part in self.storage.slabs(AT_ONCE))
            return M

    # A few entries

    def block(self, rows: Array, cols: Array) -> Array:
        refuse_large_block(rows, cols)
        return self._looked("block", self.storage.block, rows, cols)

    def entries(self, rows: Array, cols: Array) -> Array:
        return self._looked("entries", self.storage.at, rows, cols)

    def _looked(self, kind: str, look: Callable[[Array, Array], Array], rows: Array, cols: Array) -> Array:
        """What a survey has seen, or what is there."""
        if not (self._known or self._surveying):
            return self._seen(look(rows, cols))
        key = kind, np.asarray(rows, np.int64).tobytes(), np.asarray(cols, np.int64).tobytes()
        if key in self._known:
            return self._known[key].copy()
        found = self._seen(look(rows, cols))
        if self._surveying:
            self._known[key] = found
        return found

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        if not isinstance(self.storage, Entries):
            return drawn_anywhere(self, size, rng)
        at = torch.as_tensor(drawn(self.n_observed, size, rng), device=self.device)
        slab = self.storage.slab
        rows, cols, values = (_to_host(part[at]) for part in (slab.at, slab.cols, slab.values(self.wide)))
        return rows, cols.astype(np.int64), self._seen(values)

    def _seen(self, values: Array) -> Array:
        missing, infinite = bad_entries(values)
        if infinite:
            raise not_finite(infinite)
        self.holes |= missing > 0 and not self._listed
        self.reads += (values.size - missing) / self.n_observed
        return values

    # To the device and back

    def _on_device(self, asked: Asked, dtype: torch.dtype) -> Asked:
        """A question with its arrays on the device, and its limit in the precision of M."""
        rows, cols = ([None if B is None else self._there(B, dtype) for B in side] for side in asked.sides)
        asked = asked.with_sides(rows, cols)
        if isinstance(asked, Trimmed):
            return replace(asked, zeta=float(in_precision(asked.zeta, self.dtype)))
        if isinstance(asked, Masked):
            return replace(asked, by=replace(asked.by, zeta=float(in_precision(asked.by.zeta, self.dtype))))
        if isinstance(asked, Listing) and not isinstance(asked.limit, Standardised):
            return replace(asked, limit=float(in_precision(asked.limit, self.dtype)))
        return asked

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
    """Some rows of M as a piece that :class:`~irpca.engines.questions.Writing` asks for its part of S."""

    turned = False

    def __init__(self, engine: GPUEngine, storage: Storage) -> None:
        self.engine, self.storage = engine, storage

    def listed(self, asked: Listing, threads: int) -> tuple[Any, Tally]:
        S, tally = self.engine.outliers(self.storage, asked)
        return S.to_scipy(), tally

    def entries(self, rows: Array, cols: Array) -> Array:
        return self.storage.at(rows, cols)


def _triton(kernels: str, device: torch.device) -> Any:
    """The module of kernels, or None: torch."""
    if kernels not in ("auto", "triton", "torch"):
        raise ValueError(f"kernels={kernels!r} is unknown; choose 'auto', 'triton' or 'torch'")
    if kernels == "torch" or (kernels == "auto" and device.type != "cuda"):
        return None
    try:
        from . import kernels as triton_kernels
    except ImportError:
        if kernels == "triton":
            raise ValueError("kernels='triton' needs Triton, which is not installed; take kernels='torch'") from None
        return None
    return triton_kernels


def _free_memory(device: torch.device) -> float:
    if device.type != "cuda":
        return machine_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _to_host(A: Tensor) -> Array:
    array: Array = A.cpu().numpy()
    return array


def _out_of_memory(device: torch.device) -> MemoryError:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return MemoryError(
        f"the memory of {device} is full. Pass M as a NumPy array or as a tensor on the CPU, with engine='gpu': what "
        "does not fit is then streamed from host memory; or free what else is on the device, or ask for no S "
        "(sparse=False)"
    )
