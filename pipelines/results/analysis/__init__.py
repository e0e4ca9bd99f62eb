"""Tables that say what the books of an evaluation earn, from what, with whom, and at what size."""
