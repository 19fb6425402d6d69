"""The engine for an M on a GPU, or moved to one; torch and Triton are imported nowhere else.

:mod:`.engine` answers the questions, :mod:`.storage` says where M is. :mod:`.slabs` and :mod:`.lines` are the
arithmetic in torch, and :mod:`.kernels` is the same in Triton, in one read of device memory. :mod:`.sparse` is S on the
device, and :mod:`.tables` makes tables of the size of M there.
"""

from .engine import GPUEngine
from .sparse import DeviceSparse

__all__ = ["DeviceSparse", "GPUEngine"]
