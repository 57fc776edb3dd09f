"""Plug-ins of ROG: methods with local steps, codecs for them, and BSP with a trimmed mean.

`setup.py` registers them as entry points of the groups ``rog.methods`` and ``rog.codecs``;
`rog_core` finds them there by name. So this package is also an example of how another package adds
methods and codecs. The methods must be installed on the server; the codecs must be installed on the
server and on the robots.
"""
