"""The page of a night: one self-contained HTML file without scripts."""
