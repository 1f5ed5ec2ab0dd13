"""Failures that are not the caller's mistake; a mistake is a plain `ValueError`."""


class FetchError(OSError):
    """A file could not be fetched, was damaged, or could not be kept: network, disk or hash."""


class NonFiniteError(ArithmeticError):
    """A weight, state or logit is NaN or infinite. The message names layer, dtype and batch."""


class CausalityError(RuntimeError):
    """A model sees later tokens though its policy says that it does not; no score is given."""


class DamagedError(OSError):
    """A file of ours is cut or not what it should be."""
