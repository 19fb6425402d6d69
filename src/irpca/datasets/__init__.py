"""Problems with a known answer, and real tables with real features."""

from .life_expectancy import LifeExpectancy, load_life_expectancy
from .synthetic import Problem, make_problem

__all__ = ["LifeExpectancy", "Problem", "load_life_expectancy", "make_problem"]
