"""The config of ``peerglass demo``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipelines.config.load import load_config
from pipelines.config.schema import Config

# Beside the packages in a checkout, and installed beside them by the wheel.
DEMO_CONFIG = Path(__file__).parents[2] / "configs" / "demo.yaml"


def demo_config(overrides: Iterable[str]) -> Config:
    """Load the config of the embedded market."""
    return load_config(DEMO_CONFIG, overrides)
