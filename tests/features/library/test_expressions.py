"""Expressions compared with pandas, causal to the bit, and refused where they are wrong."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
from alpha_formulas import ALPHAS

from features.library.expressions import Call, evaluate, lookback, parse
from features.library.operators import OPERATORS, SERIES, SYMBOLS
from features.library.sets import characteristics_of
from features.panel.derived import MAX_HALT
from features.panel.panel import Panel, build_panel

T, N = 110, 12
EXAMPLES = (
    "exp(returns) - sqrt(close) + power(close, 0.5)",
    "minimum(close, open) / maximum(close, open)",
    "product(1 + returns, 7) - quantile(close, 9, 0.3) / close",
    "skew(returns, 15)",
    "argmin(low, 6) / 6 + count(returns > 0, 8) / 8",
    "slope(close, 10) / close + residual(volume, 12) / volume",
    "rsquare(close, 10)",
    "decay_linear(returns, 6) - ema(returns, 4)",
    "demean(close / open, group) + demean(returns)",
    "zscore(log(volume)) - zscore(log(volume), group)",
    "scale(returns) + scale(returns, group) + rank(raw_close)",
    "rank(close) * rank(volume, group)",
    "where(returns > 0 and not (close <= open) or high == low, delta(close, 2), -close)",
    "where(close >= open, 1, 2) + where(close != delay(close, 1), 0, returns - market)",
)
TEXTS = (*ALPHAS.values(), *EXAMPLES)

Frame = pd.DataFrame


def made_panel(seed: int = 0) -> Panel:
    """Prices with halts, a late listing, a split, repeated closes and a universe that changes."""
    rng = np.random.default_rng(seed)
    close = 20.0 * np.exp(np.cumsum(0.02 * rng.normal(size=(T, N)), axis=0))
    close[5:9, 1], close[40, 2] = close[4, 1], close[39, 2]  # no move
    opened = close * np.exp(0.01 * rng.normal(size=(T, N)))
    high = np.maximum(close, opened) * (1.0 + 0.01 * rng.random((T, N)))
    low = np.minimum(close, opened) * (1.0 - 0.01 * rng.random((T, N)))
    volume = np.round(1e5 * np.exp(rng.normal(size=(T, N))))
    split = np.ones((T, N))
    split[60, 3] = 2.0
    halved = np.where((np.arange(T)[:, None] >= 60) & (np.arange(N) == 3), 0.5, 1.0)
    close, opened, high, low = (x * halved for x in (close, opened, high, low))
    listed = rng.random((T, N)) > 0.03
    listed[:25, 5] = False
    listed[50:57, 6] = False
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=k) for k in range(T)]
    columns = {
        "open": opened,
        "high": high,
        "low": low,
        "close": close,
        "volume": volume,
        "split_ratio": split,
    }
    rows = {name: x[listed] for name, x in columns.items()}
    t, n = np.nonzero(listed)
    prices = pl.DataFrame(
        {
            "date": [days[k] for k in t],
            "ticker": [f"F{k:02}" for k in n],
            **rows,
            "dividend": np.zeros(len(t)),
        }
    )
    securities = pl.DataFrame({"ticker": [f"F{k:02}" for k in range(N)]}).with_columns(
        valid_from=pl.lit(days[0]),
        sector=pl.Series([None, *("AB"[k % 2] for k in range(1, N))]),
        industry=pl.Series([None, *("AB"[k % 2] for k in range(1, N))]),
        **{
            name: pl.lit(None, pl.Date if name in ("valid_to", "delisted_on") else pl.String)
            for name in ("valid_to", "delisted_on", "delisting_reason", "exchange")
        },
        delisting_return=pl.lit(None, pl.Float64),
    )
    panel = build_panel(prices, securities)
    return replace(panel, universe_TN=panel.traded_TN & (rng.random((T, N)) < 0.9))


@pytest.fixture(scope="module", name="panel")
def panel_fixture() -> Panel:
    return made_panel()


def names_in_pandas(panel: Panel) -> dict[str, Any]:
    """What the words of an expression mean in pandas: firm by firm and date by date, unknown values as NA."""

    def frame(x_TN: npt.NDArray[np.float64]) -> Frame:
        return pd.DataFrame(x_TN).astype("Float64")

    def plain(x: Frame) -> Frame:
        return x.astype("Float64").astype("float64")

    def over(x: Frame, n: int, of: Callable[[npt.NDArray[np.float64]], Any], least: int = 1) -> Frame:
        """Apply a function to the known values of each window, if half of them are known."""
        x_TN = plain(x).to_numpy()
        out = np.full(x_TN.shape, np.nan)
        for t, i in np.ndindex(out.shape):
            window = x_TN[max(t - n + 1, 0) : t + 1, i]
            if np.isfinite(window).sum() >= max((n + 1) // 2, least):
                out[t, i] = of(window)
        return frame(out)

    def known(of: Callable[[npt.NDArray[np.float64]], Any]) -> Callable[[npt.NDArray[np.float64]], Any]:
        return lambda window: of(window[np.isfinite(window)])

    def pairs(x: Frame, y: Frame, n: int, of: str) -> Frame:
        x_TN, y_TN = plain(x).to_numpy(), plain(y).to_numpy()
        out = np.full(x_TN.shape, np.nan)
        for t, i in np.ndindex(out.shape):
            both = np.stack([x_TN[max(t - n + 1, 0) : t + 1, i], y_TN[max(t - n + 1, 0) : t + 1, i]])
            both = both[:, np.isfinite(both).all(axis=0)]
            if both.shape[1] >= max((n + 1) // 2, 2) and (of == "cov" or both.std(axis=1).min() > 1e-7):
                value = (np.cov(both) if of == "cov" else np.corrcoef(both))[0, 1]
                out[t, i] = 0.0 if abs(value) < 1e-13 else value  # rounding
        return frame(out)

    def place(window: npt.NDArray[np.float64], n: int) -> float:
        return float(np.nanargmax(window.astype(np.float32))) + 1 + n - len(window)

    def line(window: npt.NDArray[np.float64]) -> tuple[float, float, float]:
        k = np.arange(len(window))[np.isfinite(window)]
        x = window[np.isfinite(window)]
        slope, level = np.polyfit(k, x, 1)
        left = x - slope * k - level
        r2 = 1.0 - left @ left / ((x - x.mean()) @ (x - x.mean())) if np.ptp(x) > 1e-9 else np.nan
        return slope, r2, window[-1] - slope * (len(window) - 1) - level

    def today(of: Callable[[npt.NDArray[np.float64]], Any]) -> Callable[[npt.NDArray[np.float64]], Any]:
        return lambda window: of(window) if np.isfinite(window[-1]) else np.nan

    def ts_rank(window: npt.NDArray[np.float64]) -> float:
        return float(pd.Series(window.astype(np.float32)).rank(pct=True).iloc[-1])

    def weights(weight_W: npt.NDArray[np.float64]) -> Callable[[npt.NDArray[np.float64]], Any]:
        def of(window: npt.NDArray[np.float64]) -> float:
            w, ok = weight_W[-len(window) :], np.isfinite(window)
            return float(w[ok] @ window[ok] / w[ok].sum())

        return of

    universe_TN = panel.universe_TN
    assert universe_TN is not None
    groups_TN = panel.group_TN

    def across(of: Callable[[pd.Series], pd.Series]) -> Callable[..., Frame]:
        def compare(x: Frame, group: object = None) -> Frame:
            x = plain(x).where(universe_TN)
            rows = []
            for t, (_, row) in enumerate(x.iterrows()):
                if group is None:
                    rows.append(of(row))
                    continue
                code = pd.Series(groups_TN[t], index=row.index)
                rows.append(
                    pd.concat(
                        [of(row[code == g]) if g >= 0 else row[code == g] * np.nan for g in code.unique()]
                    ).sort_index()
                )
            return frame(pd.DataFrame(rows).to_numpy())

        return compare

    def elements(of: Callable[..., Any]) -> Callable[..., Frame]:
        def apply(*x: Frame | float) -> Frame:
            with np.errstate(all="ignore"):
                out = of(*(plain(one).to_numpy() if isinstance(one, pd.DataFrame) else one for one in x))
            return frame(np.where(np.isfinite(out), out, np.nan))

        return apply

    def where(c: Frame, x: Frame | float, y: Frame | float) -> Frame:
        c = plain(c)
        x, y = (plain(one) if isinstance(one, pd.DataFrame) else one for one in (x, y))
        return frame(np.where(c.isna(), np.nan, np.where(c != 0, x, y)))

    shares = panel.volume_TN
    assert shares is not None
    close = pd.DataFrame(panel.close_TN)
    returns = panel.close_TN / close.ffill(limit=MAX_HALT).shift(1).to_numpy() - 1.0
    mean = pd.DataFrame(returns).mean(axis=1).to_numpy()
    fields = {name: frame(getattr(panel, f"{name}_TN")) for name in ("open", "high", "low", "close")}
    truth = np.maximum(
        (plain(frame(returns)) > 0) & ~(plain(fields["close"]) <= plain(fields["open"])),
        plain(fields["high"]) == plain(fields["low"]),
    ).astype("Float64") + 0.0 * (frame(returns) + fields["close"] + fields["open"] + fields["high"])
    return {
        **fields,
        "dollar_volume": frame(panel.raw_close_TN * shares),
        "raw_close": frame(panel.raw_close_TN),
        "volume": frame(panel.raw_close_TN * shares / panel.close_TN),
        "returns": frame(returns),
        "market": frame(np.repeat(mean[:, None], N, axis=1)),
        "group": "group",
        "truth": truth,
        "abs": elements(np.abs),
        "sign": elements(np.sign),
        "log": elements(np.log),
        "exp": elements(np.exp),
        "sqrt": elements(np.sqrt),
        "power": elements(np.power),
        "signed_power": elements(lambda x, y: np.sign(x) * np.abs(x) ** y),
        "maximum": elements(np.maximum),
        "minimum": elements(np.minimum),
        "where": where,
        "delay": lambda x, n: x.shift(n),
        "delta": lambda x, n: x - x.shift(n),
        "sum": lambda x, n: over(x, n, known(np.sum)),
        "mean": lambda x, n: over(x, n, known(np.mean)),
        "std": lambda x, n: over(x, n, known(lambda w: np.std(w, ddof=1)), 2),
        "skew": lambda x, n: over(x, n, known(lambda w: np.mean((w - w.mean()) ** 3) / np.var(w) ** 1.5), 3),
        "min": lambda x, n: over(x, n, known(np.min)),
        "max": lambda x, n: over(x, n, known(np.max)),
        "argmax": lambda x, n: over(x, n, lambda w: place(w, n)),
        "argmin": lambda x, n: over(x, n, lambda w: place(-w, n)),
        "ts_rank": lambda x, n: over(x, n, today(ts_rank)),
        "quantile": lambda x, n, q: over(x, n, known(lambda w: np.quantile(w, q))),
        "product": lambda x, n: over(x, n, known(np.prod)),
        "count": lambda c, n: over(c, n, known(lambda w: (w != 0).sum())),
        "corr": lambda x, y, n: pairs(x, y, n, "corr"),
        "cov": lambda x, y, n: pairs(x, y, n, "cov"),
        "slope": lambda x, n: over(x, n, lambda w: line(w)[0]),
        "rsquare": lambda x, n: over(x, n, lambda w: line(w)[1]),
        "residual": lambda x, n: over(x, n, lambda w: line(w)[2]),
        "decay_linear": lambda x, n: over(x, n, weights(np.arange(1.0, n + 1))),
        "ema": lambda x, n: over(x, 4 * n, weights((1 - 2 / (n + 1)) ** np.arange(4 * n - 1.0, -1, -1))),
        "rank": across(lambda row: row.astype(np.float32).rank(pct=True)),
        "demean": across(lambda row: row - row.mean()),
        "zscore": across(lambda row: (row - row.mean()) / (row.std(ddof=0) or 1.0)),
        "scale": across(lambda row: row / row.abs().sum()),
    }


@pytest.fixture(scope="module", name="words")
def words_fixture(panel: Panel) -> Mapping[str, Any]:
    return names_in_pandas(panel)


def in_pandas(text: str, words: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Let Python itself compute the text, with the words of `names_in_pandas`."""
    text = text.replace("returns > 0 and not (close <= open) or high == low", "truth")
    out: Frame = eval(text, {"__builtins__": {}}, dict(words))  # noqa: S307  # of this file
    array: npt.NDArray[np.float64] = out.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return array


def words_of(text: str) -> set[str]:
    def inside(tree: Call | str | float) -> set[str]:
        return (
            {tree.name, *(w for one in tree.arguments for w in inside(one))}
            if isinstance(tree, Call)
            else {str(tree)}
        )

    return inside(parse(text))


def test_every_word_of_the_language_is_compared_with_pandas() -> None:
    used = {word for text in TEXTS for word in words_of(text)}
    symbols = {one.form.partition("(")[0] for one in SYMBOLS.values()}
    assert {*OPERATORS, *SERIES, *symbols} <= used
    assert len(ALPHAS) >= 20


@pytest.mark.parametrize("text", TEXTS)
def test_expression_equals_pandas(text: str, panel: Panel, words: Mapping[str, Any]) -> None:
    ours, expected = evaluate(parse(text), panel), in_pandas(text, words)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(expected), err_msg=text)
    assert np.isfinite(expected).mean() > 0.3
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", TEXTS)
def test_values_up_to_t_do_not_change_with_later_prices_of_any_firm(text: str, panel: Panel) -> None:
    rng, later = np.random.default_rng(3), np.arange(T)[:, None] > 80
    changed: dict[str, Any] = {
        f"{name}_TN": np.where(later, np.where(rng.random((T, N)) < 0.1, np.nan, 30 * rng.random((T, N))), x)
        for name in ("open", "high", "low", "close", "raw_close", "volume")
        if (x := getattr(panel, f"{name}_TN")) is not None
    }
    assert panel.universe_TN is not None
    noisy = replace(panel, **changed, universe_TN=panel.universe_TN & ~(later & (rng.random((T, N)) < 0.3)))
    feature = characteristics_of({"x": text})["x"]
    true_TN, noisy_TN = feature.compute(panel), feature.compute(noisy)
    np.testing.assert_array_equal(true_TN[:81].view(np.int64), noisy_TN[:81].view(np.int64))
    assert not np.array_equal(true_TN[81:], noisy_TN[81:], equal_nan=True)


@pytest.mark.parametrize("price", [10.1, 1 / 3, -3.3, 1e6 + 0.1])
def test_equal_values_have_no_slope_residual_or_score_from_rounding(price: float) -> None:
    equal_TN = np.full((70, 3000), price)
    for name in ("slope", "residual"):
        for n in (20, 60):
            value_TN = OPERATORS[name].compute(equal_TN, n)
            assert not value_TN[n:].any(), (name, n)
    for name in ("demean", "zscore"):
        assert not OPERATORS[name].compute(equal_TN, np.zeros(equal_TN.shape, dtype=np.int16), 1).any(), name


def test_value_that_is_not_finite_is_unknown_and_changes_no_other_firm(panel: Panel) -> None:
    huge = replace(panel, close_TN=np.where(np.arange(N) == 4, 1e200, panel.close_TN))
    for text in ("demean(close * close)", "1 / (close * close)", "1 / product(close, 3)"):
        with np.errstate(over="ignore"):
            ours_TN = evaluate(parse(text), huge)
        assert np.isnan(ours_TN[:, 4]).all(), text
        assert np.isfinite(ours_TN[:, :4]).mean() > 0.8, text


def test_feature_is_known_after_its_warm_up_where_the_firm_trades(panel: Panel) -> None:
    feature = characteristics_of({"x": "delta(mean(returns, 5), 3) / close"})["x"]
    assert (feature.warmup, feature.window, feature.family) == (8, 8 + 1 + MAX_HALT, "expression")
    assert feature.needs == {"close"}
    value_TN = feature.compute(panel)
    first_N = [int(np.flatnonzero(np.isfinite(value_TN[:, n]))[0]) for n in (0, 5)]
    assert first_N[1] >= 25 + 8 > first_N[0] >= 8
    assert lookback(parse("ema(delay(close, 2), 3) + std(close, 9)")) == 13


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("corr(clsoe, volume, 20)", ("'clsoe' (column 6)", "did you mean 'close'?")),
        ("rnak(close)", ("no function 'rnak'", "did you mean 'rank'?")),
        (
            "delay(close, -1)",
            ("'-1' (column 14)", "whole number of sessions from 1 to 2000", "none of the future"),
        ),
        ("delay(close, 0)", ("whole number",)),
        ("mean(close, 5.5)", ("whole number",)),
        ("mean(close, volume)", ("'volume' (column 13)", "whole number")),
        ("max(close, open)", ("maximum(x, y)",)),
        ("mean(close)", ("mean is written mean(x, n)",)),
        ("mean(close, n=5)", ("mean is written mean(x, n)",)),
        ("mean(3, 5)", ("needs a series here",)),
        ("quantile(close, 5, 2)", ("a number in [0, 1]",)),
        ("rank(close, sector)", ("the word group",)),
        ("vwap / close", ("prices have no vwap", "(high + low + close) / 3")),
        ("0 < close < 1", ("two values at a time",)),
        ("1 / 0 * close", ("not finite",)),
        ("1 + 2", ("names no series",)),
        ("1 and 2", ("names no series",)),
        ("mean(1 or 2, 5)", ("needs a series here",)),
        ("close * 1e400", ("'1e400' (column 9)", "not finite")),
        ("close * " + "9" * 400, ("not finite",)),
        ("close # adjusted / open", ("'#' (column 7)", "no comments")),
        ("close +", ("invalid syntax",)),
        ("__import__('os')", ("no function '__import__'",)),
        ("close.__class__", ("not part of the language",)),
        ("(lambda: 1)()", ("not part of the language",)),
        ("[close][0]", ("not part of the language",)),
        ("'close'", ("not part of the language",)),
        ("True", ("not part of the language",)),
        ("-" * 3000 + "close", ("nested",)),
        ("+".join(["close"] * 90), ("nested more than 80 levels",)),
    ],
)
def test_wrong_expression_is_refused_with_the_place_and_the_cure(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse(text)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(repr(text)[:40])
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("return_5", "another"),
        ("MA5", "another"),
        ("input_x", "no name"),
        ("a b", "no name"),
        ("x_missing", "no name"),
    ],
)
def test_name_of_another_feature_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        characteristics_of({name: "close"})
