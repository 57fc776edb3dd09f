"""Settings for Sphinx with MyST: `make site` writes the site to build/site.

The build needs no network. The source folder is the root of the repository, so that a
link in a page has the same target in the site and in the repository.
"""

project = 'ROG'
author = 'The ROG founders'
copyright = '2026, The ROG founders'
root_doc = 'docs/index'
extensions = ['myst_parser', 'sphinx.ext.autodoc']
include_patterns = ['docs/**.md', 'docs/reference/api.rst', 'SECURITY.md', 'CONTRIBUTING.md',
                    'CHANGELOG.md', 'QUALITY_DECLARATION.md']
# These folders contain no page of the site, and Sphinx would need much time to search them.
exclude_patterns = ['.*', 'build', 'install', 'log', 'runs']

myst_heading_anchors = 3      # headings of levels 1 to 3 get anchors for links
suppress_warnings = ['misc.highlighting_failure']
# docs/reference/api.rst makes the reference from docstrings. In docstrings, `name` means code.
default_role = 'code'
autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_preserve_defaults = True
html_theme = 'furo'
html_static_path = ['static']
html_css_files = ['wide.css']
html_title = 'ROG'
html_extra_path = ['site']    # site/index.html forwards to docs/index.html
html_copy_source = False
