"""The documentation as a site: `make site` writes build/site. Sphinx with MyST, without network.

The root of the repository is the source, so that a page's links mean the same here and where the
files are looked at.
"""

project = 'ROG'
author = 'The ROG founders'
copyright = '2026, The ROG founders'
root_doc = 'docs/index'
extensions = ['myst_parser', 'sphinx.ext.autodoc']
include_patterns = ['docs/**.md', 'docs/api.rst', 'SECURITY.md', 'CONTRIBUTING.md', 'CHANGELOG.md',
                    'QUALITY_DECLARATION.md']
# Folders that would be searched for pages, slowly, though none of theirs is included.
exclude_patterns = ['.*', 'build', 'install', 'log', 'runs']

myst_heading_anchors = 3      # the anchors that links between pages use, as on GitHub
suppress_warnings = ['misc.highlighting_failure']
# The reference of docs/api.rst, from docstrings; in them `name` is code.
default_role = 'code'
autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_preserve_defaults = True
html_theme = 'furo'
html_static_path = ['static']
html_css_files = ['wide.css']
html_title = 'ROG'
html_extra_path = ['site']    # index.html, which leads to docs/index.html
html_copy_source = False
