"""A policy on a robot: chunks of actions over bad Wi-Fi that never starve.

`Policy` is the class that a user writes; `core` decides what is executed and where it is computed.
"""
