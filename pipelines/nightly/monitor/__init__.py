"""The monitoring of a night: data that arrived, realised skill, drift, and the behaviour of the signals."""
