"""The warning class of this package."""


class D3PAccountingWarning(UserWarning):
    """A program's epsilon is not what d3p would have said, or not what the program asked for."""
