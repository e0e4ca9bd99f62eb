"""Books: rules that turn the signal at t into target weights at t."""
