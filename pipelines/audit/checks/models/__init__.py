"""Checks of fits and forecasts."""
