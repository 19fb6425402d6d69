"""Hard knocks: what must hold, and what must not happen, tried ten thousand to a million times.

Run it as ``python -m lab.soak [stage ...]``; ``--help`` lists the stages. ``make test-lab`` runs a few of each.
"""
