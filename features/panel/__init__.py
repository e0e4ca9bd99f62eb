"""The panel: dense arrays over (session, firm), series derived from them, the universe and the labels."""
