"""Sphinx configuration. The build asks nothing of the network: no intersphinx, no MathJax, no web fonts."""

import sys
from pathlib import Path

import irpca

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "irpca"
author = "the irpca developers"
copyright = "2026, the irpca developers"
release = irpca.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser", "run"]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "*-table.md"]  # tables are included
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings give types and shapes
autosummary_generate = True
numpydoc_show_class_members = False  # autodoc lists them

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = "irpca"
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 8,
}
# Pages without a section of their own have nothing to list on the left.
ALONE = ("index", "getting-started", "tasks", "how-it-works", "when-not-to-use", "comparison", "glossary")
html_sidebars = {page: [] for page in ALONE}


def setup(app):
    # Made by scikit-learn, with references into its own glossary.
    app.connect("autodoc-skip-member", lambda app, what, name, obj, skip, options: skip or name.endswith("_request"))
