"""Pure feature engineering: frames in, arrays out. No I/O and no torch."""
