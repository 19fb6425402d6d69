"""Fitted models as files: arrays in NumPy's own format and a header in JSON, nothing that could be executed.

A file is an uncompressed zip archive. ``header.json`` describes the model, ``a0.npy``, ``a1.npy``, … are its arrays,
and ``SHA256SUMS`` has a checksum of each. Numbers hardly become smaller by compression, and without it nothing in a
file can become larger than the file when it is read. :func:`numpy.load` opens it, too.

The data M itself is not in the file, nor are callbacks.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from zipfile import BadZipFile, ZipFile

from ..arguments import path as checked
from .archive import HEADER, SUMS, array_name, atomic, members_of, read_array, sums_of, write
from .decoding import Decoding
from .model import described, made, parsed
from .registry import ModelFileError, require

if TYPE_CHECKING:
    from ..estimator import InductiveRobustPCA
    from ..result import Result

__all__ = ["ModelFileError", "load", "load_result", "save"]


def save(model: InductiveRobustPCA | Result, path: str | os.PathLike[str]) -> None:
    """Write a fitted model, or a result, to a file that :func:`load` reads back, equal to the bit.

    The file appears whole or not at all; one that is there is replaced. It holds neither M nor callbacks: a warning
    names what else of the constructor's arguments could not be kept, which matters only to fit again.

    Parameters
    ----------
    model : InductiveRobustPCA or Result
    path : str or path

    Examples
    --------
    >>> import irpca, tempfile, os
    >>> from irpca import persistence
    >>> problem = irpca.datasets.make_problem(60, 40, d1=4, d2=3, rank=2, corruption=0.1)
    >>> model = irpca.InductiveRobustPCA().fit(problem.M, row_features=problem.F1, col_features=problem.F2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "m.irpca")
    ...     persistence.save(model, path)
    ...     again = persistence.load(path)
    >>> bool((again.low_rank_.left == model.low_rank_.left).all())
    True
    """
    target = Path(os.path.realpath(checked(path, "path")))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "path is a folder; give the name of a file in it", str(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder of path does not exist; create it first", str(target.parent))
    if hasattr(model, "_remember") and not isinstance(model, type):  # not of a Result
        model._remember()
    encoding, header = described(model)
    with atomic(target) as file:
        write(file, header, encoding.arrays)
        file.flush()
        with open(file.name, "rb") as again:
            _check_readable(again)


def load(path: str | os.PathLike[str]) -> InductiveRobustPCA:
    """The fitted model in a file written by :func:`save`.

    Nothing in the file is executed, so files of others are safe to load. Whatever is not a whole, unchanged model file
    is refused with :class:`ModelFileError`. The model has no M: pass it again where a method asks for it.

    Parameters
    ----------
    path : str or path
    """
    return _load(path, "InductiveRobustPCA")


def load_result(path: str | os.PathLike[str]) -> Result:
    """The :class:`irpca.Result` in a file written by :func:`save`."""
    return _load(path, "Result")


def _load(path: str | os.PathLike[str], wanted: str) -> Any:
    with open(checked(path, "path"), "rb") as file, _refusing(os.fspath(path)):
        header, made = _read(file)
        require(
            header["class"] == wanted,
            f"it holds an object of class {header['class']}: use {'load_result' if wanted != 'Result' else 'load'}",
        )
        return made


@contextmanager
def _refusing(path: Any) -> Iterator[None]:
    """Whatever goes wrong with the content of a file, as one kind of error that names the file."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{path} cannot be loaded: {error}") from error.__cause__
    except MemoryError:
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # the disk, not the content
            raise
        raise ModelFileError(f"{path} cannot be loaded: it is cut off or damaged") from error
    except (BadZipFile, EOFError) as error:
        raise ModelFileError(f"{path} cannot be loaded: it is no model file, or cut off or damaged") from error
    except Exception as error:
        raise ModelFileError(f"{path} cannot be loaded: it is damaged or was changed ({error})") from error


def _check_readable(file: BinaryIO) -> None:
    """Read back what was written: a model that cannot be loaded shall not seem saved."""
    try:
        _read(file)
    except ModelFileError as error:
        raise ModelFileError(f"the model cannot be saved: {error}; please report this, and use pickle") from error


def _read(file: BinaryIO) -> tuple[dict[str, Any], Any]:
    with ZipFile(file) as archive:
        members = members_of(archive, os.fstat(file.fileno()).st_size)
        sums = sums_of(archive.read(members[SUMS]))
        require(set(sums) == set(members) - {SUMS}, "its parts are not those that its checksums name")
        text = archive.read(members[HEADER])
        header = parsed(text)
        require(hashlib.sha256(text).hexdigest() == sums[HEADER], "its header does not match its checksum")
        names = [array_name(k) for k in range(header["arrays"])]
        require(set(names) == set(sums) - {HEADER}, "arrays are missing, or there are others")
        arrays = [read_array(archive, members[name], sums[name]) for name in names]
    decoding = Decoding(arrays, header["objects"])
    return header, made(decoding, header)
