"""The checks of the audit that need code, models or a run."""
