"""Files with a number for single firms: borrow fees and price limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import polars as pl

from features.panel.panel import Panel
from pipelines.config.sections import BacktestConfig
from pipelines.errors import ConfigError, DataError, one_line
from pipelines.format import abbreviate

FileSetting = Literal["backtest.costs.borrow_file", "backtest.execution.price_limit_file"]

_HOLDS: dict[FileSetting, tuple[str, str]] = {
    "backtest.costs.borrow_file": ("borrow fee", "bps_per_year"),
    "backtest.execution.price_limit_file": ("limit", "limit"),
}


def read_firm_file(file: str, setting: FileSetting, panel: Panel) -> pl.DataFrame:
    """Read a CSV or Parquet file with columns ticker and a number of at least 0, and perhaps from_date.

    The answer has these columns, with the number as ``value``, and ``firm``: the ticker in the data, which
    follows renames; null without one. Rows of former tickers come first, so that those of newer ones count.
    """
    path, (what, value) = Path(file), _HOLDS[setting]
    if not path.is_file():
        raise DataError(f"There is no file of {what}s at {path}; check {setting}.")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        else:
            # Type inference would read 000001 as a number.
            as_text = {"ticker": pl.String}
            frame = pl.read_csv(
                path, schema_overrides=as_text, try_parse_dates=True, infer_schema_length=None
            )
        since = pl.col("from_date") if "from_date" in frame.columns else pl.lit(None)
        frame = frame.select(
            pl.col("ticker").cast(pl.String),
            pl.col(value).cast(pl.Float64, strict=True).alias("value"),
            since.cast(pl.Date).alias("from_date"),
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"{path} is not a CSV or Parquet file with columns ticker and {value} ({one_line(error)})."
        ) from None
    known = pl.col("value").is_finite() & (pl.col("value") >= 0)
    wrong = frame.filter(pl.col("ticker").is_null() | ~known.fill_null(value=False))
    if not wrong.is_empty():
        ticker, number = wrong.row(0)[:2]
        raise DataError(
            f"{path} gives {ticker} a {what} of {number} ({value}); it must be a number of at least 0."
        )
    own = set(panel.tickers_N)
    now = [one if one in own else panel.newest_tickers.get(one) for one in frame["ticker"]]
    firm = pl.Series("firm", [one if one in own else None for one in now], dtype=pl.String)
    if not frame.is_empty() and firm.null_count() == frame.height:
        raise ConfigError(
            f"No ticker of {path} is in the data, which have for example {panel.tickers_N[0]!r} where the "
            f"file has {frame['ticker'][0]!r}: correct the tickers, or check {setting}."
        )
    return frame.with_columns(firm).sort(pl.col("ticker") == pl.col("firm"), maintain_order=True)


def unmatched_tickers(settings: BacktestConfig, panel: Panel) -> Iterator[str]:
    """Name the tickers of the files that are no firm of the data, a sentence for each file.

    A file that cannot be read is left out: where it is used, the error is raised.
    """
    files: dict[FileSetting, str | None] = {
        "backtest.costs.borrow_file": settings.costs.borrow_file,
        "backtest.execution.price_limit_file": settings.execution.price_limit_file,
    }
    for setting, file in files.items():
        try:
            rows = None if file is None else read_firm_file(file, setting, panel)
        except (ConfigError, DataError):
            continue
        if rows is not None and rows["firm"].null_count():
            names = rows.filter(pl.col("firm").is_null())["ticker"].unique().sort().to_list()
            are = "ticker is" if len(names) == 1 else "tickers are"
            yield f"{len(names):,} {are} in {setting}, but not in the data: {abbreviate(names, 5)}."
