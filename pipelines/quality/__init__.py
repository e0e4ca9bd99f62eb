"""Rules for suspicious prices, the exchange calendars they need, and the quarantine of rejected rows."""
