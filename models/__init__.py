"""Forecasters: attention over days and over firms, baselines, training and attribution (torch)."""
