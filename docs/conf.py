"""The site, built by Sphinx: `sphinx-build -W docs docs/_build/html`. `_extensions/executed.py` runs its code."""

import sys
from importlib.metadata import metadata
from pathlib import Path

import xdevice

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "xdevice"
author = "the xdevice authors"
copyright = "the xdevice authors"
version = release = xdevice.__version__

extensions = [
    "executed",
    "docstrings",
    "measurements",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_click",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 4
# "Source" under [project.urls] in pyproject.toml is the only place that says where the project is
address = dict(
    url.split(", ") for url in metadata("xdevice-dl").get_all("Project-URL") or ()
).get("Source")
myst_substitutions = {
    "repository": f"[the repository]({address})" if address else "the repository"
}
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of the frameworks, in signatures
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "xdevice"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_end": ["theme-switcher", "navbar-icon-links"],
    "icon_links": [{"name": "Source", "url": address, "icon": "fa-solid fa-code"}]
    if address
    else [],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go, .output"
copybutton_selector = "div.cell pre, div.highlight-sh pre, div.highlight-python pre"
linkcheck_timeout = 20
# the notebook of a page, which is written beside the page, not found in docs/
linkcheck_ignore = [r"\w+\.ipynb$"]
