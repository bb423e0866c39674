"""The site: `make docs`. Guides and results are Markdown; the reference comes from the docstrings."""

import re

from sphinx.ext.napoleon import Config, NumpyDocstring

import cotrain

project = "cotrain"
author = "The cotrain authors"
release = version = cotrain.__version__
html_title = f"cotrain {release}"
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "figures/*.py"]

myst_heading_anchors = 4

default_role = "code"  # docstrings write `names` in single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

# -n checks our own references; there is no inventory of other projects here, and not every type has a page.
nitpick_ignore_regex = [
    ("py:.*", r"(cotrain|collections|numpy|pathlib|rich|sklearn|torch|typing)\..*"),
    ("py:class", r"ndarray|shape|n_\w+|.*instance"),  # words of scikit-learn's docstrings
]

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}


ARRAY_LIKE = re.compile(r"[~\w.]*_Buffer \| .*?_NestedSequence\[complex \| bytes \| str\]")


def shorten(app, what, name, obj, options, signature: str | None, returns: str | None):
    """Shows numpy's ArrayLike by its name, not by the six types it stands for."""
    return ARRAY_LIKE.sub("~numpy.typing.ArrayLike", signature or "") or None, returns


def in_numpy_style(app, what, name: str, obj, options, lines: list[str]) -> None:
    """The estimators have docstrings in the style of scikit-learn's."""
    if name.startswith("cotrain.sklearn."):
        lines[:] = str(NumpyDocstring(lines, Config(napoleon_use_param=False), what=what)).splitlines()


def relink(app, docname: str, source: list[str]) -> None:
    """Links to these files at the top of the repository lead to their pages on the site."""
    for name in ("CHANGELOG", "CONTRIBUTING", "LOG"):
        source[0] = re.sub(rf"\]\((\.\./)+{name}\.md", f"](/project/{name.lower()}.md", source[0])


def setup(app):
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", in_numpy_style)
    app.connect("source-read", relink)
