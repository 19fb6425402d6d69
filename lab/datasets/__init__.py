"""Data sets that are not bundled with irpca: MovieLens 100K, and the traffic on Interstate 94."""

from .i94_traffic import I94Traffic, load_i94_traffic
from .movielens import MovieLens, load_movielens_100k

__all__ = ["I94Traffic", "MovieLens", "load_i94_traffic", "load_movielens_100k"]
