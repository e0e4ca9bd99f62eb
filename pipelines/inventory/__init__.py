"""The runs of an output folder: what is there, what one of them holds, and what may be removed."""
