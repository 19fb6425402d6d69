"""The judge: what held-out entries say of several fits."""

from types import SimpleNamespace

import numpy as np

from irpca.choice import Candidate, HeldOut, Score, choose

ROWS, COLS = (index.ravel() for index in np.indices((40, 20)))
HELD = HeldOut(ROWS, COLS, np.zeros(len(ROWS)), np.full(len(ROWS), 1e-9))


def candidate(name, density, error, tied=(False, False), nu=np.inf):
    fit = SimpleNamespace(tied=tied, noise=SimpleNamespace(nu=nu, deviation=1.0, s=1.0))
    return Candidate(name, fit, Score(np.asarray(density, float), np.asarray(error, float)))


def around(value, seed, spread=0.1):
    return value + spread * np.random.default_rng(seed).standard_normal(len(ROWS))


def test_the_smaller_error_wins_within_one_nat():
    exact_on_a_part = candidate("density", around(1.0, 0), around(1.0, 1))
    right = candidate("error", around(0.5, 2), around(0.5, 3))
    assert choose(HELD, [exact_on_a_part, right])[0].name == "error"


def test_a_density_far_worse_does_not_run():
    right = candidate("density", around(3.0, 0), around(1.0, 1))
    lost = candidate("error", around(0.5, 2), around(0.5, 3))
    assert choose(HELD, [right, lost])[0].name == "density"


def test_ties_go_to_the_higher_density():
    error = around(1.0, 1, spread=1.0)
    low, high = candidate("low", around(1.0, 0), error), candidate("high", around(1.5, 0), error)
    assert choose(HELD, [low, high])[0].name == "high"


def test_a_few_lines_do_not_cost_the_simpler_model_the_race():
    error = around(1.0, 1)
    spoilt = error + 5.0 * (ROWS < 3)
    simple = candidate("simple", around(0.0, 0), spoilt, tied=(True, True))
    free = candidate("free", around(0.5, 2), error)
    assert choose(HELD, [simple, free])[0].name == "simple"


def test_features_that_are_wrong_in_most_lines_are_given_up():
    error = around(1.0, 1)
    simple = candidate("simple", around(0.0, 0), error + 0.2, tied=(True, True))
    free = candidate("free", around(0.5, 2), error)
    assert choose(HELD, [simple, free])[0].name == "free"
