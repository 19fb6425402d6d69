"""Sphinx configuration. The build asks nothing of the network: no intersphinx, no MathJax, no web fonts."""

import irpca

project = "irpca"
author = "the irpca developers"
copyright = "2026, the irpca developers"
release = irpca.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser"]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "methods-table.md", "speed-table.md"]  # tables are included

autodoc_typehints = "none"  # the docstrings give types and shapes
autosummary_generate = True
numpydoc_show_class_members = False  # autodoc lists them

html_theme = "pydata_sphinx_theme"
html_show_sourcelink = False
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}


def setup(app):
    # Made by scikit-learn, with references into its own glossary.
    app.connect("autodoc-skip-member", lambda app, what, name, obj, skip, options: skip or name.endswith("_request"))
