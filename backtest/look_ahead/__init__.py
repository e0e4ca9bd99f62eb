"""One look-ahead engine: questions that the guard, the audit and the nights ask of signals and deliveries.

Arguments of one name mean the same in every question:

signal_TN
    A signal, known at the close of t as its owner says; NaN where there is none.
index_TN, traded_TN, universe_TN
    Total return index, carried over sessions without a price; where a firm has a price; where it may be
    forecast.
return_TN
    Returns of single sessions; row t is the return from t-1 to t. ``returns`` are the same, standardised
    (`backtest.look_ahead.returns.standardise`).
rows_D
    Sampled dates of the signal.
horizon
    Sessions of the label.
what
    What a sentence calls the signal or the rows.
"""
