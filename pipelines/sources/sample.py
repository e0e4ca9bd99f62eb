"""The bundled sample: adjusted closes of 20 large US firms, 1990 to 2022, shipped with skfolio."""

import polars as pl

from pipelines.sources.base import STATIC_SINCE, SourceTables, remarks_of, vendor_names

_NOTES, _HAZARDS = remarks_of("sample")


class SampleSource:
    """skfolio's bundled S&P 500 sample: real prices on every machine, without a network."""

    name = "sample"

    def fetch(self) -> SourceTables:
        """Deliver the closes in long format and the firms' static classification."""
        from skfolio.datasets import load_sp500_dataset

        wide = load_sp500_dataset()
        prices = (
            pl.DataFrame(
                {"date": wide.index.to_numpy(), **{str(c): wide[c].to_numpy() for c in wide.columns}}
            )
            .with_columns(pl.col("date").cast(pl.Date))
            .unpivot(index="date", variable_name="ticker", value_name="close")
            .filter(pl.col("close").is_not_null() & pl.col("close").is_not_nan())
            .sort("date", "ticker")
        )
        firms = [(ticker, *of) for ticker, of in vendor_names("sample").items()]
        securities = pl.DataFrame(
            firms, schema=["ticker", "name", "sector", "industry"], orient="row"
        ).with_columns(pl.lit(STATIC_SINCE).alias("valid_from"), pl.lit("USD").alias("currency"))
        return SourceTables({"prices": prices, "securities": securities}, notes=_NOTES, hazards=_HAZARDS)
