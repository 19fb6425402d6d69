"""Every figure by name."""

from __future__ import annotations

from .fig1 import FIG1A, FIG1B, FIG1C, FIG1D
from .fig2 import FIG2
from .phase import PHASE
from .scaling import SCALING

EXPERIMENTS = {one.name: one for one in (FIG1A, FIG1B, FIG1C, FIG1D, FIG2, PHASE, SCALING)}
