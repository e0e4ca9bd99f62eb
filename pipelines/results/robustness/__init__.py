"""How far results can be believed: all models tested together, overfitting, paths of combinatorial folds."""
