"""One run of one method, its clock stopped while the answer is looked at."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import irpca
from irpca.diagnostics import support_scores
from irpca.engines import choose, single_threaded_blas
from irpca.lowrank import relative_distance
from irpca.result import History, Result, State

from .methods import EVERYONE, Method
from .problems import Case, Instance, make

# The first iterate at which each of these holds is recorded.
RESIDUAL = 1e-3  # ‖M − L − S‖ / ‖M‖, the paper's criterion, which a wrong L can meet
RECOVERY = 1e-6  # ‖L − L*‖ / ‖L*‖
SPARSE = 1e-2  # ‖S − S*‖ / ‖S*‖, where it is asked for
WRONG = 1e-2  # an L further off than this is wrong, whatever the residual says
CRITERIA = {"residual": RESIDUAL, "recovery": RECOVERY, "sparse": SPARSE}
MAX_ITER = 1_000_000  # time ends a run, not this
REFUSALS = (ValueError, ArithmeticError)  # what a solver says no with; anything else is a mistake of ours


@dataclass(frozen=True)
class Rules:
    """What ends a run, beside the method itself.

    Attributes
    ----------
    budget : seconds on the method's own clock
    tol : passed to the method: small, so that it stops by success or by the budget rather than too early
    to_own_end : go on after success, to where the method itself would stop
    sparse : look at the error of S, too, after every iterate
    refusals : a refusal is a result here, since some method is asked for what it cannot do
    """

    budget: float
    tol: float = 1e-12
    to_own_end: bool = False
    sparse: bool = False
    refusals: bool = False


@dataclass(frozen=True)
class Reached:
    """Where a run stood when a criterion first held."""

    seconds: float
    iterations: int
    reads: float
    errors: dict[str, float]


class Evaluator:
    """A callback that judges every iterate, and knows how long that took."""

    def __init__(self, instance: Instance, rules: Rules) -> None:
        self.instance = instance
        self.rules = rules
        self.engine = choose(instance.M)  # its own: reads of the method are counted elsewhere
        self.size = float(np.linalg.norm(instance.M))
        self.reached: dict[str, Reached] = {}
        self.errors = {"residual": np.nan, "recovery": np.nan}
        self.spent = 0.0  # seconds of evaluation so far
        self.clock = 0.0  # seconds of the method at the last iterate
        self.ended: str | None = None

    def __call__(self, state: State, history: History) -> bool:
        started = time.perf_counter()
        self.clock = history.seconds[-1] - self.spent
        self.errors = self.judge(state)
        here = Reached(self.clock, len(history), history.reads[-1], self.errors)
        for name, error in self.errors.items():
            if error <= CRITERIA[name]:
                self.reached.setdefault(name, here)
        if self.clock > self.rules.budget:
            self.ended = "BUDGET"
        if not self.rules.to_own_end and len(self.reached) == len(self.errors):
            self.ended = "RECOVERED"
        self.spent += time.perf_counter() - started
        return self.ended is not None

    def judge(self, state: State) -> dict[str, float]:
        """Every error of this iterate, each by the name of its criterion."""
        S = None
        if self.rules.sparse:
            S, trim = self.engine.corruption(state.L, state.zeta)
        else:
            nothing = np.zeros((self.instance.M.shape[1], 1))
            *_, trim = self.engine.products(state.L, state.zeta, nothing)
        errors = {
            "residual": float(np.sqrt(trim.energy)) / self.size,  # M − L − S is the trimmed residual
            "recovery": relative_distance(self.instance.L, state.L),
        }
        return errors if S is None else errors | {"sparse": sparse_error(S, self.instance.S)}


def sparse_error(S: Any, S_true: Any) -> float:
    """‖S − S*‖ / ‖S*‖."""
    return float(np.linalg.norm((S - S_true).data) / np.linalg.norm(S_true.data))


def measure(method: Method, instance: Instance, seed: int, rules: Rules) -> dict[str, Any]:
    """One run, as columns of a row."""
    if method.solver == "oracle":
        return _oracle(instance)
    evaluator = Evaluator(instance, rules)
    try:
        result = irpca.solve(
            instance.M,
            instance.F1 if method.features else None,  # whoever ignores them need not wait for their QR
            instance.F2 if method.features else None,
            rank=instance.rank if method.rank else "auto",
            solver=method.solver,
            tol=rules.tol,
            max_iter=MAX_ITER,
            callbacks=evaluator,
            random_state=seed,
            **method.options(instance),
        )
    except REFUSALS as error:
        if not rules.refusals:
            raise
        return {"status": f"ERROR: {type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    return _outcome(evaluator, result) | _quality(result.S, instance)


def _outcome(evaluator: Evaluator, result: Result) -> dict[str, Any]:
    seconds = result.seconds - evaluator.spent
    # Whoever stops at an iterate still has to write S: the last read belongs to every time.
    last_read, last_reads = seconds - evaluator.clock, result.reads - result.history.reads[-1]
    row = {
        "status": evaluator.ended or result.status.name,
        "iterations": len(result.history),
        "reads": result.reads,
        "seconds": seconds,
        "error": evaluator.errors["recovery"],
        "residual": evaluator.errors["residual"],
    }
    for name, then in evaluator.reached.items():
        row[f"seconds_{name}"] = then.seconds + last_read
        row[f"iterations_{name}"] = then.iterations
        row[f"reads_{name}"] = then.reads + last_reads
    if "residual" in evaluator.reached:  # how good the answer is that the paper would have stopped at
        then = evaluator.reached["residual"]
        row |= {"error_residual": then.errors["recovery"], "s_error_residual": then.errors.get("sparse")}
    return row


def _quality(S: Any, instance: Instance) -> dict[str, float]:
    if S is None:  # the run diverged
        return {}
    precision, recall = support_scores(S, instance.S)
    density = S.nnz / instance.M.size
    return {
        "density": density,
        "precision": precision,
        "recall": recall,
        "s_error": sparse_error(S, instance.S),
    }


def _oracle(instance: Instance) -> dict[str, Any]:
    started = time.perf_counter()
    with single_threaded_blas:
        S, trim = choose(instance.M).corruption(instance.L, instance.floor)
    seconds = time.perf_counter() - started
    cost = {"iterations": 0, "reads": 1.0, "seconds": seconds}
    row = {"status": "RECOVERED", **cost, "error": 0.0, "error_residual": 0.0}
    row["residual"] = float(np.sqrt(trim.energy) / np.linalg.norm(instance.M))
    for name in ("residual", "recovery"):
        row |= {f"{what}_{name}": value for what, value in cost.items()}
    return row | _quality(S, instance)


@cache
def warm_up(name: str) -> None:
    """Compile what a method needs, once per process, outside every clock."""
    tiny = make.__wrapped__(Case(60, 50, 4, 4, 2, 0.1, features="conditioned"), 0)
    for _ in range(2):  # compiling may use up the first budget before all is compiled
        measure(EVERYONE[name], tiny, 0, Rules(budget=0.1, refusals=True))
