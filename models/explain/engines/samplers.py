"""The engines that sample coalitions, by name."""

from __future__ import annotations

from models.explain.engines.exact import ExactEngine
from models.explain.engines.kernel import KernelEngine
from models.explain.shapley import Engine, PermutationEngine

SAMPLERS: dict[str, Engine] = {
    engine.name: engine for engine in (PermutationEngine(), KernelEngine(), ExactEngine())
}
"""Every engine that needs nothing but a game, by name."""
