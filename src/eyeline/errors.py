"""Errors that carry the call: what was asked, the sizes, and what would work."""

from __future__ import annotations


class EyelineError(Exception):
    """Every error a user of this library can meet. The command line prints it in one line."""


class InvalidArgument(EyelineError, ValueError):
    """An argument has a value, shape, dtype or device that cannot be right."""


class NotSupported(EyelineError, NotImplementedError):
    """The request is meaningful, but what was asked to serve it cannot. It is never ignored."""


class PatternSyntaxError(InvalidArgument):
    """A pattern's text does not parse. The message names the place and the nearest known word."""


class CheckpointError(EyelineError):
    """A model file is damaged, incomplete, of an unknown kind, or not what its header claims."""


class FetchError(EyelineError):
    """A model could not be fetched: no network, no space, a wrong hash. Nothing is left behind."""
