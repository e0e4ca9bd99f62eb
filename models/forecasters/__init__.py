"""The attention models: over days, over firms, and over both. Each reads top to bottom in its own file."""
