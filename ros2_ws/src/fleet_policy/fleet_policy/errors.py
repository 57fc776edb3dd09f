"""Errors of a policy; the type says whose fault it is."""

from fleet_env.errors import SettingError


class ContractError(SettingError):
    """A contract file, or an entry of it, is invalid; names file, line and key."""


class PolicyError(ValueError):
    """The policy cannot be loaded, or has returned what the contract does not allow."""


class DataFault(ValueError):
    """A message does not fit its entry in the contract; the message names topic and field."""
