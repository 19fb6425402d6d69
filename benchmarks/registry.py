"""Every case by name, in the order in which they are run."""

from __future__ import annotations

from . import against_oracle, algorithm_1, field, first_call, growth

MODULES = (against_oracle, growth, field, algorithm_1, first_call)
CASES = {case.name: case for module in MODULES for case in module.CASES}
