"""Models to beat: fixed rules, ridge, LightGBM, and plain networks without attention."""
