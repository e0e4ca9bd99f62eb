"""The nightly pipeline: signals and the book for the next session, from stored models, and their records."""
