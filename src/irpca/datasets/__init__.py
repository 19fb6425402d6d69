"""Problems with a known answer, and real tables with real features."""

from .bundled import LifeExpectancy, Weather, load_life_expectancy, load_weather
from .synthetic import Problem, make_problem

__all__ = [
    "LifeExpectancy",
    "Problem",
    "Weather",
    "load_life_expectancy",
    "load_weather",
    "make_problem",
]
