"""Adapters that deliver validated tables from one origin each."""
