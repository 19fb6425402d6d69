"""Few combinations of parameters, in which every two values of every two of them occur together."""

from collections import Counter
from itertools import combinations, product


def all_pairs(*parameters):
    """A list of tuples, one value of each parameter in each, in place of their full product.

    Greedy: every row starts with a pair of values that did not meet yet; each further value is the one that meets
    most of those already in the row for the first time or, among equals, the one that was used least.
    """
    values = [range(len(parameter)) for parameter in parameters]
    missing = dict.fromkeys(
        frozenset([(i, a), (j, b)])
        for i, j in combinations(range(len(values)), 2)
        for a, b in product(values[i], values[j])
    )
    used, rows = Counter(), []
    while missing:
        row = dict(next(iter(missing)))
        for k in sorted(set(range(len(values))) - set(row), key=lambda k: -len(values[k])):
            at = row.items()
            row[k] = max(
                values[k], key=lambda v: (sum(frozenset([(k, v), other]) in missing for other in at), -used[k, v])
            )
        for pair in combinations(row.items(), 2):
            missing.pop(frozenset(pair), None)
        used.update(row.items())
        rows.append(tuple(parameter[row[k]] for k, parameter in enumerate(parameters)))
    return rows
