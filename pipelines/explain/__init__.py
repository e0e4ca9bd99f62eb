"""Attribution of a run: Shapley games on a sample of its test forecasts, and the tables of their results."""
