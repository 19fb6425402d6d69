"""Problems with a known answer, and real tables with real features."""

from .i94_traffic import I94Traffic, load_i94_traffic
from .life_expectancy import LifeExpectancy, load_life_expectancy
from .movielens import MovieLens, load_movielens_100k
from .synthetic import Problem, make_problem
from .weather import Weather, load_weather

__all__ = [
    "I94Traffic",
    "LifeExpectancy",
    "MovieLens",
    "Problem",
    "Weather",
    "load_i94_traffic",
    "load_life_expectancy",
    "load_movielens_100k",
    "load_weather",
    "make_problem",
]
