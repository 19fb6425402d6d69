"""Pictures of a fitted model, made with matplotlib: each function draws on one Axes and returns it.

Which cells are outliers (:func:`cell_map`), one row or column against what was expected of it (:func:`line`), the parts
of the table (:func:`decomposition`), the noise model (:func:`residuals`), why this rank (:func:`singular_values`) and
this fit (:func:`candidates`), how it got there (:func:`convergence`), and whether probabilities are to be believed
(:func:`reliability`). matplotlib is imported when something is drawn: ``pip install "irpca[plot]"``.
"""

from .cells import cell_map
from .fitting import candidates, convergence
from .images import decomposition
from .probabilities import reliability
from .remainder import residuals, singular_values
from .single_line import line

__all__ = [
    "candidates",
    "cell_map",
    "convergence",
    "decomposition",
    "line",
    "reliability",
    "residuals",
    "singular_values",
]
