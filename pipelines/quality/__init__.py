"""Rules on prices, the calendars they need, and the quarantine of what breaks them."""
