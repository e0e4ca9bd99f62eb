"""One night: its decisions in order, its journal, and telling its outcome."""
