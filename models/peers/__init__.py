"""Attention over firms: the peer layer, and the reference universe."""
