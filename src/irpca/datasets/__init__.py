"""Problems with a known answer, and real tables with real features."""

from .life_expectancy import LifeExpectancy, load_life_expectancy
from .synthetic import Problem, make_problem
from .weather import Weather, load_weather

__all__ = [
    "LifeExpectancy",
    "Problem",
    "Weather",
    "load_life_expectancy",
    "load_weather",
    "make_problem",
]
