"""The fixture `fedlga`, for all tests of the command line."""

from commands import fedlga

__all__ = ["fedlga"]
