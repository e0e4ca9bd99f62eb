"""What a verb of the command line does beyond one call of a room below."""
