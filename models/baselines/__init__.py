"""Baselines: fixed rules, ridge, LightGBM, and networks without attention."""
