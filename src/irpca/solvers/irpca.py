"""The default: an exact fit, if the data are exact; else the model of :mod:`irpca.solvers.bayes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import constants
from ..engines.base import Look
from ..problem import Problem
from ..result import State
from . import bayes, trimmed
from .blocks import drafts


def iterate(
    problem: Problem,
    *,
    extra_rank: int | str = "auto",
    noise: float | None = None,
    imperfect: bool = False,
    columns: str | Sequence[str] = "as they are",
    tol: float = 0.0,
    max_iter: int = 100,
) -> Iterator[State]:
    """An exact fit, if it certifies itself; else robust Bayesian matrix factorisation, see :mod:`irpca.solvers.bayes`.

    Without features there is no search for an exact fit here: bayes looks for one near its best fit.

    Parameters
    ----------
    extra_rank, noise, imperfect, columns, tol, max_iter : see :func:`irpca.solvers.bayes.iterate`
    """
    bayes.check_options(problem, extra_rank, noise)
    found = None
    if _may_be_exact(problem, noise, imperfect and extra_rank != 0):
        found = yield from trimmed.search(problem)
        if found and found.certified and not found.unfitted:
            yield found.state(problem)
    options: dict[str, Any] = {"extra_rank": extra_rank, "noise": noise, "imperfect": imperfect, "columns": columns}
    if found and found.certified:
        options["columns"] = "as they are"
    options |= {"tol": tol, "max_iter": max_iter, "start": found and found.L}
    for state in bayes.iterate(problem, **options):
        exact_but_for_some_lines = found and found.certified and state.settled and state.noise
        yield found.state(problem) if found and exact_but_for_some_lines else state


def _may_be_exact(problem: Problem, noise: float | None, imperfect: bool) -> bool:
    return any(problem.given) and noise in (None, 0) and not imperfect


def looks(problem: Problem, noise: float | None = None, imperfect: bool = False, **options: Any) -> list[Look]:
    """What will be looked at before the first read of all of M, as far as that does not depend on M."""
    wanted = bayes.looks(problem, **options)
    if len(wanted) == 1 or not _may_be_exact(problem, noise, imperfect):
        return wanted
    rng = problem.rng("blocks")
    if not all(problem.given):
        return [*wanted, Look(lines=next(trimmed.first_lines(problem.shape, *problem.features, rng)))]
    for draft in drafts(problem.shape, *problem.features, rng):
        if draft is None or np.prod([len(lines) for lines in draft.lines]) > constants.BUDGET.block:
            break
        wanted.append(Look(lines=draft.lines))
    return wanted
