"""Exceptions: one class for each way a caller may want to react, numbered like the exit codes of the command line."""


class PrecastError(RuntimeError):
    """Base of all exceptions of precast; `code` is the command line's exit code for the same failure."""

    code = 1


class InternalError(PrecastError):
    """A fault of precast itself."""

    code = 1


class UsageError(PrecastError, ValueError):
    """Arguments, options or inputs that cannot be used."""

    code = 2


class UnsupportedModel(PrecastError):
    """The model is broken or not supported."""

    code = 3


class DeviceError(PrecastError):
    """A device is not there, cannot be opened or has failed."""

    code = 5


class IntegrityError(PrecastError):
    """A Program file, a cache or a stored constant is damaged."""

    code = 6


class LimitExceeded(PrecastError):
    """Refused by a limit of memory, time or size."""

    code = 8
