"""Monitoring of signals in use: loss of skill, and drift of their inputs."""
