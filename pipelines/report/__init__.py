"""The report of a run: one HTML file that carries everything it shows."""
