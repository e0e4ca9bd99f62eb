"""The book of a night: target weights, trades and their expected costs, decided as in a backtest."""
