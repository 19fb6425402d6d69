"""Arrays of other libraries as NumPy's: tensors of torch, and whatever DLPack exchanges. None is imported for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import naming

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .lowrank import Array


def is_tensor(values: Any) -> bool:
    """Whether values are a tensor of torch, or of a subclass."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(values).__mro__)


def on_gpu(values: Any) -> bool:
    """Whether values are a tensor on a CUDA device: such an M stays there."""
    return is_tensor(values) and bool(values.is_cuda)


def is_sparse(tensor: Any) -> bool:
    """Whether a tensor is in compressed rows (CSR), of which the stored entries are the observed ones."""
    return str(tensor.layout) == "torch.sparse_csr"


def matrix_of(tensor: Any, name: str = "M") -> Any:
    """The tensor as a matrix of real numbers without gradients, where it lies, or refused with what to do.

    Integers and booleans become float64, floats of 8 bits float32; the others stay as they are.
    """
    tensor = tensor.detach()
    if str(tensor.layout) not in ("torch.strided", "torch.sparse_csr"):
        raise ValueError(
            f"{name} has the layout {tensor.layout}; pass {name}.to_sparse_csr(), whose stored entries are the "
            f"observed ones, or {name}.to_dense() if the others are zero"
        )
    shape = tuple(tensor.shape)
    if len(shape) != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {shape}")
    if 0 in shape:
        raise ValueError(f"{name} is empty: its shape is {shape}")
    if tensor.is_complex():
        raise ValueError(f"{name} is complex; only real matrices can be decomposed")
    return _floats(_with_values(tensor, name))


def _with_values(tensor: Any, name: str) -> Any:
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on the device 'meta', where tensors have a shape and no values")
    return tensor.dequantize() if tensor.is_quantized else tensor


def _floats(tensor: Any) -> Any:
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def in_host_memory(tensor: Any, name: str = "M") -> Array | csr_array:
    """A matrix as a NumPy array, or of a tensor in compressed rows as a SciPy one; no copy if it is on the CPU.

    What NumPy does not have, bfloat16 and float16 as M, becomes float32.
    """
    tensor = matrix_of(tensor, name)
    if not is_sparse(tensor):
        return _numpy(tensor)
    from scipy.sparse import csr_array

    parts = tensor.values(), tensor.col_indices(), tensor.crow_indices()
    return csr_array(tuple(map(_numpy, parts)), shape=tuple(tensor.shape))


def _numpy(tensor: Any) -> Array:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    half = tensor.is_floating_point() and tensor.dtype.itemsize < 4
    values: Array = (tensor.float() if half else tensor).numpy()
    return values


def for_torch(values: Any) -> Any:
    """An array as torch takes it without a copy and without a warning; copied if it is not: strided, or read-only."""
    return np.require(values, requirements=["C", "W"]) if isinstance(values, np.ndarray) else values


def as_numpy(values: Any, name: str) -> Any:
    """Values as what :func:`numpy.asarray` makes of them, also where they are on another device, or of DLPack alone.

    Examples
    --------
    >>> as_numpy([[1, 2]], "F1")
    array([[1, 2]])
    """
    if is_tensor(values):
        if str(values.layout) != "torch.strided":
            raise ValueError(f"{name} is a tensor with the layout {values.layout}; pass {name}.to_dense()")
        return _numpy(_with_values(values, name))
    if not hasattr(values, "__dlpack__"):
        with naming(name):
            return np.asarray(values)
    if hasattr(values, "__array__"):
        try:
            return np.asarray(values)
        except TypeError:  # CuPy does not bring arrays to the host unasked; to be handed one is to be asked
            pass
    try:
        return _exchanged(values)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ValueError(
            f"{name} is a {type(values).__module__}.{type(values).__name__} that does not become a NumPy array "
            f"({error}): bring it into host memory first, such as with cupy.asnumpy({name})"
        ) from error


def _exchanged(values: Any) -> Array:
    on_cpu = int(values.__dlpack_device__()[0]) == 1  # kDLCPU
    found: Array = np.from_dlpack(values) if on_cpu else np.from_dlpack(values, device="cpu", copy=True)
    return found
