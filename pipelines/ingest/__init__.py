"""Source to lake: every row is stored or quarantined, and suspicious ones are flagged."""
