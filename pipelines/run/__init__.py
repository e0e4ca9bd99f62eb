"""One run: its identity, folder and locks, and how to open it again with exactly its data."""
