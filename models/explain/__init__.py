"""Shapley values of forecasts, and the peer network built from them."""
