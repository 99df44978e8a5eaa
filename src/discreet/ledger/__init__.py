"""What has been spent on a table, in a file that outlives processes: append-only, locked, chained by hashes, with a hard cap."""

from discreet.ledger._ledger import RELEASED_BEFORE, Ledger, LedgerError, Receipt, SpentError
from discreet.ledger._spending import Spending

__all__ = ["RELEASED_BEFORE", "Ledger", "LedgerError", "Receipt", "Spending", "SpentError"]
