"""The one error of tables and their descriptions."""


class DataError(ValueError):
    """A table or schema that cannot be used: what, why and the remedy.

    Guarantee: the message names columns, rules and public facts. It holds no cell's value, no row's number, no count.
    """
