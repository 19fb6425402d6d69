"""Peak extra memory of one contender, in a process of its own.

What is measured is resident memory as Linux counts it: VmHWM (the highest ever) after the run less VmRSS (now) before
it, with M in memory last, after a warm-up on a small problem. It counts everything, NumPy buffers, threads and what the
allocator keeps, and includes the answer. Not ``ru_maxrss``: a child inherits that of its parent through fork and exec,
so that a child of a large process appears large. Not tracemalloc: it slows Python down and sees no BLAS buffers.
Elsewhere than on Linux the answer is None.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lab.machine import ROOT

STATUS = Path("/proc/self/status")


def peak_extra(folder: Path, warm_up: Path, name: str, module: str = "lab.benchmarks.contenders") -> int | None:
    """Bytes beyond M that a contender needs on the task in ``folder``, after one in ``warm_up`` of the same kind."""
    if not STATUS.exists():
        return None
    words = [sys.executable, "-m", "lab.benchmarks.memory", module, str(folder), str(warm_up), name]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the memory of {name!r} could not be measured:\n{done.stderr}")
    return int(json.loads(done.stdout.splitlines()[-1]))


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def _measure(module: str, folder: str, warm_up: str, name: str) -> int:
    from importlib import import_module

    contenders = import_module(module)
    run = contenders.CONTENDERS[name]
    run(contenders.Task.load(Path(warm_up)), 0)
    task = contenders.Task.load(Path(folder))
    before = resident("VmRSS")
    answer = run(task, 0)
    after = resident("VmHWM")
    del answer  # alive until here, so that it counts
    return max(after - before, 0)


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
