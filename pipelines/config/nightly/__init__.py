"""The section ``nightly`` of a configuration, one module per subsection."""
