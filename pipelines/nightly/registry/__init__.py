"""The registry: which model version is the champion or the challenger, and who may change that."""
