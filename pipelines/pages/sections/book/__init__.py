"""Sections on the books: figures, equity, costs, risk, capacity, and holdings."""
