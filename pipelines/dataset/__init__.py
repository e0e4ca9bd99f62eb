"""From lake tables to arrays, folds, and the inputs that are fitted on a fold's training sessions."""
