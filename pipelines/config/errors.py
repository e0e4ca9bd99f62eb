"""Error sentences of a configuration: unknown keys, renamed keys and values that fail validation."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from pipelines.settings import UNKNOWN_KEY

RENAMED: Mapping[str, str | tuple[str, ...]] = {
    "label.decide": "label.forecast_frequency",
    "label.beyond_factors": "label.residualise_factors",
    "label.also_delays": "label.extra_delays",
    "label.unknown_ending_return": "label.unknown_delisting_return",
    "features.transform.indicator": "features.transform.add_indicator",
    "source.zero_is_unknown": "source.zero_means_missing",
    "source.assumed_lag_days": "source.reporting_lag_days",
    "source.shares_stated": "source.share_counts_as_of",
    "source.batch": "source.batch_size",
    "workers": "execution.workers",
    "audit.times": "audit.sessions",
    "models.*.day_layers": "models.*.encoder.layers",
    "models.*.heads": ("models.*.encoder.heads", "models.*.peer_heads"),
    "models.*.dropout": ("models.*.encoder.dropout", "models.*.peer_dropout"),
    **{
        f"models.*.{option}": f"models.*.encoder.{option}"
        for option in (
            *("width", "layers", "causal", "pooling", "positions"),
            *("kernel", "radius", "temperature", "norm", "activation"),
        )
    },
}
"""Old path of a key -> its new path or paths. The error sentence of an old key names the new one.

``*`` matches one part, such as a model's name: ``models.*.width`` -> ``models.*.encoder.width``. An entry
applies only where the section has the new key: the example does not apply to models without an encoder.
"""


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    """Say that a key is unknown, and which one was probably meant."""
    names = sorted(known)
    new = _new_path(where.rpartition(": ")[2], names)
    if new is not None:
        return f"{where} is now called {new}; rename the key."
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(names)}."
    return f"{where} is not a known name; {hint}"


def _new_path(path: str, known: Iterable[str]) -> str | None:
    """Look an unknown key up in `RENAMED`; None if it is not there, or not a key of this section."""
    parts = path.split(".")
    *section, _ = parts
    names = []
    for old, new in RENAMED.items():
        old_parts = old.split(".")
        if len(old_parts) != len(parts) or any(
            a not in ("*", b) for a, b in zip(old_parts, parts, strict=True)
        ):
            continue
        for one in [new] if isinstance(new, str) else new:
            new_parts = [b if a == "*" else a for a, b in itertools.zip_longest(one.split("."), parts) if a]
            moved = new_parts[: len(section)] != section
            if moved or new_parts[len(section)] in known:
                names.append(".".join(new_parts))
    return " and ".join(names) or None


def describe(error: ValidationError, origin: str, raw: Any) -> str:  # noqa: ANN401 (YAML holds anything)
    """Describe one problem of a validation in one sentence: the first unknown key, else the first problem."""
    problems = error.errors()
    problem = next((p for p in problems if p["type"] == UNKNOWN_KEY), problems[0])
    if problem["type"] == UNKNOWN_KEY:
        context = problem["ctx"]
        return unknown_key(f"{origin}: {_key_path((*problem['loc'], context['key']), raw)}", **context)
    where = _key_path(problem["loc"], raw)
    given = "" if problem["type"] == "missing" else f" (given: {problem['input']!r})"
    message = problem["msg"].removeprefix("Value error, ")
    more = f" {len(problems) - 1} more problem(s) follow." if len(problems) > 1 else ""
    return f"{origin}: {where or 'settings'}: {message}{given}.{more}"


def _key_path(location: Iterable[str | int], raw: Any) -> str:  # noqa: ANN401 (YAML holds anything)
    """Convert pydantic's location of a problem to a key's path, without the tags of unions."""
    path: list[str] = []
    for part in location:
        if isinstance(raw, Mapping) and part not in raw and part in (raw.get("kind"), raw.get("scheme")):
            continue
        if isinstance(raw, Mapping):
            raw = raw.get(part)
        elif isinstance(raw, list | tuple) and isinstance(part, int):
            raw = raw[part]
        path.append(str(part))
    return ".".join(path)
