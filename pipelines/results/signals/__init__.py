"""Measuring a user's own signals: reading the file, placing it on the panel, guarding against look-ahead."""
