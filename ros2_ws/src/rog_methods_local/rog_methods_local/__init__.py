"""Plug-ins of ROG: DiLoCo and its kin, their codecs, and BSP with a trimmed mean.

`setup.py` registers them as entry points of the groups ``rog.methods`` and ``rog.codecs``;
`rog_core` finds them there by name. So they are also examples of methods and codecs of other
packages. The server needs the methods, robots and server need the codecs.
"""
