"""The paper's figures, and the honest versions beside them: ``python -m experiments NAME``."""
