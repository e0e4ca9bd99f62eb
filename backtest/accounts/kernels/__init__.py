"""Compiled loops of the accounts. Importing them imports numba, so they are imported inside functions."""
