"""Every constant of the default solver, with its source.

HEART is the design note in which values were measured (section 3 for the fit); "prototype" is its program.
"""

# The noise model (noise.py)
SHARES = (0.80, 0.15, 0.05)  # of the clean components at first, and as a weak prior; prototype
SHARES_WEIGHT = 0.02  # of all entries: how much that prior counts; prototype
GROSS_AT_FIRST = 0.3  # share of gross errors to begin with; prototype
GROSS_LIMITS = (1e-4, 0.95)  # between which it stays; prototype
BROAD = 6.0  # times s: gross errors are at least so broad, or they would be noise; prototype
HEAVY = 0.5  # share of Cauchy errors among the gross ones, at first: either kind may be there
BEYOND = 6.0  # times s: what is so far from L is no error of L
FALL = 1.3  # the factor by which s may fall in a sweep: graduated non-convexity; HEART 3
AT_REST = 1.02  # s has come to rest when its estimate is within this factor; prototype
SCALE_LIMITS = (1e-5, 1e5)  # of the variance of a line, relative to the usual: beyond, it is not noise
BROKEN_NOISE = (
    5.0  # standard deviations among log variances of lines, beyond which one is broken: 1 in 3 million if normal
)
LEAST_BROKEN_NOISE = 2.2  # log of the variance ratio of 3 standard deviations: no line less noisy is broken
FEW_NOISY = 0.05  # of all lines: if more are so noisy, lines differ in their noise, and none is broken
LOG_VARIANCE = 3.0  # over t: sampling variance of the log variance of t entries; 2 if Gaussian, more with tails
NOISE_STARTS = ((0.5, 1.0), (0.2, 3.0), (0.05, 12.0))  # (quantile, factor) that s starts from; prototype
NOISE_STEPS = 40  # of EM in one dimension
NOISE_AT_REST = 1e-4  # nats that a step gains, below which they end: a fiftieth of what counts
NOISE_GAIN = 0.005  # nats by which another mixture must be better; prototype
NOISE_LOOK = 5_000  # residuals to look at: the scale is known to 1 % then
AFRESH = (8, 16, 32, 64)  # sweeps after which the mixture is looked for afresh; HEART 3 (c)

# Factors (factors.py)
DIRECTIONS = 20  # offered to rank="auto"; those that nothing speaks for die out; prototype
KEPT = 12  # of those of a start; prototype
NEW = 0.6  # times the root of the spread: standard deviation of new directions; prototype
PATIENCE = 3  # sweeps before priors are learned: at first the factors know nothing; prototype
OWN_SCALES = 10  # sweeps before rows and columns get noise scales of their own; prototype
SWEEPS = 100  # at most; HEART 3: fits take 40 to 100
SETTLED = 20  # sweeps before a small step ends a fit
STEP = 3e-5  # relative, that ends it; prototype
ALIVE = 3.0  # times the energy at which noise hides a component: weaker ones cost more than they bring (Gavish and
# Donoho 2014)
ROUNDING = 1e-14  # relative, of eigenvalues
REPEATED = 1e-6  # relative singular value below which a feature repeats others, once the constant is among them
RESCUES = 1  # times that lines which went astray are fitted afresh
ASTRAY = 0.5  # of the usual share of believed entries: a line with less may have settled on its own errors
NOISIER = 100.0  # times the usual variance: the same
FEW_LINES = 0.2  # of all lines: if more go astray, it is not the lines
PLACING = 1.7  # the factor by which the scale falls for lines that were not in the fit
LAST = 4  # passes at the last scale
AS_GOOD_AS_EXACT = 1e-5  # of the spread of a column: noise below is not told from none, but by an exact fit; prototype

# The judge (choice.py)
NAT = 1.0  # of log density, within which the absolute error decides; HEART 3
STANDARD_ERRORS = 2.0  # within which two fits are as good; HEART 3
AS_GOOD = 0.02  # relative difference of the error that is none: errors on one side shift L to be as much better
DISAGREE = 0.1  # of the lines may disagree with their features before features are called imperfect; HEART 4
HELD_OUT = 0.1  # of the entries; HEART 3
MOST = 0.5  # of them as good as exact: no other fit can have more

# Proposals (solvers/irpca.py)
RACE_ENTRIES = 12_000  # of the sub-table on which proposals race
MORE_ENTRIES = 4.0  # times as many where components are few, or where few entries are observed
RACE_STEP = 3e-4  # relative step of L that ends a fit in the race
SAME = 3e-3  # relative distance of two fits that came to the same end: ten times the last step of each
FEW = 5  # directions of the simplest model without features
WIDER = 3.0  # times the noise of a fit: where another begins that starts from it
NARROWEST = 1e-3  # of the spread of the entries: no start is believed to be closer
MODES = (0.5, 0.2)  # shares of the residuals whose shortest interval is taken for the clean ones; HEART 3 (d)
OFF_CENTRE = 0.25  # of that interval's half width: a mode nearer to zero is no other start
STUDENT = 2.0  # degrees of freedom of the noise where gross errors hide within it; HEART 3 (f)
PILE = 0.02  # of the entries: a value that occurs as often may be stuck; prototype
PILE_EXCESS = 20.0  # times as often as the number that a typical entry holds; prototype

# The exact proposal (solvers/exact.py)
TRIM_STARTS = ((0.3, 8.0), (0.05, 15.0), (0.05, 40.0))  # (quantile, factor) of the threshold; FINDINGS 4
TRIM_STEPS = 40  # iterations of one start, and of conjugate gradients; those that succeed need 4 to 12; FINDINGS 4
DECAY = 5.0  # a threshold that falls faster trims lines that lag behind, and they never come back; FINDINGS 9
CLOSE = 0.1  # of the smallest singular value of L: a step this long keeps to the matrices of its rank
ROOM = 1000.0  # times rounding: what is no larger is no gross error either
LEAST_CLEAN = 0.03  # share of the entries that must be clean; FINDINGS 4: 97 % corrupted fails
ENTRIES_PER_UNKNOWN = 3.0  # clean ones, the least to believe an exact fit
TOLD_APART = 1e-3  # of the spread of L: rounding beyond it cannot be told from noise
SIGN = 0.01  # share of the entries at rounding, without which an exact fit is not looked for on larger blocks
FEWEST = 20  # entries met to rounding, the least to call a fit exact
BLOCK_LOOK = 1 << 13  # entries of a block by which its threshold is set
LOOK = 1 << 15  # entries of M by which fits are judged
HARDLY_PREDICTED = 0.05  # adjusted R² below which features narrow a prediction by less than 3 %, 1 − sqrt(1 − R²)
NEARLY_ALL = 0.95  # of the entries hold one number: the table is that number, and the others are gross errors

# The finish (solvers/irpca.py)
FINAL_STEP = 1e-4  # relative step of L that ends the fit to all of M
FINAL_SWEEPS = 40  # at most
LARGE_SWEEPS = 3  # the same where M is too large to be taken into memory
LARGE_STEPS = 2  # of least squares there, where features say all
LITTLE_LEFT = 0.1  # of the standard error of L: what may be left of the way then; it adds 0.5 % to the error
EQUAL_NOISE = 0.1  # standard deviation of the log variances of lines, up to which one scale serves all: 5 % of it
WHOLE = 1 << 24  # entries, observed or not, up to which all of M is taken into memory in units of its columns
NEARLY_EXACT = 10.0  # times the least that noise can fall to: below, an exact fit is looked for
GAUSSIAN = 0.9  # share of the narrowest component, from which on noise is Gaussian enough for plain least squares
POLISH = 40  # sweeps of least squares on what is kept, in search of an exact fit
STANDS_OUT = 10.0  # times the edge of the noise: singular values of an exact fit
LOOSE = 1e20  # times the largest square of a factor: the variance of a prior that says nothing
TYPICAL = 4.0  # standard deviations, for the one threshold that is reported beside the probabilities

# Calibration (calibration.py)
CALIBRATION_ENTRIES = 1 << 17  # residuals at most by which it is made: a share of 1 % is known to 3 % of itself
CELLS_PER_DOUBLING = 8  # cells of |z| (9 % wide): finer than any feature wanted, some 70 cells in all
STEPS_PER_DOUBLING = 64  # of scales and tables (1.1 %): below the error of a scale at n = 10,000
COARSE_SCALES, FINE_SCALES = 4, 6  # first every 4th scale is tried, then 6 steps (6.7 %) about the best of each shape
POWERS = tuple(2.0 ** (k / 10) for k in (*range(-5, 11), 13, 18, 26))  # exp(−|x|^p): p = 0.71 … 2 by 7 %, to 6
TAILS = tuple(0.02 * k for k in range(1, 34))  # Student, 1 / degrees of freedom: 50 … 1.5 of them
SPREADS = tuple(0.15 + 0.085 * k for k in range(10))  # Gaussian times exp(s · normal): unequal noise, s to 1
FENCE = 2.0  # log2 of the fence in clean medians: 4 of them are Tukey's fence of 1.5 interquartile ranges
MOST_SHIFT = 1.45  # log2 of (median of all / of the clean): 40 % far errors in Student noise of 2 df give 1.38
MODEL_ERROR = 0.02  # the noise density is trusted to 2 % per cell: more than 1 / 0.02² entries add no certainty
EXCESS_PRICE = 0.6  # Occam factor of a free excess, log-uniform over 2 decades: log(log(100) / sqrt(2 pi)) = 0.61
LEAST_LIKELY = 1e-12  # no cell is called less likely than this: no tail is known better
TABLE_RANGE = (-14, 16)  # of log2(|x| / median), in tables

# The result (loop.py)
GLANCE = 1 << 8  # entries: if all of these are zero, all of M may be
LEAST_LIMIT = 1e-3  # times the noise: what is less is rounding of an all but exact fit (1e-8 of the spread of M)
UNKNOWN = 0.5  # of the prior variance of L: a line with few entries whose posterior is wider is not known

# Checks of a finished fit (verdict.py)
CHECK_ENTRIES = 1 << 15  # at random: correlations of them are known to 0.006
CHECK_PAIRS = 1 << 12  # of neighbouring entries: a correlation is known to 0.016
CHECK_EXACT = 1 << 13  # where there is no noise, a glance will do
CHECK_LINES = 256  # rows and columns of the block in which singular values are looked at
CHECK_SUSPECTS = 128  # lines, those with the most outliers, in which lost directions are looked for
CHECK_ACROSS = 1 << 12  # of their entries, at most
SURE = 5.0  # standard errors: about one false alarm in three million, so a dozen checks need no other correction
MOVED = 0.02  # between the fits to nine tenths and to all entries: 28 of 38 wrong answers, 4 of 362 right ones; HEART 3
DISAGREEMENT = 0.05  # relative, between fits that did as well; and more than ...
STATISTICAL = 1.0  # ... times the standard error of L: noise is the same for all of them
LOST = 0.25  # of the smallest moment of a line that should be left; HEART 3
LOST_DRAWS = 100  # times that as many entries are dropped at random, to see what is left then
PILED = 0.02  # of the entries at one value
PILED_AT_BOUND = 5.0  # times as often as the five values next to it: bounds of rounded data are rarer than those
COARSE = 2.0  # steps of rounding per standard deviation: a third of the variance of the residuals is rounding
GROWS = 0.15  # rank correlation of |residual| and |L|: noise that doubles over the range of L has about 0.25
CORRELATED = 0.2  # of residuals next to each other: the variance of sums of them is half as large again
MANY_OUTLIERS = 0.25  # of the entries ...
MANY_SEPARATED = 0.45  # ... or as many, if hardly any residual is near the limit
NEAR_LIMIT = 1.5  # the factor within which a residual is near the limit
FEW_NEAR = 0.02  # as many of them, relative to the outliers, is hardly any
LITTLE = 0.5  # of the energy of the entries that are not outliers
WEAK = 2.0  # times the share of L that as many random features explain
NOWHERE = 0.02  # of the energy in half of the lines: there is nothing; of normal deviations it would be 7 %
LEFT_OVER = 1.1  # times the largest singular value that noise of these variances has
OUTSIDE = 1.0  # times the range of the entries, beyond it
BROKEN = 0.5  # of the entries of a line are outliers
