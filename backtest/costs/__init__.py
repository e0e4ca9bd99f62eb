"""Costs of trading, of short positions and of leverage."""
