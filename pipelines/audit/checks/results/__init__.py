"""Checks of what is made of the forecasts: ensembles, books and their performance."""
