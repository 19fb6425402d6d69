"""Which entries are wrong and how sure that is, and which rows and columns are worse than the others.

All of it from what a fit leaves behind: S, the noise, the threshold ζ and how many entries were observed. That is
enough because S holds every entry beyond ζ, and the others need only be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .lowrank import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

STEP = 0.01  # width, in standard deviations, of the bins in which residuals are counted
FAR = 12.0  # standard deviations: noise is never so large, so nothing is gained by bins beyond
BROKEN = 0.05  # of the rows or columns called broken, the share that may be there by chance
ROUNDS = 50  # of leaving broken lines out and looking again; a handful is usual
LEAST = 1e-280  # a probability below this is near underflow: its logarithm is taken another way

ENTRY = np.dtype([("score", float), ("confidence", float), ("q_value", float)])
LINE = np.dtype(
    [
        ("position", np.intp),
        ("observed", np.intp),
        ("flagged", np.intp),
        ("share", float),
        ("expected", float),
        ("score", float),
        ("q_value", float),
        ("broken", bool),
        ("mean_size", float),
        ("mean_signed", float),
    ]
)


def score_entries(S: csr_array, noise: float | None, zeta: float, n_observed: int | None = None) -> Array:
    """How large and how sure each flagged entry is.

    Parameters
    ----------
    S : csr_array of shape (n1, n2)
        M − L at every observed entry where that exceeds ``zeta``.
    noise : float or None
        Standard deviation of the noise. 0: the fit is exact, up to rounding. None: unknown.
    zeta : float
    n_observed : int or None
        How many entries of M were observed; None for all.

    Returns
    -------
    structured array of shape (S.nnz,), in the order of ``S.data``
        ``score``: size in standard deviations of the noise; where that is 0 or unknown, in multiples of ``zeta``.
        ``confidence``: probability that the entry is a gross error rather than noise, one minus the local false
        discovery rate; it never falls as the score rises. ``q_value``: the smallest false discovery rate at which
        the entry is reported, see :func:`discoveries`. Without noise an entry beyond rounding is wrong for sure:
        1 and 0. With unknown noise both are NaN.

    Notes
    -----
    The noise is taken as Gaussian, with the same deviation everywhere: this is an assumption, and far out in the tails
    it matters. Noise with longer tails, or a deviation that is estimated too low, makes both figures too sure.
    A score does not depend on that.

    The local false discovery rate of residuals of size r is ``π0 f0(r) / f(r)``: the density of noise, times the share
    of clean entries, against the density of all residuals [1]_. The ratio ``f / f0`` is estimated as a step function
    that never falls with r (the Grenander estimator of the density of p-values, [2]_); its value for what is within ζ
    is π0, which is too high rather than too low if gross errors hide there.

    q-values are those of Benjamini and Hochberg with Storey's π0, at λ = P(noise > ζ) [3]_.

    References
    ----------
    .. [1] B. Efron, Large-Scale Inference, 2010, chapter 5.
    .. [2] K. Strimmer, A unified approach to false discovery rate estimation, BMC Bioinformatics 9:303, 2008.
    .. [3] J. D. Storey, J. E. Taylor and D. Siegmund, Strong control, conservative point estimation and simultaneous
       conservative consistency of false discovery rates, JRSS B 66:187, 2004, Theorem 3.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> S = csr_array([[0, 4.2, 0], [0, 0, -30.0]])
    >>> entries = score_entries(S, noise=1.0, zeta=4.0, n_observed=100_000)
    >>> entries["score"].tolist(), entries["confidence"].tolist()
    ([4.2, 30.0], [0.0, 1.0])
    """
    n_observed = _observed(S, n_observed)
    unit = _unit(noise, zeta)
    found = np.empty(S.nnz, ENTRY)
    found["score"] = np.abs(S.data.astype(float)) / unit
    if noise is None:
        found["confidence"] = found["q_value"] = np.nan
    elif noise == 0:
        found["confidence"], found["q_value"] = 1.0, 0.0
    else:
        found["confidence"] = 1 - _local_rates(found["score"], zeta / unit, n_observed)
        found["q_value"] = _q_values(found["score"], zeta / unit, n_observed)
    return found


def discoveries(entries: Array, fdr: float = 0.05) -> Array:
    """Which of ``score_entries`` to report so that, on average, no more than the share ``fdr`` of them is only noise.

    Parameters
    ----------
    entries : structured array
        From :func:`score_entries`.
    fdr : float between 0 and 1

    Returns
    -------
    array of bool

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> entries = score_entries(csr_array([[0, 4.2, 0], [0, 0, -30.0]]), noise=1.0, zeta=4.0, n_observed=100_000)
    >>> discoveries(entries, fdr=0.05).tolist()
    [False, True]
    """
    if not 0 < fdr < 1:
        raise ValueError(
            f"fdr is the share of false alarms that is allowed, between 0 and 1, such as 0.05; got {fdr!r}"
        )
    if np.isnan(entries["q_value"]).any():
        raise ValueError(
            "fdr needs to know the noise, and this solver does not tell it: use solver='irpca', or choose by score, "
            "which is in multiples of the threshold here"
        )
    kept: Array = entries["q_value"] <= fdr
    return kept


def score_lines(
    S: csr_array, axis: int, noise: float | None, zeta: float, observed: Array | None = None, broken: float = BROKEN
) -> Array:
    """The rows (``axis=0``) or columns (1) of M, those first that have more gross errors than the others explain.

    Parameters
    ----------
    S, noise, zeta : as in :func:`score_entries`
    axis : int
    observed : array of int, or None
        How many entries of each row, or column, were observed; None for all.
    broken : float between 0 and 1
        Of the lines called broken, the share that may be there by chance (false discovery rate).

    Returns
    -------
    structured array, one record for each line, the most surprising first
        ``position``: which row or column. ``observed``, ``flagged``, ``share``: its entries, how many of them are in S,
        and what share that is (NaN of nothing). ``expected``: the share that is usual, the same for all. ``score``:
        how surprising so many are, −log10 of the probability of as many or more in a usual line: 3 is one line in a
        thousand. ``q_value``, ``broken``: the smallest false discovery rate at which the line is reported, and whether
        that is below ``broken``. ``mean_size``, ``mean_signed``: means of ``|r|`` and of ``r`` over its flagged
        entries, in the unit of the score of entries (NaN if there are none): near each other in magnitude, all errors
        are to one side, as those of a sensor that drifted.

    Notes
    -----
    What is usual is found from the lines that are not broken: it begins with the median share, and is taken again from
    all lines that do not stand out, until these stay the same. So a few broken lines do not hide each other.

    Usual lines may differ by more than chance, and with many entries each any difference would be significant. So
    their counts are taken as beta-binomial, of variance ``n p (1 − p) (1 + (n − 1) ρ)`` with p and ρ from the usual
    lines; ρ = 0 is the binomial. A line is broken if it stands out of how much usual lines differ. Where a third of
    the lines are a little worse than the others, that is a difference between lines, and none of them is broken.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> S = np.zeros((50, 40))
    >>> S[np.arange(50), np.arange(50) % 40] = 9.0  # one gross error in each row
    >>> S[7, :30] = -5.0
    >>> first = score_lines(csr_array(S), axis=0, noise=1.0, zeta=4.0)[0]
    >>> first["position"].item(), first["flagged"].item(), first["broken"].item(), first["mean_signed"].item()
    (7, 30, True, -5.0)
    """
    if axis not in (0, 1):
        raise ValueError(f"axis must be 0 for rows or 1 for columns, got {axis!r}")
    line = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)) if axis == 0 else S.indices
    residuals = S.data.astype(float) / _unit(noise, zeta)
    n_lines = S.shape[axis]

    found = np.empty(n_lines, LINE)
    found["position"] = np.arange(n_lines)
    found["flagged"] = np.bincount(line, minlength=n_lines)
    found["observed"] = _observed_lines(S, axis, observed, found["flagged"])
    with np.errstate(invalid="ignore", divide="ignore"):
        found["share"] = found["flagged"] / found["observed"]
        found["mean_size"] = np.bincount(line, np.abs(residuals), n_lines) / found["flagged"]
        found["mean_signed"] = np.bincount(line, residuals, n_lines) / found["flagged"]
    found["expected"], log_tails = _surprise(found["flagged"], found["observed"], broken)
    found["score"] = -log_tails / np.log(10) + 0.0  # no -0.0
    seen = found["observed"] > 0
    found["q_value"] = 1.0
    found["q_value"][seen] = _adjusted(np.exp(log_tails[seen]), np.count_nonzero(seen))
    found["broken"] = found["q_value"] <= broken
    order = np.lexsort((found["position"], -found["flagged"], -found["score"]))
    return found[order]


def _observed(S: csr_array, n_observed: int | None) -> int:
    n_observed = S.shape[0] * S.shape[1] if n_observed is None else n_observed
    if n_observed < S.nnz:
        raise ValueError(f"n_observed is {n_observed}, but S alone has {S.nnz} entries")
    return n_observed


def _observed_lines(S: csr_array, axis: int, observed: Array | None, flagged: Array) -> Array | int:
    if observed is None:
        return int(S.shape[1 - axis])
    side = ("row", "column")[axis]
    if np.shape(observed) != (S.shape[axis],):
        raise ValueError(
            f"observed must have one count for each of the {S.shape[axis]} {side}s, got shape {np.shape(observed)}"
        )
    if (flagged > observed).any():
        k = int(np.argmax(flagged > observed))
        entries = "entry" if flagged[k] == 1 else "entries"
        raise ValueError(
            f"{side} {k} has {flagged[k]} {entries} in S, but observed says {observed[k]}: observed does not belong to "
            "this S and axis"
        )
    return observed


def _unit(noise: float | None, zeta: float) -> float:
    """What residuals are measured in: the noise, or where there is none to measure by, the threshold."""
    if noise is not None and not noise >= 0:
        raise ValueError(f"noise must not be negative, got {noise!r}; None if it is unknown")
    return noise or zeta or 1.0


def _local_rates(scores: Array, cut: float, n_observed: int) -> Array:
    """The share of noise among all residuals of about each size, never rising with it."""
    from scipy.optimize import isotonic_regression
    from scipy.special import ndtr

    edges = cut + STEP * np.arange(max(1, int(max(FAR - cut, 0) / STEP)))
    tails = 2 * ndtr(-np.concatenate([[0.0], edges, [np.inf]]))
    noise = np.maximum(tails[:-1] - tails[1:], np.finfo(float).tiny)  # the share of it in each bin
    bins = np.clip((scores - cut) / STEP, 0, len(edges) - 1).astype(int)
    # The first bin is all that is within the threshold: only its count is known, and only that is needed.
    counts = np.append(n_observed - len(scores), np.bincount(bins, minlength=len(edges)))
    excess = isotonic_regression(counts / n_observed / noise, weights=noise).x
    rates: Array = excess[0] / excess[1 + bins]
    return rates


def _q_values(scores: Array, cut: float, n_observed: int) -> Array:
    """Benjamini–Hochberg over all observed entries, from those beyond the threshold alone.

    What is within it has larger p-values than all of S, so the k-th smallest of S is the k-th smallest of all. Were
    the rule to go on beyond S, it would report all of S and more; stopping at S is part of Storey's rule, which looks
    no further than λ and takes π0 from what lies beyond it.
    """
    from scipy.special import ndtr

    inside = 1 - 2 * ndtr(-cut)
    clean = min(1.0, (n_observed - len(scores) + 1) / (n_observed * inside)) if inside > 0 else 1.0
    return _adjusted(2 * ndtr(-scores), n_observed * clean)


def _adjusted(p_values: Array, hypotheses: Any) -> Array:
    """The smallest false discovery rate at which each is rejected; larger p-values than these need not be listed."""
    order = np.argsort(p_values)
    rates = p_values[order] * hypotheses / np.arange(1, len(order) + 1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.minimum.accumulate(rates[::-1])[::-1], 1.0)
    return adjusted


def _surprise(flagged: Array, observed: Array, broken: float) -> tuple[float, Array]:
    """The usual share, and the logarithm of the probability that a usual line has as many flagged entries or more."""
    seen = observed > 0
    log_tails = np.zeros(len(observed))
    if not seen.any():
        return 0.0, log_tails
    k, n = flagged[seen], observed[seen]
    # Where most lines have none, none is not the usual share: of a binomial, k is the median at about this one.
    share = _lower_median((k + 0.7) / (n + 1.4))
    usual = k / n <= _lower_median(k / n)
    for _ in range(ROUNDS):
        log_tails[seen] = _log_tails(k, n, share, _correlation(k[usual], n[usual], share))
        usual = _adjusted(np.exp(log_tails[seen]), len(k)) > broken
        before, share = share, float((k[usual].sum() + 0.5) / (n[usual].sum() + 1))  # none is known to be 0 or 1
        if share == before:
            break
    return share, log_tails


def _lower_median(values: Array) -> float:
    """The median, and of two the lower: the other may be broken."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _correlation(k: Array, n: Array, share: float) -> float:
    """ρ of usual lines, by moments; chance alone gives 0."""
    excess = (k - n * share) ** 2 / (n * share * (1 - share)) - 1
    return float(np.clip(excess.sum() / max((n - 1).sum(), 1), 0, 0.99))


def _log_tails(k: Array, n: Array, share: float, correlation: float) -> Array:
    """log P(X ≥ k) for X binomial, or nearly beta-binomial: a beta distribution of the same mean and variance."""
    some = np.maximum(k, 1)  # none or more is certain, see below
    if correlation == 0:
        logs = _log_betainc(some, n - some + 1, np.full(len(k), share))
    else:
        worth = np.maximum(n / (1 + (n - 1) * correlation) - 1, 1e-9)
        logs = _log_betainc((1 - share) * worth, share * worth, 1 - (some - 0.5) / n)
    return np.where(k > 0, np.minimum(logs, 0.0), 0.0)


def _log_betainc(a: Array, b: Array, x: Array) -> Array:
    """The logarithm of the incomplete beta function, also where that underflows."""
    from scipy.special import betainc, betaln

    values = betainc(a, b, x)
    with np.errstate(divide="ignore"):
        logs = np.log(values)
    # Its series begins with this; so far out the other terms are close to a geometric series.
    first = a * np.log(x) + b * np.log1p(-x) - np.log(a) - betaln(a, b)
    ratio = np.minimum((a + b) / (a + 1) * x, 0.9)
    return np.where(values > LEAST, logs, first - np.log1p(-ratio))
