"""The optimiser of the optimised book: limits, covariance and solution."""
