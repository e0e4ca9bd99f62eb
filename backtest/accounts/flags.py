"""Flags of a firm in a session, which `backtest.accounts.market.BookMarket.state_TN` adds up.

`KNOWN`: the total-return index is known at t. `TRADABLE`: a unit can be bought or sold in session t. `GONE`:
holders have been paid out by the close of t.
"""

from __future__ import annotations

KNOWN, TRADABLE, GONE = 1, 2, 4
