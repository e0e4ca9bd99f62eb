"""Steps that books by rank share: overlapping decisions, neutrality and volatility."""
