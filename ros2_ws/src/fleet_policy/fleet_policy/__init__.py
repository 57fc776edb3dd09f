"""Runs a policy on a robot: executes its chunks of actions without gaps, even on bad Wi-Fi.

`Policy` is the class that a user writes. `core` decides which actions are executed and where they
are computed.
"""
