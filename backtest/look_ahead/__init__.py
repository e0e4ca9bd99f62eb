"""Signs of look-ahead in a signal of unknown origin, from the signal and the market alone."""
