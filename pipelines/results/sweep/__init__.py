"""Sweeps: one signal traded in many ways, in one pass over the market, and every way a trial."""
