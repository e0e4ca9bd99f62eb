"""A user's own CSV, Excel or Parquet files."""
