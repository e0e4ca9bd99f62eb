"""Explain single forecasts of a run: one firm, two dates of a firm, or the cross-section of a date."""
