"""One pool of threads for all passes, and a BLAS that is held to one thread while they run.

Alternating a threaded BLAS with another pool of threads costs more than the arithmetic.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ContextDecorator
from functools import cache, wraps
from itertools import islice
from typing import Any, TypeVar

Share = TypeVar("Share")
Answer = TypeVar("Answer")


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _blas() -> list[Any]:
    """The BLAS libraries of this process."""
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for work; to start them takes as long as a pass over a small matrix."""
    return ThreadPoolExecutor(threads, thread_name_prefix="irpca")


class _SingleThreadedBlas(ContextDecorator):
    """Holds BLAS to one thread for as long as any pass is under way.

    The setting belongs to the whole process, so passes of several engines in several threads share it: the
    first one in sets it, the last one out puts back what was there.

    Ctrl-C may come between any two steps of entering and leaving. So there is one record of who is inside, changed in
    one step; what was there is noted before anything is set; and a function that this decorates leaves as many inside
    as it found, however it ends.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depths: dict[int, int] = {}  # of threads: how often each is inside
        self.before: list[int] | None = None  # numbers of threads, if they have been changed

    @property
    def inside(self) -> int:
        return sum(self.depths.values())

    def __enter__(self) -> None:
        self._move(self.depths.get(threading.get_ident(), 0) + 1)

    def __exit__(self, *_: object) -> None:
        self._move(self.depths.get(threading.get_ident(), 0) - 1)

    def __call__(self, func: Any) -> Any:
        @wraps(func)
        def inner(*args: Any, **kwargs: Any) -> Any:
            depth = self.depths.get(threading.get_ident(), 0)
            try:
                self._move(depth + 1)
                return func(*args, **kwargs)
            finally:  # not one less than now: what func called may have been interrupted while it left
                self._move(depth)

        return inner

    def _move(self, depth: int) -> None:
        """Let this thread be inside so many times."""
        with self.lock:
            held = bool(self.depths)
            if depth > 0:
                self.depths[threading.get_ident()] = depth
            else:
                self.depths.pop(threading.get_ident(), None)
            if self.depths and (not held or self.before is None):
                self.before = self.before or [library.get_num_threads() for library in _blas()]
                for library in _blas():
                    library.set_num_threads(1)
            if not self.depths:
                self._restore()

    def _restore(self) -> None:
        if self.before is not None:
            for library, number in zip(_blas(), self.before, strict=True):
                library.set_num_threads(number)
            self.before = None

    def after_fork(self) -> None:
        """Only the thread that forked lives on: what others held is let go."""
        self.lock = threading.Lock()
        for other in set(self.depths) - {threading.get_ident()}:
            del self.depths[other]
        if not self.depths:
            self._restore()


single_threaded_blas = _SingleThreadedBlas()


def in_order(
    work: Callable[[Share], Answer], shares: Iterable[Share], threads: int, ahead: int | None = None
) -> Generator[Answer, None, None]:
    """The answers in the order of their shares; threads are at most ``ahead`` shares ahead of who takes them."""
    with single_threaded_blas:
        if threads == 1:
            yield from map(work, shares)
            return
        waiting = iter(shares)
        start = pool(threads).submit
        running: deque[Future[Answer]] = deque()
        try:
            running.extend(start(work, share) for share in islice(waiting, ahead or threads + 1))
            while running:
                answer = running[0].result()
                running.popleft()
                running.extend(start(work, share) for share in islice(waiting, 1))
                yield answer
        finally:  # nobody works on in the background after an error, or Ctrl-C
            for future in running:
                future.cancel()
            wait(running)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)
    os.register_at_fork(after_in_child=single_threaded_blas.after_fork)
