"""Errors of LOPInfer; each class names the cause: the model, the plan, a file or the other side."""


class LopinferError(Exception):
    """Base of all errors that this package raises on purpose."""


class ModelError(LopinferError, ValueError):
    """The model cannot be traced or divided; the message says why, and where in the model."""


class PlanError(LopinferError, ValueError):
    """A plan is not valid for its graph; the message names the operator and the interval."""


class ProfileError(LopinferError, ValueError):
    """A profile or plan file cannot be read, or belongs to another model."""


class RemoteError(LopinferError, RuntimeError):
    """The other side (robot or server) broke the protocol, or cannot serve this model."""
