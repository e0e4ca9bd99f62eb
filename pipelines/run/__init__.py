"""One run: its identity, its folder, its locks, and opening it again on exactly its data."""
