"""A user's own CSV or Parquet files."""
