"""The lake: Delta tables with contracts, atomic upserts, versions and upkeep."""
