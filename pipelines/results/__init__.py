"""From stored forecasts to numbers: metrics, books, ensembles, horizons."""
