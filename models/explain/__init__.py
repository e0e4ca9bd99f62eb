"""Shapley values of forecasts, and the peer network made of them."""
