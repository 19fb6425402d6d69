"""``cached_property`` without a lock.

Before Python 3.12 that of functools holds one lock per property, of all objects, while it computes: threads wait for
each other, and a process that was forked meanwhile waits forever.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """The same, but two threads may both compute it; the first answer stays."""

        def __get__(self, held: Any, owner: type | None = None) -> Any:
            return self if held is None else vars(held).setdefault(self.attrname, self.func(held))


__all__ = ["cached_property"]
