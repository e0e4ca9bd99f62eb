"""The generated pages of the guide are those that the code gives now."""

from __future__ import annotations

import re
import runpy

import pytest
import reference
from places import ROOT
from typer.testing import CliRunner

from models.registry import MODELS
from pipelines.cli.main import app
from pipelines.config.schema import Config
from pipelines.sources.settings import FilesSourceConfig


@pytest.mark.parametrize(
    ("page", "written"),
    [
        ("config_reference.md", reference.config_page),
        ("cli.md", reference.commands_page),
        ("features.md", reference.features_page),
        ("result_tables.md", runpy.run_path(str(ROOT / "docs" / "result_tables.py"))["page"]),
    ],
    ids=["config", "commands", "features", "tables"],
)
def test_the_page_is_fresh(page: str, written: object) -> None:
    assert callable(written)
    assert (ROOT / "docs" / page).read_text("utf-8") == written(), "run 'make reference'"


def test_every_top_level_setting_model_and_option_of_files_has_a_row() -> None:
    page = (ROOT / "docs" / "config_reference.md").read_text("utf-8")
    for name in (*Config.model_fields, *FilesSourceConfig.model_fields):
        assert re.search(rf"^\| `{name}` \| .+ \| .+ \| \S.+ \|$", page, re.MULTILINE), name
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == set(MODELS)
    assert "| `embargo` | integer, >= 0 | required |" in page
    assert "| `pretrain.objective` | `masked_days`, `next_day` | `masked_days` |" in page


def test_the_options_on_the_page_are_those_that_help_lists() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    sections = re.split(r"^## peerglass ", page, flags=re.MULTILINE)[1:]
    assert len(sections) > 12
    for section in sections:
        words = section.splitlines()[0].split()
        answer = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
        assert answer.exit_code == 0
        helped = set(re.findall(r"(--[a-z][a-z-]+)", answer.output)) - {"--help"}
        documented = set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE))
        assert documented == {
            one for one in helped if re.search(rf"^\W+(\*\s+)?{one}\b", answer.output, re.MULTILINE)
        }
