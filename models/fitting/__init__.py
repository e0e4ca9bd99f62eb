"""Fitting: losses, the training loop, snapshots, pretraining and warm starts."""
