"""Checks of the delivered data: inputs, prices, statements, members and codes."""
