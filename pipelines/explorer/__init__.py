"""The explorer of peer networks: one self-contained HTML page for the networks of a run."""
