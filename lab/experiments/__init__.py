"""The paper's figures, and the honest versions beside them: ``python -m lab.experiments NAME``."""
