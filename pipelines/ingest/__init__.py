"""Source to lake: every row is stored or quarantined, and the summary counts both."""
