"""Features of rows and columns: their orthonormal coordinates, and numbers made from frames of any kind."""

from .encoder import Encoder
from .matrix import Features, FeatureWarning, outside

__all__ = ["Encoder", "FeatureWarning", "Features", "outside"]
