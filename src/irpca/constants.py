"""Every constant of the default solver, with its source.

HEART is the design note in which values were measured (section 3 for the fit); "prototype" is its program.
"""

# The noise model (noise.py)
SHARES = (0.80, 0.15, 0.05)  # of the clean components at first, and as a weak prior; prototype
SHARES_WEIGHT = 0.02  # of all entries: how much that prior counts; prototype
GROSS_AT_FIRST = 0.3  # share of gross errors to begin with; prototype
GROSS_LIMITS = (1e-4, 0.95)  # between which it stays; prototype
BROAD = 6.0  # times s: gross errors are at least so broad, or they would be noise; prototype
FALL = 1.3  # the factor by which s may fall in a sweep: graduated non-convexity; HEART 3
AT_REST = 1.02  # s has come to rest when its estimate is within this factor; prototype
SCALE_LIMITS = (1e-5, 1e5)  # of the variance of a line, relative to the usual: beyond, it is not noise
LOG_VARIANCE = 3.0  # over t: sampling variance of the log variance of t entries; 2 if Gaussian, more with tails
NOISE_STARTS = ((0.5, 1.0), (0.2, 3.0), (0.05, 12.0))  # (quantile, factor) that s starts from; prototype
NOISE_STEPS = 40  # of EM in one dimension
NOISE_GAIN = 0.005  # nats by which another mixture must be better; prototype
NOISE_LOOK = 20_000  # residuals to look at
AFRESH = (8, 16, 32, 64)  # sweeps after which the mixture is looked for afresh; HEART 3 (c)

# Factors (factors.py)
DIRECTIONS = 20  # offered to rank="auto"; those that nothing speaks for die out; prototype
KEPT = 12  # of those of a start; prototype
NEW = 0.6  # times the root of the spread: standard deviation of new directions; prototype
PATIENCE = 3  # sweeps before priors are learned: at first the factors know nothing; prototype
OWN_SCALES = 10  # sweeps before rows and columns get noise scales of their own; prototype
SWEEPS = 150  # at most; prototype
SETTLED = 20  # sweeps before a small step ends a fit
STEP = 3e-5  # relative, that ends it; prototype
COMMON = 10  # sweeps in which all directions share one prior variance: none may die while the noise is not known
DEAD = 1e-3  # times the edge of noise: directions weaker than that are dropped
ROUNDING = 1e-14  # relative, of eigenvalues
REPEATED = 1e-6  # relative singular value below which a feature repeats others, once the constant is among them
RESCUES = 1  # times that lines which went astray are fitted afresh
ASTRAY = 0.5  # of the usual share of believed entries: a line with less may have settled on its own errors
NOISIER = 100.0  # times the usual variance: the same
FEW_LINES = 0.34  # of all lines: if more go astray, it is not the lines
PLACING = 1.7  # the factor by which the scale falls for lines that were not in the fit
LAST = 4  # passes at the last scale
AS_GOOD_AS_EXACT = 1e-5  # of the spread of a column: noise below is not told from none, but by an exact fit; prototype

# The judge (choice.py)
NAT = 1.0  # of log density, within which the absolute error decides; HEART 3
STANDARD_ERRORS = 2.0  # within which two fits are as good; HEART 3
HELD_OUT = 0.1  # of the entries; HEART 3

# Proposals (solvers/irpca.py)
RACE_ENTRIES = 12_000  # of the sub-table on which proposals race
RACE_STEP = 3e-4  # relative step of L that ends a fit in the race
FEW = 5  # directions of the simplest model without features
WIDER = 3.0  # times the noise of a fit: where another begins that starts from it
NARROWEST = 1e-3  # of the spread of the entries: no start is believed to be closer
MODES = (0.5, 0.2)  # shares of the residuals whose shortest interval is taken for the clean ones; HEART 3 (d)
OFF_CENTRE = 0.25  # of that interval's half width: a mode nearer to zero is no other start
STUDENT = 2.0  # degrees of freedom of the noise where gross errors hide within it; HEART 3 (f)
PILE = 0.02  # of the entries: a value that occurs as often may be stuck; prototype
PILE_EXCESS = 20.0  # times the median of its neighbours; prototype

# The exact proposal (solvers/exact.py)
TRIM_STARTS = ((0.3, 8.0), (0.05, 15.0), (0.05, 40.0))  # (quantile, factor) of the threshold; FINDINGS 4
TRIM_STEPS = 40  # iterations of one start, and of conjugate gradients; those that succeed need 4 to 12; FINDINGS 4
DECAY = 5.0  # a threshold that falls faster trims lines that lag behind, and they never come back; FINDINGS 9
CLOSE = 0.1  # of the smallest singular value of L: a step this long keeps to the matrices of its rank
ROOM = 1000.0  # times rounding: what is no larger is no gross error either
LEAST_CLEAN = 0.03  # share of the entries that must be clean; FINDINGS 4: 97 % corrupted fails
ENTRIES_PER_UNKNOWN = 3.0  # clean ones, the least to believe an exact fit
FEWEST = 20  # entries met to rounding, the least to call a fit exact
BLOCK_LOOK = 1 << 13  # entries of a block by which its threshold is set
LOOK = 1 << 15  # entries of M by which fits are judged

# The finish (solvers/irpca.py)
FINAL_STEP = 1e-4  # relative step of L that ends the fit to all of M
FINAL_SWEEPS = 60  # at most
WHOLE = 1 << 24  # entries, observed or not, up to which all of M is taken into memory in units of its columns
NEARLY_EXACT = 1e-4  # noise, relative to the spread of L, below which an exact fit is looked for
POLISH = 40  # sweeps of least squares on what is kept, in search of an exact fit
STANDS_OUT = 10.0  # times the edge of the noise: singular values of an exact fit
LOOSE = 1e20  # times the largest square of a factor: the variance of a prior that says nothing
TYPICAL = 4.0  # standard deviations, for the one threshold that is reported beside the probabilities
