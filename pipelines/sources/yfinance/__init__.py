"""Yahoo Finance through yfinance."""
