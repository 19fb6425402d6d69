"""Every case by name, in the order in which they are run."""

from __future__ import annotations

from . import against_oracle, algorithm_1, cluster, field, first_call, growth, out_of_core

MODULES = (against_oracle, growth, field, algorithm_1, first_call, out_of_core, cluster)
CASES = {case.name: case for module in MODULES for case in module.CASES}
