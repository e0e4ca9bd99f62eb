"""The tracking store (MLflow): access, logging of runs and trials, and the data versions of its runs."""
