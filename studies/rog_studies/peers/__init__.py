"""The study of peers: compares this suite with programs that users could install instead.

All programs train over the same bad links. `study` runs the study; `adapters` holds one small
program for each peer. docs/results/rivals.md describes the study.
"""
