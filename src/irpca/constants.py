"""Every constant of the default solver, named after what it decides, with the source of its value.

Where a comment does not say it, the source is in the section of docs/design.md that the group names. A line is a row or
a column; s is the scale of the noise. How much depends on each value: ``python -m lab.experiments.sensitivity``.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How many entries are looked at, and how many are held in memory: the section Budgets of the same page."""

    memory: int = 16_777_216  # entries of M, observed or not, up to which all of M is held in memory
    block: int = 4_194_304  # entries of a block that is read at once: 32 MB
    sample: int = 131_072  # residuals of which a peak or a distribution is made: 1 % of them is known to 3 % of itself
    judged: int = 32_768  # scattered entries by which a fit is judged and checked: a correlation is known to 0.006
    few: int = 5_000  # entries that tell a scale to 1 %, a correlation to 0.014, and whether 1 % are clean
    lines: int = 512  # rows and columns of a block that is looked at whole, such as to see whether components lack
    race: int = 12_000  # entries of the part on which candidate fits are compared. A choice: all of them in seconds
    wider: float = 4.0  # times as many, where components or observed entries are few. A choice
    fewest: int = 20  # entries from which anything is concluded: a fit is exact, a column has a unit. A choice


BUDGET = Budget()


@dataclass(frozen=True)
class KindsOfColumns:
    """When a column holds numbers, few ordered values or a pile: the section Kinds of columns of docs/design.md."""

    few: int = 12  # values that most cells hold: ordered ones, not measurements. A choice: months are, hours are not
    most: int = 32  # ordered values in one column. A choice
    bulk: float = 0.9  # of the cells hold these values: the others may be mistakes
    frequent: float = 0.005  # of the cells hold the rarest of these values
    pile: float = 0.05  # of the cells share a value near an end of the bulk: it is a bound
    beyond: float = 0.05  # of the cells may be beyond it: they are mistakes, or few
    pile_ratio: float = 5.0  # times as often as a typical value: else all values are repeated
    gain: float = 0.01  # nats a cell by which a map must be closer to a Gaussian than none: less is not seen in a fit
    near_zero: float = 20.0  # the smallest values over the unit of a map from zero: nearly a power, and finite at zero
    finest: float = 0.05  # standard deviations: no relation of mapped columns is known better. In 42 public tables as
    # they are 4 % of the cells are listed with 0.03, 0.5 % with 0.05; with 0.1 expected values are a tenth worse
    rare: float = 0.005  # of the cells hold a value: it is one of these even far from the others. See frequent
    on_grid: tuple[float, float] = (0.17, 61.0)  # shape and rate of the gamma distribution of the share of other values
    off_grid: tuple[float, float] = (0.084, 123.0)  # and of values off their grid, in 83 public tables as they are
    repeated: int = 3  # cells that share a value off the grid of the others: it is no slip. A choice
    slips: float = 0.01  # of the cells may be below zero in a column of amounts: their sign is wrong
    tail: float = 0.1  # times as many cells as the value before: that is how counts decline, not how mistakes begin
    unknown: float = 4.5  # standard deviations that such a cell counts for, in scores: it is likely wrong, not certain
    # Standard deviations that knots span; beyond, a map goes on as a logarithm. In log-normal tables with 1 % errors up
    # to 24 % of a list at fdr = 0.05 are false with 4, 10 % with 5.5, 7 % with 8; in ten public tables with 5 %
    # mistakes the average precision is 0.784 with 4, 0.781 with 5.5 and 0.779 with 8
    reach: float = 6.0  # and as far apart are the middles of columns that are alike. A choice
    levels: float = 3.0  # standard deviations up to which noise grows with what is expected: few cells are beyond
    thinned: int = 200  # quantiles stand for a column of more values: the tails of a map are set by half a percent
    better: float = 0.02  # nats a cell by which what is less simple must predict better. A choice
    far_better: float = 0.1  # the same where most cells are wrong, and with them what was found of columns. A choice
    most_gain: float = 3.0  # nats that one cell counts for at most: mistakes are predicted by none
    alike: float = 10.0  # times the usual spread: columns that differ by more do not share a map
    columns: int = 5_000  # rows from which kinds are found: a share of 10 % is known to 0.4 %


KINDS = KindsOfColumns()


@dataclass(frozen=True)
class NamedMistakes:
    """When an outlier has a name: the section Named mistakes of docs/design.md."""

    any_size: float = 1e6  # half of the wrong values are of a size even in its logarithm, as many times as COMMON goes
    group: int = 3  # cells that share a code, a factor, a run or a row with another: two may do so by chance. A choice
    chance: float = 0.01  # of a group anywhere in the table: one false alarm in a hundred tables
    columns: int = 32  # in which equal rows are looked for: to sort more takes longer than it helps. A choice
    rounding: float = 1e-6  # relative: the numbers may have been in single precision


MISTAKES = NamedMistakes()

# What several rules share
MAJORITY = 0.5  # more than half: of held-out entries as good as exact, of a line wrong, of the variance of L known
MAX_RATIO = 100.0  # times as large as what is usual: not of the same kind, be it a unit, a noise, or an expected value
MAX_ODD_LINES = 0.1  # of all lines may be unlike the others; if more are, that is how lines are. A choice
SIGNIFICANT_STANDARD_ERRORS = 5.0  # one false alarm in three million, so a dozen checks need no other correction
MAX_STEPS = 40  # of an inner iteration; those that succeed need 4 to 12

# The noise model (model/noise.py); docs/design.md, Noise model
CLEAN_SHARES = (0.80, 0.15, 0.05)  # of the clean components at the start, and as a weak prior
CLEAN_SHARES_WEIGHT = 0.02  # of all entries: the weight of that prior
INITIAL_GROSS_SHARE = 0.3  # share of gross errors at the start
GROSS_LIMITS = (1e-4, 0.95)  # between which it stays
INITIAL_CAUCHY_SHARE = 0.5  # of Cauchy errors among the gross ones, at the start: either kind may occur
MAX_CLEAN_RESIDUAL = 6.0  # times s: a larger residual is a gross error, not an error of L; nor are these narrower
MAX_SCALE_DECREASE = 1.3  # factor by which s may decrease in a sweep: graduated non-convexity
SCALE_CONVERGED = 1.02  # s has converged when its estimate is within this factor
LINE_VARIANCE_LIMITS = (1e-5, 1e5)  # of the variance of a line, relative to the median: beyond, it is not noise
MAX_NOISY_LINES = 0.05  # of all lines may be that noisy without a doubt: not all of their gross errors are listed
MIN_NOISY_LINE_LOG_RATIO = 2.2  # log of the variance ratio of 3 standard deviations: no line less noisy is broken
LOG_VARIANCE_SAMPLING = 3.0  # over t: sampling variance of the log variance of t entries; 2 if Gaussian, else more
MIN_EM_GAIN = 1e-4  # nats: a smaller gain ends its steps, and is no reason for another mixture
NOISE_RESTART_SWEEPS = (
    8,
    16,
    32,
    64,
)  # sweeps after which the mixture is fitted anew, from the peak of residuals

# Factors (model/factors.py); docs/design.md, Factors and sweeps
FIRST_COMPONENTS = 20  # offered to rank="auto" at first; those without support in the data shrink to nothing
USED_UP = 0.65  # of the components offered: where a fit uses or lacks more, more are offered
LINES_PER_COMPONENT = 12  # rows and columns of the part on which more are compared
NEW_COMPONENT_SCALE = 0.6  # times the root of s: standard deviation of new, random components
SWEEPS_BEFORE_PRIORS = 3  # before priors are learned: the first factors carry no information
SWEEPS_BEFORE_LINE_SCALES = 10  # before rows and columns get noise scales of their own
MAX_SWEEPS = 100  # fits take 40 to 100
MIN_SWEEPS = 20  # before a small step ends a fit
MIN_COMPONENT_ENERGY = 3.0  # times the energy at which noise hides a component: a weaker one adds more error than it
# removes (Gavish and Donoho 2014)
ROUNDING = 1e-14  # relative, of eigenvalues
MIN_FEATURE_SINGULAR_VALUE = 1e-6  # relative: below, a feature is collinear with others, the constant among them
MIN_DETECTABLE_NOISE = 1e-5  # of the spread of a column: only an exact fit can tell less noise from none

# Comparison of fits by held-out entries (model/choice.py); docs/design.md, Comparison of fits
TIE_STANDARD_ERRORS = 2.0  # within which two fits are equally good
ERROR_TOLERANCE = 0.02  # relative difference of errors that is ignored: one-sided errors bias L by as much

# Candidate fits (solvers/race.py, solvers/part.py); docs/design.md, Starts
COMPARED_LINES_PER_FEATURE = 4  # at least, as for an exact fit (solvers/blocks.py)
COMPARISON_TOLERANCE = 3e-4  # relative step of L that ends a candidate fit
SIMPLE_MODEL_RANK = 5  # components of the simplest model without features
START_SCALE_FACTOR = 3.0  # times the noise of a fit: where another begins that starts from it
MIN_START_SCALE = 1e-3  # of the spread of the entries: no start is trusted to be closer
MODE_SHARE = 0.2  # of the residuals, whose shortest interval is taken for the clean ones
MIN_MODE_OFFSET = 0.25  # of that interval's half width: a mode nearer to zero is no other start
MIN_REPEATED_SHARE = 0.02  # of the entries: a value that occurs as often may be stuck
MIN_REPEATED_RATIO = 20.0  # times as often as the value of a typical entry

# The exact fit (solvers/trimmed.py, model/peaks.py); docs/design.md, Exact fit
WIDTH_STEP = 1.15  # from one width of the peak to the next
PEAK_SHARE = 0.95  # of the peak is within the width taken for it, ...
PEAK_MARGIN = 2.0  # ... and nearly all of it within so many times that width: 4 standard deviations, if it is Gaussian
NARROWER = 0.75  # times the width of the peak on a block a quarter as large: half as wide if it is an error of the fit
MAX_STEPS_WITHOUT_GAIN = 2  # before a threshold that falls no more ends a fit
MAX_LINE_ROUNDS = 8  # that lines which do not fit are fitted anew, by themselves
ROW_SUBSETS = 64  # random ones of a row, of as many entries as components: an exact fit in half of them is sure to show
THRESHOLD_DECAY = 5.0  # a faster one trims lines that converge slowly, and they stay trimmed
# The next two: of 168 exact problems with 5 to 85 % corrupted, as many were recovered as with stricter ones.
COARSEST_STEP = 0.1  # of the gradient may conjugate gradients leave far from the solution: the step is truncated anyway
FIXED_RANK_STEP = 0.3  # of the smallest singular value of L: a shorter step keeps to the matrices of its rank
ROUNDING_SPREAD = 8.0  # times rounding at most of the entries: it may be so large at others
ROUNDING_MARGIN = 1000.0  # times rounding: a smaller residual is no gross error either
MIN_REMAINING_MOMENT = 0.25  # of the smallest moment of a line that inliers should retain
MIN_ENTRIES_PER_UNKNOWN = 2.0  # clean ones, before an exact fit is accepted: it may meet one for each by itself
MAX_RELATIVE_ROUNDING = 1e-3  # of the spread of L: larger rounding cannot be distinguished from noise
MIN_CONSTANT_SHARE = 0.95  # of the entries equal to one number: L is that number, and the others are gross errors

# The fit to all of M (solvers/bayes.py); docs/design.md, Fit to all of M
FINAL_TOLERANCE = 1e-4  # relative step of L that ends the fit to all of M
MAX_REMAINING_STEP = 0.1  # of the standard error of L: the next step may be so long; it adds 0.5 % to the error
EQUAL_NOISE_SPREAD = 0.1  # standard deviation of the log variances of lines, up to which one scale serves all (5 %)
NEARLY_EXACT_NOISE = 10.0  # times the least possible s: below, an exact fit is tried
MIN_GAUSSIAN_SHARE = 0.9  # of the narrowest component, from which on noise is Gaussian enough for plain least squares
REPORTED_THRESHOLD = 4.0  # standard deviations, for the one threshold that is reported beside the probabilities

# Calibration (model/calibration.py); docs/design.md, Calibration
BINS_PER_DOUBLING = 8  # bins of |z| (9 % wide): finer than any feature wanted, some 70 bins in all
STEPS_PER_DOUBLING = 32  # of scales and tables (2.2 %): averaged over, below the error of a scale at n = 10,000
POWER_EXPONENTS = (0.7, 4.0, 14)  # exp(−|x|^p), p from, to, how many: Laplace, Gaussian, lighter tails
UNSEEN_FACTOR = 1.5  # times the largest residual of a fit: nothing of the kind was seen
STUDENT_TAILS = (0.02, 0.66, 17)  # 1 / degrees of freedom, likewise: 50 … 1.5 of them
LOG_NORMAL_SPREADS = (0.15, 0.95, 9)  # Gaussian times exp(s · normal), likewise: unequal noise
TUKEY_FENCE = 2.0  # log2 of the fence in clean medians: 4 of them are Tukey's fence of 1.5 interquartile ranges
SKEWNESS_ERROR = 1.07  # over √n: standard error of Bowley's skewness for Gaussian noise, by simulation
MAX_MEDIAN_SHIFT = 1.45  # log2 of (median of all / of the clean): 40 % far errors in Student noise of 2 df give 1.38
NOISE_DENSITY_ERROR = 0.02  # relative, per bin: more than 1 / 0.02² entries add no certainty
EXCESS_PENALTY = 0.6  # Occam factor of a free excess, log-uniform over 2 decades: log(log(100) / sqrt(2 pi)) = 0.61
MIN_BIN_PROBABILITY = 1e-12  # of clean noise: no tail is known better
TABLE_RANGE = (-14, 16)  # of log2(|x| / median), in tables

# The result (loop.py)
MIN_OUTLIER_LIMIT = 1e-3  # times the noise: less is rounding of an all but exact fit (1e-8 of the spread of M)

# Cells that a fit has not seen (solvers/crossfit.py), and checks of a finished fit (verdict.py); docs/design.md, Checks
FOLDS = 5  # a fit to four fifths of the cells is much like one to all of them, and five are quick. A choice
MAX_ERROR_RATIO = 0.9  # of expected values to column medians, with which they are worth using: closer by a tenth
COVERED_BY_INTERVALS = (0.90, 0.98)  # of unseen cells, that 95 % intervals may hold: 2 to 10 % are outside
MIN_NOISE_GROWTH = (
    1.5  # in size, over the quarters of L: below, the limit of an outlier is less than half off. A choice
)
MAX_OUTLIER_SHARE = 0.45  # of the entries: with more, a fit to the outliers is hardly worse than one to the others
MIN_SMALLER_HALF_ENERGY = 0.02  # in the half of the lines that has the least; of normal deviations it would be 7 %
NOISE_EDGE_FACTOR = 1.1  # times the largest singular value of noise of these variances: larger ones are structure
