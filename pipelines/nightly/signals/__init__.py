"""Signals of a session: scoring with a stored model, and the table in which they are kept."""
