"""The tracking store (MLflow): access to it, what is logged there, and the versions it names."""
