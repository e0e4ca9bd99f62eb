"""The ``peerglass`` command. Commands parse arguments and print; :mod:`pipelines.stages` does the work."""
