"""The only part that reads or writes: config, sources, lake, walk-forward, tracking, reports, commands."""
