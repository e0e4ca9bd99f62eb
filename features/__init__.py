"""Pure feature engineering: frames in, arrays out; no input or output, no torch."""
