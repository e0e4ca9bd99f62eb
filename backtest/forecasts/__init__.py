"""Metrics of forecasts against labels."""
