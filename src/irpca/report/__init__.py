"""A fit as one self-contained HTML file: whether to use it, which cells are outliers, and why this fit was chosen.

The file needs no network and no other file. :mod:`irpca.report.words` puts a fit into sentences,
:mod:`irpca.report.payload` gathers what scripts show, and :mod:`irpca.report.page` makes the page.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..arguments import path as checked
from ..durable import need_folder, write_whole

__all__ = ["write"]


def write(
    model: Any,
    path: str | os.PathLike[str],
    M: Any = None,
    *,
    title: str | None = None,
    command: str | None = None,
    overwrite: bool = False,
    fdr: float | None = None,
    probability: float | None = None,
    threshold: float | None = None,
) -> Path:
    """Write the report of a fitted model to an HTML file, and return its path.

    Parameters
    ----------
    model : InductiveRobustPCA
        Fitted.
    path : str or path
        Where to write, such as ``"report.html"``. The file appears only when it is complete.
    M : table, or None
        What the model was fitted to. None: what the model remembers, which after :func:`irpca.load` is nothing; the
        report then shows observed values at the outliers only, and says so.
    title : str or None
        The heading of the report.
    command : str or None
        The command line, or the code, by which the fit can be repeated.
    overwrite : bool
        Whether a file that is there may be replaced.
    fdr, probability, threshold : float or None
        Which cells to show as outliers, as in :meth:`InductiveRobustPCA.outliers <irpca.InductiveRobustPCA.outliers>`.

    Examples
    --------
    >>> import tempfile, irpca
    >>> problem = irpca.datasets.make_problem(60, 40, d1=4, d2=4, rank=2, corruption=0.05)
    >>> model = irpca.InductiveRobustPCA().fit(problem.M, row_features=problem.F1, col_features=problem.F2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(model, f"{folder}/report.html").name
    'report.html'
    """
    from ..arguments import flag
    from ..arguments import text as text_of
    from ..plots.fitted import Fitted
    from ..tables import Criterion
    from .page import render

    case = Fitted(model, M, Criterion(fdr, probability, threshold))
    _ = case.result  # or an error: it is not fitted
    for name, given in (("title", title), ("command", command)):
        if given is not None:
            text_of(given, name)
    target = _target(path, flag(overwrite, "overwrite"))
    text = render(case, title, command)
    with write_whole(target) as file:  # half of a surrogate pair, which a label may hold, is no character of UTF-8
        file.write(text.encode("utf-8", "xmlcharrefreplace"))
    return target


def _target(path: str | os.PathLike[str], overwrite: bool) -> Path:
    target = Path(checked(path, "path"))
    if target.is_dir():
        raise IsADirectoryError(f"path={str(target)!r} is a folder; give a file in it, such as 'report.html'")
    need_folder(target, "path")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{str(target)!r} exists; pass overwrite=True to replace it, or give another path")
    return target
