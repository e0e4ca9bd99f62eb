"""The checks of the audit, one a file."""
