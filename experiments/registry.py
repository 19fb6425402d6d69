"""The name table: every experiment behind one word."""

from __future__ import annotations

from .fig1 import FIG1A, FIG1B, FIG1C, FIG1D
from .fig2 import FIG2
from .holes import HOLES
from .imperfect import IMPERFECT
from .peers import TRIAL as PEERS
from .phase import PHASE
from .scaling import SCALING
from .traffic import TRAFFIC

EXPERIMENTS = {one.name: one for one in (FIG1A, FIG1B, FIG1C, FIG1D, FIG2, PHASE, SCALING)}
TRIALS = {one.name: one for one in (HOLES, IMPERFECT, TRAFFIC, PEERS)}
