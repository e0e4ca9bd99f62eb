"""The S&P 500 config: statements of a public data set with canonical names, signs and units."""

from __future__ import annotations

import polars as pl
import pytest
from places import DATA, ROOT

from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.lake.contracts import check
from pipelines.run.fetch import make_source
from pipelines.sources.base import ITEMS
from pipelines.sources.files.source import FilesSource


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in ("prices", "fundamentals"):
        monkeypatch.setenv(f"PEERGLASS_SP500_{name.upper()}", str(DATA / f"sp500_{name}.parquet"))
    monkeypatch.setenv("PEERGLASS_SP500_SECURITIES", str(DATA / "sp500_securities.csv"))
    return load_config(ROOT / "configs" / "sp500_quarterly.yaml")


def test_every_item_of_the_data_set_is_mapped(config: Config) -> None:
    assert config.source.kind == "files"
    assert set(ITEMS) - set(config.source.items) == {"dividends_paid"}
    assert set(config.source.zero_means_missing) <= set(config.source.items)
    assert isinstance(make_source(config), FilesSource)


@pytest.mark.skipif(
    not (DATA / "sp500_fundamentals.parquet").exists(), reason="the shared S&P 500 data is not here"
)
def test_all_statements_arrive_with_their_hazards(config: Config) -> None:
    source = make_source(config)
    assert isinstance(source, FilesSource)
    fetched = source.fetch()
    raw = pl.read_parquet(DATA / "sp500_fundamentals.parquet")
    checked = check("fundamentals", fetched.tables["fundamentals"])
    assert checked.rejected.is_empty()
    rows = checked.valid
    assert rows["assumed"].all()
    assert rows.filter(pl.col("item") == "total_assets").height == raw.height == 1781
    for item, column, sign in (
        ("revenue", "Total Revenue", 1),
        ("capital_expenditure", "Capital Expenditures", -1),
        ("shares_outstanding", "Estimated Shares Outstanding", 1),
    ):
        ours, theirs = rows.filter(pl.col("item") == item)["value"].sum(), sign * raw[column].sum()
        assert ours == pytest.approx(theirs, rel=1e-12)
    assert rows.filter((pl.col("item") == "capital_expenditure") & (pl.col("value") < 0)).height == 1
    assert rows.filter(pl.col("item") == "current_assets")["value"].min() > 0  # type: ignore[operator]  # a number
    spans = rows.group_by("item").agg(pl.col("months").unique())
    assert spans.filter(pl.col("item") == "revenue")["months"].to_list() == [[12]]
    assert spans.filter(pl.col("item") == "total_assets")["months"].to_list() == [[None]]
    members = check("membership", fetched.tables["membership"])
    assert members.rejected.is_empty()
    assert (members.valid["from_date"].dt.year() > 1900).sum() == 307
    output = " ".join(fetched.hazards)
    for words in (
        "Survivorship",
        "Assumed reporting lag",
        "90 days",
        "the last restated one",
        "Static groups",
    ):
        assert words in output
    assert (
        check(
            "prices",
            fetched.tables["prices"]
            .head(1)
            .with_columns(source=pl.lit("files"), ingested_at=pl.lit(0).cast(pl.Datetime("us", "UTC"))),
        ).valid.height
        == 1
    )
