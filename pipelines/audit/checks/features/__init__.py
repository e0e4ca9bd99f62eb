"""Checks of features, targets and folds."""
