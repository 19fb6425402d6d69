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
from functools import cache
from itertools import islice
from typing import Any, TypeVar

Share = TypeVar("Share")
Answer = TypeVar("Answer")


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for work; to start them takes as long as a pass over a small matrix."""
    return ThreadPoolExecutor(threads, thread_name_prefix="irpca")


class _SingleThreadedBlas(ContextDecorator):
    """Holds BLAS to one thread for as long as any pass is under way.

    The setting belongs to the whole process, so passes of several engines in several threads share it: the
    first one in sets it, the last one out puts back what was there.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.mine = threading.local()  # how often this thread is inside
        self.limit: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.limit = _blas().limit(limits=1, user_api="blas")
            self.inside += 1
            self.mine.depth = getattr(self.mine, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            self.mine.depth -= 1
            if self.inside == 0:
                self.limit.restore_original_limits()

    def after_fork(self) -> None:
        """Only the thread that forked lives on: what others held is let go."""
        held, self.lock, self.inside = self.inside, threading.Lock(), getattr(self.mine, "depth", 0)
        if held and not self.inside:
            self.limit.restore_original_limits()


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
