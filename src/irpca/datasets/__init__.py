"""Problems with a known answer, and real tables with real features."""

from .life_expectancy import LifeExpectancy, load_life_expectancy
from .movielens import MovieLens, load_movielens
from .synthetic import Problem, make_problem

__all__ = ["LifeExpectancy", "MovieLens", "Problem", "load_life_expectancy", "load_movielens", "make_problem"]
