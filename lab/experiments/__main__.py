"""``python -m lab.experiments NAME``: run what is missing, then draw the figure from the CSV."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from . import table
from .drawing import save
from .ledger import Ledger, records
from .methods import EVERYONE
from .plan import Experiment
from .registry import EXPERIMENTS
from .running import core_shares, run

HERE = Path(__file__).resolve().parent


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.experiments", description=__doc__)
    parser.add_argument("name", choices=[*EXPERIMENTS, "all", "table"], metavar="NAME", help="%(choices)s")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one seed, never into the kept results")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the CSV and the figure")
    parser.add_argument("--seeds", type=int, help="per case (5; phase and scaling 3)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of a run, on the method's own clock")
    parser.add_argument("--workers", type=int, default=1, metavar="K", help="processes, each on its own cores (1)")
    parser.add_argument("--methods", metavar="A,B", help=f"of {', '.join(EVERYONE)}")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw what is in the CSV")
    parser.add_argument("--check", action="store_true", help="with table: compare with the file instead of writing it")
    chosen = parser.parse_args(words)
    for name in ("seeds", "workers"):
        if getattr(chosen, name) is not None and getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(chosen, name)}")
    if chosen.budget is not None and not chosen.budget > 0:
        parser.error(f"--budget must be positive, got {chosen.budget}")
    if chosen.workers > 1:
        try:
            core_shares(chosen.workers)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    chosen.methods = chosen.methods.split(",") if chosen.methods else list(EVERYONE)
    if unknown := set(chosen.methods) - set(EVERYONE):
        parser.error(f"--methods {', '.join(sorted(unknown))}: choose from {', '.join(EVERYONE)}")
    if chosen.quick and chosen.out and chosen.out.resolve().is_relative_to(HERE):
        parser.error(f"--quick does not write into {HERE.name}/, where the real results are: choose another --out")
    if chosen.quick and not chosen.out:
        chosen.out = Path(tempfile.mkdtemp(prefix="experiments-"))
    if chosen.out:
        try:
            chosen.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out {chosen.out} is no folder to write to: {error.strerror}")
    return chosen


def main(words: list[str] | None = None) -> int:
    chosen = options(words)
    if chosen.name == "table":
        return table.main(chosen.out, chosen.check)
    for name in EXPERIMENTS if chosen.name == "all" else [chosen.name]:
        experiment = EXPERIMENTS[name].small() if chosen.quick else EXPERIMENTS[name]
        _perform(experiment, chosen)
    return 0


def _perform(experiment: Experiment, chosen: argparse.Namespace) -> None:
    if chosen.seeds:
        experiment = replace(experiment, seeds=chosen.seeds)
    if chosen.budget:
        experiment = replace(experiment, rules=replace(experiment.rules, budget=chosen.budget))
    try:
        ledger = Ledger((chosen.out or HERE / "results") / f"{experiment.name}.csv")
    except ValueError as error:
        sys.exit(str(error))
    if not chosen.draw:
        methods = [method for method in experiment.methods if method.name in chosen.methods]
        count = run(experiment, ledger, methods, chosen.workers)
        print(f"{count} new rows, {len(ledger.rows)} in {ledger.path.name}")
    found = [record for record in records(ledger.rows) if record["method"] in chosen.methods]
    if not found:
        sys.exit(f"no rows to draw in {ledger.path}: leave out --draw to run {experiment.name}")
    print(table.summary(found, experiment.rules.to_own_end))
    if find_spec("matplotlib") is None:
        print("not drawn, since matplotlib is not installed: draw elsewhere with --draw")
        return
    picture = (chosen.out or HERE / "figures") / f"{experiment.name}.png"
    save(experiment.draw(found), picture)
    print(f"drawn: {picture.name}")


if __name__ == "__main__":
    sys.exit(main())
