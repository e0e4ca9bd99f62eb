"""Statements from the SEC's EDGAR."""
