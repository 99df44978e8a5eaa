"""Packages that only a part of discreet needs: `pip install 'discreet[EXTRA]'` brings them.

The core (plans, mechanisms, fits, proofs, statements) imports none of them. A part that needs one calls `require` first, so that
where it is absent the error names the extra instead of a package that the reader never heard of.
"""

from importlib.util import find_spec


def require(package: str, *, extra: str, what: str) -> None:
    """Check that a package is installed.

    Args:
        package: Its import name.
        extra: The extra of discreet that brings it.
        what: What needs it, as the subject of a sentence.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{what} needs {package}, which is not installed: pip install 'discreet[{extra}]'.", name=package
        )
