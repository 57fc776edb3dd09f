"""Errors of a policy; the type says what is at fault: the contract, the policy or a message."""

from fleet_env.errors import SettingError


class ContractError(SettingError):
    """A contract file or an entry of it is invalid; the message names file, line and key."""


class PolicyError(ValueError):
    """The policy cannot be loaded, or its output does not fit the contract."""


class DataFault(ValueError):
    """A message does not fit its entry in the contract; the text names topic and field.

    ``entry``: name of the entry.
    """

    def __init__(self, text: str, entry: str = '') -> None:
        super().__init__(text)
        self.entry = entry
