"""Commands of the nightly pipeline."""
