"""Splits of a history into folds: walk-forward, dated, calendar and combinatorial, purged and embargoed."""
