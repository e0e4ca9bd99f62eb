"""What a book's return is made of: styles, factors, contributions, exposures, drawdowns, capacity."""
