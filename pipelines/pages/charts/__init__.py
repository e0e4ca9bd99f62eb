"""The charts of a report: one function per figure."""
