"""Attention weights of a fitted model, layer by layer, for exploration."""
