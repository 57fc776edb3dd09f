"""Plug-ins of ROG: methods with local steps, codecs for them, and BSP with a trimmed mean.

`setup.py` registers them as entry points of the groups ``rog.methods`` and ``rog.codecs``;
`rog_core` finds them there by name. So they are also examples of methods and codecs of other
packages. The methods must be installed on the server, the codecs on the server and the robots.
"""
