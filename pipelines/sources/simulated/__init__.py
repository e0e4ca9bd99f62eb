"""The embedded market with planted structure."""
