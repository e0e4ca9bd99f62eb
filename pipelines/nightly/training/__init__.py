"""Training of model versions for use."""
