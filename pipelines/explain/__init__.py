"""Attribution of a run: the games that are played, and the tables made of them."""
