"""How far synthetic twins serve in the place of a table. **Not private** for the real rows that they are compared with.

Apart from `discreet.synthetic`, which makes twins and sees no table.
"""

from discreet.utility._judge import utility_report
from discreet.utility._report import Comparison, UtilityReport

__all__ = ["Comparison", "UtilityReport", "utility_report"]
