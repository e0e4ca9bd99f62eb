"""The panel: dense arrays over (session, firm), what is derived from them, the universe and the labels."""
