"""The feature library: channels and characteristics with their registries, scaling and standardisation."""
