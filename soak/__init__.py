"""Hard knocks: what must hold, and what must not happen, tried ten thousand to a million times.

Run it as ``python -m soak [stage ...]``; ``--help`` lists the stages. ``tests/test_soak.py`` runs a few of each.
"""
