"""Walk-forward training: planning, executing and committing tasks, and searching settings."""
