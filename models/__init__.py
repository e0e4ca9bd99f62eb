"""Forecasters: attention over days and over firms, baselines, fitting and explaining (torch)."""
