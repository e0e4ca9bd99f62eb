"""Walk-forward splits, books, costs, accounting, metrics and inference (numpy and polars only)."""
