"""The study of peers: the programs that users would otherwise install, on the same bad links.

`study` runs it, `adapters` holds one small program per peer. docs/rivals.md describes it.
"""
