"""The directed network of peers: its weights, their tests, and what the network can be compared with."""
