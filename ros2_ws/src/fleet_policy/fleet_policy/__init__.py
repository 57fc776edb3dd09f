"""Runs a policy on a robot: chunks of actions, also over bad Wi-Fi, without gaps.

`Policy` is the class that a user writes. `core` decides which actions are executed and where they
are computed.
"""
