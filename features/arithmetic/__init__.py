"""Arithmetic on ``[T, N]`` arrays: rolling and cross-sectional statistics, compiled where it is faster."""
