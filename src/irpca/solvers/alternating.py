def alternating(engine, F1, F2, rank, judge, rng):
    raise NotImplementedError
    yield
