"""The errors that are meant for whoever runs the program.

Their message stands by itself: it says what is wrong, with the value, and where it can what to do about it.
A command line prints it and ends; every other exception is a fault of the program and keeps its traceback.
"""

from __future__ import annotations


class OperatorError(Exception):
    """The root of these errors."""
