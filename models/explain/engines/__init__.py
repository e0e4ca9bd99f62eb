"""Engines that compute Shapley values of a game: by permutations, by regression, or exactly."""
