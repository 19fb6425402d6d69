"""Side-by-side speed, always as ratios taken in one run, and never without the errors beside it.

Run it as ``python -m lab.benchmarks``; ``--help`` lists the cases. ``docs/speed.md`` says what they are for.
"""
