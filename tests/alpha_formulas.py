"""Formulas of "101 Formulaic Alphas" (Kakushadze 2016), written as expressions, by their number."""

from __future__ import annotations

ALPHAS = {
    1: "rank(argmax(signed_power(where(returns < 0, std(returns, 20), close), 2), 5)) - 0.5",
    2: "-1 * corr(rank(delta(log(volume), 2)), rank((close - open) / open), 6)",
    3: "-1 * corr(rank(open), rank(volume), 10)",
    4: "-1 * ts_rank(rank(low), 9)",
    6: "-1 * corr(open, volume, 10)",
    7: "where(mean(dollar_volume, 20) < dollar_volume,"
    " -1 * ts_rank(abs(delta(close, 7)), 60) * sign(delta(close, 7)), -1)",
    8: "-1 * rank(sum(open, 5) * sum(returns, 5) - delay(sum(open, 5) * sum(returns, 5), 10))",
    9: "where(0 < min(delta(close, 1), 5), delta(close, 1),"
    " where(max(delta(close, 1), 5) < 0, delta(close, 1), -1 * delta(close, 1)))",
    12: "sign(delta(volume, 1)) * (-1 * delta(close, 1))",
    13: "-1 * rank(cov(rank(close), rank(volume), 5))",
    14: "-1 * rank(delta(returns, 3)) * corr(open, volume, 10)",
    15: "-1 * sum(rank(corr(rank(high), rank(volume), 3)), 3)",
    17: "-1 * rank(ts_rank(close, 10)) * rank(delta(delta(close, 1), 1))"
    " * rank(ts_rank(volume / mean(volume, 20), 5))",
    18: "-1 * rank(std(abs(close - open), 5) + (close - open) + corr(close, open, 10))",
    20: "-1 * rank(open - delay(high, 1)) * rank(open - delay(close, 1)) * rank(open - delay(low, 1))",
    22: "-1 * (delta(corr(high, volume, 5), 5) * rank(std(close, 20)))",
    23: "where(sum(high, 20) / 20 < high, -1 * delta(high, 2), 0)",
    26: "-1 * max(corr(ts_rank(volume, 5), ts_rank(high, 5), 5), 3)",
    34: "rank(1 - rank(std(returns, 2) / std(returns, 5)) + (1 - rank(delta(close, 1))))",
    35: "ts_rank(volume, 32) * (1 - ts_rank(close + high - low, 16)) * (1 - ts_rank(returns, 32))",
    40: "-1 * rank(std(high, 10)) * corr(high, volume, 10)",
    43: "ts_rank(volume / mean(volume, 20), 20) * ts_rank(-1 * delta(close, 7), 8)",
    44: "-1 * corr(high, rank(volume), 5)",
    53: "-1 * delta((close - low - (high - close)) / (close - low), 9)",
    54: "-1 * ((low - close) * open ** 5) / ((low - high) * close ** 5)",
    101: "(close - open) / (high - low + 0.001)",
}

EXPRESSIONS = {f"alpha_{number}": text for number, text in ALPHAS.items()}
