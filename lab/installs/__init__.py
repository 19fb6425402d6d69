"""The package in clean environments: ``python -m lab.installs``."""
