"""Files as tables, without a data frame library: csv, tsv, parquet, feather, npy, npz, mtx and zarr."""

from .files import PACKED, read
from .matrices import Data, align, as_labels, long, wide
from .table import FileTable, Options, ReaderError

__all__ = ["PACKED", "Data", "FileTable", "Options", "ReaderError", "align", "as_labels", "long", "read", "wide"]
