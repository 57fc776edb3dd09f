"""Runs a policy, which computes chunks of actions, on a robot; without gaps even on bad Wi-Fi.

`Policy` is the class that a user writes. `core` decides which actions are executed and where they
are computed.
"""
