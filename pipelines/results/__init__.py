"""Results of a run from its stored forecasts: metrics, books, ensembles, horizons, and their description."""
