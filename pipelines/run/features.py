"""The feature store of a config, and the digest of the code that computes channels and characteristics."""

from __future__ import annotations

import functools
from pathlib import Path

from pipelines.config.load import digest
from pipelines.config.schema import Config
from pipelines.dataset.feature_store import FeatureStore
from pipelines.lake.options import is_url
from pipelines.progress import Progress
from pipelines.run.fingerprint import fingerprint, installed, source_digest

_LIBRARIES = ("numba", "numpy", "polars", "scipy")
_CODE = ("features/**/*.py", "pipelines/dataset/characteristics.py", "pipelines/dataset/market.py")
_ROOT = Path(__file__).parents[2]


def feature_store(config: Config, progress: Progress) -> FeatureStore:
    """Return the feature store of a config; nothing is created before it is used."""
    return FeatureStore(
        folder=store_folder(config),
        limit=int(config.feature_store.limit_gib * 2**30),
        code=features_digest(),
        notify=progress.note,
    )


def store_folder(config: Config) -> Path:
    """Return the folder of a config's feature store."""
    if config.feature_store.folder is not None:
        return Path(config.feature_store.folder)
    if is_url(config.output):
        return Path.home() / ".cache" / "peerglass" / "features"
    return Path(config.output).absolute().parent / "features"


def features_digest() -> str:
    """Digest of the code and the libraries that compute channels and characteristics.

    A feature that was registered or replaced outside these files is included by its bytecode.
    """
    from features.library.channels import CHANNELS
    from features.library.characteristics import CHARACTERISTICS

    libraries = {name: installed(name) for name in _LIBRARIES}
    registered = [fingerprint(features, _is_source) for features in (CHANNELS, CHARACTERISTICS)]
    return digest((_sources(), libraries, registered))


@functools.cache
def _sources() -> str:
    return source_digest(_files(), _ROOT.resolve())


@functools.cache
def _files() -> frozenset[Path]:
    return frozenset(path.resolve() for pattern in _CODE for path in _ROOT.resolve().glob(pattern))


@functools.cache
def _is_source(file: str) -> bool:
    return Path(file).resolve() in _files()
