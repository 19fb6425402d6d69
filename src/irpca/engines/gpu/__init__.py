"""The engine for an M on a GPU, or moved to one; torch and Triton are imported nowhere else.

:mod:`.gpu_engine` asks slabs of M, and :mod:`.storage` says where these are. :mod:`.slabs` answers in torch, and
:mod:`.triton_kernels` in Triton, in one read of device memory: both hold the same three functions. :mod:`.sparse` is S
on the device, and :mod:`.tensor_tables` brings there what tables of the size of M are made of.
"""

from .gpu_engine import GPUEngine
from .sparse import DeviceSparse

__all__ = ["DeviceSparse", "GPUEngine"]
