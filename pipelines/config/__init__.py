"""The configuration: its schema, loading, and the names of models."""
