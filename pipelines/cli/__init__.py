"""The ``peerglass`` command: verbs parse and print, and :mod:`pipelines.stages` does the work."""
