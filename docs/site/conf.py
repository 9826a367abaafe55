"""The configuration of Sphinx; make_site.py builds the site. Nothing in a page is fetched from elsewhere."""

from clusterctl import __version__

project = "clusterctl"
author = "the authors of clusterctl"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["**/.*"]
smartquotes = False  # they would turn --json into a dash
nitpick_ignore_regex = [("py:.*", ".*")]  # types of signatures, most of which have no page
html_theme = "furo"
html_title = f"clusterctl {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = True
myst_heading_anchors = 6  # links to headings work as on a code host
myst_enable_extensions = ["deflist"]
