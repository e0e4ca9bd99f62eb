"""Metrics of a night in Prometheus' text format."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import night_results
import pytest

from pipelines.config.load import check_config
from pipelines.errors import ConfigError
from pipelines.nightly.alerts import metrics_text, write_metrics

NOW = dt.datetime(2026, 11, 20, 22, 45, tzinfo=dt.UTC)
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"([a-z_:][a-z0-9_:]*)\{{({LABEL}(?:,{LABEL})*)\}} (-?[0-9.e+-]+)")


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Metric -> labels -> value, by the documented grammar; every metric has HELP and TYPE once, in front."""
    assert text.endswith("\n")
    found: dict[str, dict[str, float]] = {}
    announced: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            announced.append(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2:] == [announced[-1], "gauge"]
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == announced[-1]
            assert match[2] not in found.setdefault(match[1], {})
            found[match[1]][match[2]] = float(match[3])
    assert len(announced) == len(set(announced)) == len(found)
    return found


def test_the_metrics_are_those_of_the_night(tmp_path: Path) -> None:
    result = night_results.night(tmp_path)
    found = parsed(metrics_text(result, NOW))
    own = 'config="desk"'
    assert found["peerglass_night_last_success_timestamp_seconds"] == {own: NOW.timestamp()}
    assert found["peerglass_night_state"] == {
        f'{own},state="done"': 0.0,
        f'{own},state="warned"': 1.0,
        f'{own},state="failed"': 0.0,
    }
    assert found["peerglass_night_signals"] == {own: 40.0}
    assert found["peerglass_night_trades"] == {own: 14.0}
    assert found["peerglass_night_turnover_ratio"][own] == 0.5 * float(result.book["trade"].abs().sum())
    assert found["peerglass_night_expected_cost_ratio"][own] == float(result.book["expected_cost"].sum())
    assert found["peerglass_night_step_seconds"] == {
        f'{own},step="ingest"': 12.5,
        f'{own},step="score"': 30.25,
    }
    assert found["peerglass_night_warnings"] == {f'{own},check="coverage"': 0.0, f'{own},check="drift"': 1.0}
    tables = result.tables
    assert found["peerglass_night_cusum"] == {own: tables["cusum"]["sum"][-1]}
    assert found["peerglass_night_cusum_limit"] == {own: 6.1}
    assert found["peerglass_night_psi_max"] == {own: 0.31}
    assert found["peerglass_night_drifted_features"] == {own: 1.0}
    newest = tables["realised_ic"].filter(role="champion")["rank_ic"].tail(20).to_numpy()
    assert found["peerglass_night_realised_rank_ic"][own] == pytest.approx(newest.mean(), rel=1e-12)
    assert found["peerglass_night_peak_memory_bytes"][own] > 1e7


def test_a_failed_night_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    result = replace(
        night_results.failed(tmp_path), nights=night_results.nights(["failed", "warned", "done"])
    )
    found = parsed(metrics_text(result, NOW))
    last = night_results.NOW - dt.timedelta(days=2)
    assert found["peerglass_night_last_success_timestamp_seconds"] == {'config="desk"': last.timestamp()}
    never = parsed(metrics_text(replace(result, nights=night_results.nights(["failed"])), NOW))
    assert "peerglass_night_last_success_timestamp_seconds" not in never


def test_labels_are_escaped(tmp_path: Path) -> None:
    result = replace(night_results.night(tmp_path), seconds={'a "b"\\\n': 1.0})
    assert parsed(metrics_text(result, NOW))["peerglass_night_step_seconds"] == {
        'config="desk",step="a \\"b\\"\\\\\\n"': 1.0
    }


def test_the_file_is_replaced_as_a_whole(tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = check_config(
        {**tiny, "nightly": {"alerts": {"metrics": str(tmp_path / "prom" / "night.prom")}}}, origin="metrics"
    )
    path = tmp_path / "prom" / "night.prom"
    assert write_metrics(settings, night_results.night(tmp_path)) == []
    path.write_text("old")
    write_metrics(settings, night_results.night(tmp_path))
    assert parsed(path.read_text())
    assert [one.name for one in path.parent.iterdir()] == ["night.prom"]
    path.unlink()
    path.mkdir()
    (finding,) = write_metrics(settings, night_results.night(tmp_path))
    assert (finding.check, finding.level) == ("metrics", "warn")
    assert "Is a directory" in finding.sentence


def test_prometheus_own_parser_reads_the_metrics(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    text = metrics_text(replace(night_results.night(tmp_path), seconds={'a "b"\\\n': 1.0}), NOW)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert set(families) == set(parsed(text))
    assert all(family.type == "gauge" and family.documentation for family in families.values())
    (step,) = families["peerglass_night_step_seconds"].samples
    assert step.labels == {"config": "desk", "step": 'a "b"\\\n'}


def test_a_file_that_the_collector_does_not_read_is_refused(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"nightly\.alerts\.metrics.*\.prom"):
        check_config({**tiny, "nightly": {"alerts": {"metrics": "night.txt"}}}, origin="metrics")
