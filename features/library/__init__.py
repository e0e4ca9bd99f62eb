"""The feature library: channels and characteristics, their registries, scaling and standardisation."""
