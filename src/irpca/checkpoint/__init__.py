"""Checkpoints: a journal of the engine's answers, from which an interrupted solve goes on.

A solver is deterministic and sees M only through its engine, whose answers are thin. So the answers are all there is to
keep: run again from the start and given the same answers, without reading M, it comes to where it was. No solver knows
about it.
"""

from __future__ import annotations

from .journal import Checkpoint, Journal
from .recordfile import CheckpointError

__all__ = ["Checkpoint", "CheckpointError", "Journal"]
