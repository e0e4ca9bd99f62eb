"""The checks of the audit, one file per check."""
