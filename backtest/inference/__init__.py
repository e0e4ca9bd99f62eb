"""Inference: how far a result can be explained by luck, given everything that was tried."""
