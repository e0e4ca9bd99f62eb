"""Models of different runs side by side: figures, tests of the difference, and what differs."""
