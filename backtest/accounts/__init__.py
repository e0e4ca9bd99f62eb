"""Accounts of books: NAV from target weights, the ledger of positions, and performance."""
