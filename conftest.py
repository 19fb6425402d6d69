"""What tests need to have decided before anything is imported."""

import os
import shutil
from importlib.util import find_spec

import pytest

# Without a GPU the kernels run in Triton's interpreter, which has to be asked for before Triton is imported.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Workers of dask clusters are forked from a process that has imported what they need: to start one takes seconds.
if hasattr(os, "fork"):
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "forkserver")

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("no clock", deadline=None)  # a machine may be busy with other things
    settings.load_profile("no clock")

collect_ignore_glob = []
if find_spec("torch") is None:
    collect_ignore_glob.append("src/irpca/engines/gpu/*")
elif find_spec("triton") is None:
    collect_ignore_glob.append("src/irpca/engines/gpu/triton_kernels.py")


@pytest.fixture(scope="module")
def short_fits():
    """Fits end after a few sweeps: for modules that test what is done with a fit, not how good it is."""
    from irpca import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "MAX_SWEEPS", 12)
        yield
