"""Standardised residuals of outliers, and rows and columns with unusually many of them.

A residual is divided by its standard deviation, that of the noise and of L there. The probability that an entry is an
outlier, a gross error rather than noise, is estimated in :mod:`irpca.model.calibration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainc, betaln
from scipy.stats import false_discovery_control

from .engines.sparse_part import places
from .lowrank import Array
from .model.entry_scale import Judge
from .wording import count

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BROKEN_FDR = 0.05  # false discovery rate among the rows or columns called broken
ROUNDS = 50  # of estimating the usual share without broken lines; a handful is usual
LEAST = 1e-280  # a probability below this is near underflow: its logarithm is taken another way

LINE = np.dtype(
    [(name, np.intp) for name in ("position", "observed", "flagged")]
    + [(name, float) for name in ("share", "expected", "score", "q_value")]
    + [("broken", bool), ("mean_size", float), ("mean_signed", float)]
)


def standardised(S: csr_array, judge: Judge) -> csr_array:
    """S, outliers in host memory, each in units of its uncertainty; without a model of it, of the threshold.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> standardised(csr_array([[0.0, 6.0], [-3.0, 0.0]]), Judge(1.5)).toarray()
    array([[ 0.,  4.],
           [-2.,  0.]])
    """
    scaled = S.astype(float)
    scaled.data = judge.standardised(scaled.data, *places(S))
    return scaled


def score_lines(S: csr_array, axis: int, observed: Array | None = None, broken: float = BROKEN_FDR) -> Array:
    """The rows (``axis=0``) or columns (1) of M, those with unusually many outliers first.

    Parameters
    ----------
    S : csr_array of shape (n1, n2)
        The outliers, standardised; see :func:`standardised`.
    axis : int
    observed : array of int, or None
        How many entries of each row, or column, were observed; None for all.
    broken : float between 0 and 1
        False discovery rate among the rows, or columns, called broken.

    Returns
    -------
    structured array, one record for each row or column (line), the most surprising first
        ``position``: which row or column. ``observed``, ``flagged``, ``share``: the number of its observed entries, of
        its outliers, and their ratio (NaN if nothing is observed). ``expected``: the usual share, the same for all.
        ``score``: −log10 of the probability (p-value) of as many outliers or more in a usual line: 3 is one line in a
        thousand. ``q_value``, ``broken``: the smallest false discovery rate at which the line is reported, and whether
        it is at most ``broken``. ``mean_size``, ``mean_signed``: means of ``|z|`` and of ``z`` over its outliers, z
        being the standardised residual (NaN if there are none): if they are about equal in magnitude, the errors have
        one sign, as those of a sensor that drifted.

    Notes
    -----
    The usual share is estimated from the lines that are not broken: it starts at the median share, and is estimated
    again without the lines found broken, until these stay the same. So broken lines do not mask each other.

    Usual lines may differ by more than chance, and with many entries each any difference would be significant. So the
    counts are modelled as beta-binomial (overdispersed), of variance ``n p (1 − p) (1 + (n − 1) ρ)`` with p and ρ from
    the usual lines; ρ = 0 is the binomial. Where a third of the lines are a little worse than the others, that is
    overdispersion, and none of them is broken.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> S = np.zeros((50, 40))
    >>> S[np.arange(50), np.arange(50) % 40] = 9.0  # one outlier in each row
    >>> S[7, :30] = -5.0
    >>> first = score_lines(csr_array(S), axis=0)[0]
    >>> first["position"].item(), first["flagged"].item(), first["broken"].item(), first["mean_signed"].item()
    (7, 30, True, -5.0)
    """
    if axis not in (0, 1):
        raise ValueError(f"axis must be 0 for rows or 1 for columns, got {axis!r}")
    line, residuals, n_lines = places(S)[axis], S.data.astype(float), S.shape[axis]

    found = np.empty(n_lines, LINE)
    found["position"] = np.arange(n_lines)
    found["flagged"] = np.bincount(line, minlength=n_lines)
    found["observed"] = _check_observed(S, axis, observed, found["flagged"])
    with np.errstate(invalid="ignore", divide="ignore"):
        found["share"] = found["flagged"] / found["observed"]
        found["mean_size"] = np.bincount(line, np.abs(residuals), n_lines) / found["flagged"]
        found["mean_signed"] = np.bincount(line, residuals, n_lines) / found["flagged"]
    found["expected"], log_tails = _compute_surprise(found["flagged"], found["observed"], broken)
    found["score"] = -log_tails / np.log(10) + 0.0  # no -0.0
    seen = found["observed"] > 0
    found["q_value"] = 1.0
    found["q_value"][seen] = false_discovery_control(np.exp(log_tails[seen]))
    found["broken"] = found["q_value"] <= broken
    order = np.lexsort((found["position"], -found["flagged"], -found["score"]))
    return found[order]


def _check_observed(S: csr_array, axis: int, observed: Array | None, flagged: Array) -> Array | int:
    if observed is None:
        return int(S.shape[1 - axis])
    side = ("row", "column")[axis]
    if np.shape(observed) != (S.shape[axis],):
        raise ValueError(
            f"observed must have one count for each of the {S.shape[axis]} {side}s, got shape {np.shape(observed)}"
        )
    if (flagged > observed).any():
        k = int(np.argmax(flagged > observed))
        raise ValueError(
            f"{side} {k} has {count(flagged[k], 'entry', 'entries')} among the outliers (S), but observed is "
            f"{observed[k]}: give the number of observed entries of each {side} of this S"
        )
    return observed


def _compute_surprise(flagged: Array, observed: Array, broken: float) -> tuple[float, Array]:
    """The usual share, and the logarithm of the probability that a usual line has as many flagged entries or more."""
    seen = observed > 0
    log_tails = np.zeros(len(observed))
    if not seen.any():
        return 0.0, log_tails
    k, n = flagged[seen], observed[seen]
    # Of two medians the lower: the other may be broken. Where most lines have no outliers, the usual share is not 0: k
    # is the median of a binomial of about this share.
    share = float(np.quantile((k + 0.7) / (n + 1.4), 0.5, method="lower"))
    usual = k / n <= np.quantile(k / n, 0.5, method="lower")
    for _ in range(ROUNDS):
        log_tails[seen] = _compute_log_tails(k, n, share, _estimate_correlation(k[usual], n[usual], share))
        usual = false_discovery_control(np.exp(log_tails[seen])) > broken
        before, share = share, float((k[usual].sum() + 0.5) / (n[usual].sum() + 1))  # never exactly 0 or 1
        if share == before:
            break
    return share, log_tails


def _estimate_correlation(k: Array, n: Array, share: float) -> float:
    """ρ of usual lines, by moments; chance alone gives 0."""
    excess = (k - n * share) ** 2 / (n * share * (1 - share)) - 1
    return float(np.clip(excess.sum() / max((n - 1).sum(), 1), 0, 0.99))


def _compute_log_tails(k: Array, n: Array, share: float, correlation: float) -> Array:
    """log P(X ≥ k) for X binomial, or nearly beta-binomial: a beta distribution of the same mean and variance."""
    some = np.maximum(k, 1)  # none or more is certain, see below
    if correlation == 0:
        logs = _compute_log_betainc(some, n - some + 1, np.full(len(k), share))
    else:
        worth = np.maximum(n / (1 + (n - 1) * correlation) - 1, 1e-9)
        logs = _compute_log_betainc((1 - share) * worth, share * worth, 1 - (some - 0.5) / n)
    return np.where(k > 0, np.minimum(logs, 0.0), 0.0)


def _compute_log_betainc(a: Array, b: Array, x: Array) -> Array:
    """The logarithm of the incomplete beta function, also where that underflows."""
    values = betainc(a, b, x)
    with np.errstate(divide="ignore"):
        logs = np.log(values)
    # Its series begins with this; so far out the other terms are close to a geometric series.
    first = a * np.log(x) + b * np.log1p(-x) - np.log(a) - betaln(a, b)
    ratio = np.minimum((a + b) / (a + 1) * x, 0.9)
    return np.where(values > LEAST, logs, first - np.log1p(-ratio))
