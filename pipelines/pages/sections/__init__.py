"""The sections of a report: one module per section."""
