"""How far results can be believed: all models tested together, overfitting, and paths of combinatorial folds."""
