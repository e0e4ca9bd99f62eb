"""The configuration: what a YAML file may say, reading it, and the names of models in it."""
