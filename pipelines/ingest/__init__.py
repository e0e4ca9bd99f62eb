"""Source to lake: every row ends stored or quarantined, and the summary says which."""
