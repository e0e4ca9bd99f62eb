"""Sections on the models: the ladder, training, simulated truth, and attribution."""
