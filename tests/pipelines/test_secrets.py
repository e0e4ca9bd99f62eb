"""Secrets: no secret of a config appears in any output, file, error message or tracking store."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from command import Call, command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import recorded

from pipelines.config.load import load_config, to_yaml
from pipelines.config.schema import Config
from pipelines.errors import ConfigError, DataError, TrackingError
from pipelines.progress import Progress
from pipelines.run.record import open_run
from pipelines.secrets import masked, redact
from pipelines.tracking import runs as run_tracking

SECRET = "hunter2-zebra"  # noqa: S105 (not a real password)


@pytest.fixture
def peerglass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return command(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(settings: dict[str, Any], path: str = "a.yaml") -> Path:
    Path(path).write_text(yaml.safe_dump(settings))
    return Path(path)


def everything_under(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Name and content of every file. Texts in Parquet files are uncompressed."""
    for path in sorted(folder.rglob("*")):
        yield path, str(path).encode() + (path.read_bytes() if path.is_file() else b"")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://user:p@ss/w#rd@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://me@firm.com:pw@host/db", "postgresql://me@firm.com:***@host/db"),
        ("postgresql://user:${PW}@host/db", "postgresql://user:${PW}@host/db"),
        ("postgresql://user:${PW:-pw}@host/db", "postgresql://user:${PW:-***}@host/db"),
        ("postgresql://${WHO:-user:pw}@host/db", "postgresql://${WHO:-***}@host/db"),
        ("${URI:-postgresql://user:pw@host/db}", "${URI:-postgresql://user:***@host/db}"),
        ("https://pw@host:5000/path", "https://***@host:5000/path"),
        ("https://host/path?user=me&token=p w&x=1", "https://host/path?user=me&token=***&x=1"),
        ("s3://b/l?X-Amz-Signature=pw", "s3://b/l?X-Amz-Signature=***"),
        (
            "cannot reach 'http://u:pw@h/x' password=pw too",
            "cannot reach 'http://u:***@h/x' password=*** too",
        ),
        ("${API_TOKEN:-pw}", "${API_TOKEN:-***}"),
        ("${DATA:-../data}/prices.csv", "${DATA:-../data}/prices.csv"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("sqlite:////home/me@firm/mlflow.db", "sqlite:////home/me@firm/mlflow.db"),
        ("sqlite:///data/mlflow.db", "sqlite:///data/mlflow.db"),
        ("C:/Users/me", "C:/Users/me"),
    ],
)
def test_secrets_in_a_text_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_a_reference_is_kept_on_disk_and_resolved_in_memory(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    monkeypatch.setenv("MLFLOW_PASSWORD", SECRET)
    monkeypatch.setenv("SEED", "5")
    monkeypatch.delenv("LAKE_FOLDER", raising=False)
    uri = "postgresql://user:${MLFLOW_PASSWORD}@host/db"
    written = {**tiny, "tracking": {"uri": uri}, "lake": "${LAKE_FOLDER:-lake}", "seeds": [1, "${SEED}"]}
    config = load_config(write(written))
    assert config.tracking.uri == f"postgresql://user:{SECRET}@host/db"
    assert (config.lake, config.seeds) == (f"{Path.cwd()}/lake", (1, 5))
    answer = peerglass("validate", "a.yaml")
    assert answer.code == 0
    assert yaml.safe_load(answer.out)["tracking"]["uri"] == uri
    assert yaml.safe_load(answer.out)["lake"] == f"${{LAKE_FOLDER:-{Path.cwd()}/lake}}"
    assert yaml.safe_load(answer.out)["seeds"] == [1, "${SEED}"]

    run = recorded(config, {"prices": 1})
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["tracking"]["uri"] == uri
    assert open_run(run.run_id, Path("runs")).config == config
    moved = config.model_copy(update={"lake": "elsewhere"})
    assert yaml.safe_load(to_yaml(moved))["lake"] == "elsewhere", "a changed setting is no longer a reference"


def test_a_run_is_not_opened_if_the_environment_has_changed_its_settings(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """References stay on disk, so the environment could change a run after it was made."""
    monkeypatch.setenv("EPOCHS", "5")
    monkeypatch.setenv("STORE", "one.db")
    written = {**tiny, "fit": {"epochs": "${EPOCHS}"}, "tracking": {"uri": "sqlite:///${STORE}"}}
    run = recorded(load_config(write(written)), {"prices": 1})
    monkeypatch.setenv("STORE", "two.db")
    opened = open_run(run.run_id, Path("runs"))
    assert opened.config.fit == run.config.fit
    assert opened.config.tracking.uri == f"sqlite:///{Path.cwd()}/two.db", "locations may change"
    monkeypatch.setenv("EPOCHS", "6")
    sentence = r"fit\.epochs comes from an environment variable\. It was '5' when the run was made and is"
    with pytest.raises(ConfigError, match=sentence):
        open_run(run.run_id, Path("runs"))


def test_an_unset_variable_is_named_with_exit_code_2(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    monkeypatch.delenv("MLFLOW_PASSWORD", raising=False)
    write({**tiny, "tracking": {"uri": "postgresql://u:${MLFLOW_PASSWORD}@h/db"}})
    for verb in ("validate", "ingest", "train", "run"):
        answer = peerglass(verb, "a.yaml")
        assert answer.code == 2
        assert answer.out == ""
        assert answer.err == (
            "peerglass: a.yaml: tracking.uri refers to the environment variable MLFLOW_PASSWORD, which is "
            "not set: set it, or write ${MLFLOW_PASSWORD:-} with a default after the dash.\n"
        )


def test_a_run_whose_secret_was_written_in_the_config_names_the_cure(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///file:mlflow.db?uri=true&token={SECRET}"
    run = recorded(load_config(write({**tiny, "tracking": {"uri": uri}})), {"prices": 1})
    opened = open_run(run.run_id, Path("runs"))
    assert opened.config.tracking.uri == f"sqlite:///file:{Path.cwd()}/mlflow.db?uri=true&token=***"
    sentence = (
        r"tracking\.uri is sqlite:///file:/\S+/mlflow\.db\?uri=true&token=\*\*\* because secrets are not "
        r"stored with a run; replace \*\*\* in the config\.yaml of the run by a reference such as"
    )
    with pytest.raises(ConfigError, match=sentence):
        run_tracking.log_audit(opened)
    path = opened.folder / "config.yaml"
    path.write_text(path.read_text().replace("***", "${MLFLOW_PASSWORD}"))
    monkeypatch.setenv("MLFLOW_PASSWORD", SECRET)
    run_tracking.log_audit(open_run(run.run_id, Path("runs")))
    assert Path("mlflow.db").is_file()


def test_the_run_id_does_not_depend_on_secrets(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def run_id(password: str, seed: int = 0) -> str:
        monkeypatch.setenv("DATA_TOKEN", password)
        source = {
            "kind": "files",
            "prices": f"https://me:{password}@host/${{DATA_TOKEN}}/prices.csv",
            "hazards": [f"bought at https://host/?token={password}"],
        }
        path = write(
            {**tiny, "source": source, "tracking": {"uri": f"http://u:{password}@h"}, "seeds": [seed]}
        )
        return recorded(load_config(path), {"prices": 1}).run_id

    assert run_id("first-password") == run_id("second-password")
    assert run_id("first-password") != run_id("first-password", seed=8)


# Characters that are special in a shell, YAML or a URL. The fixed ends make sure that no output contains the
# password by chance.
passwords = st.text(
    st.characters(
        codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Co"), exclude_characters="}\x85"
    ),
    min_size=1,
    max_size=20,
).map(lambda middle: f"zq7{middle}7qz")


@dataclass(frozen=True)
class Place:
    """A setting in which a user may write a secret, in place of ``{}``."""

    path: str
    text: str
    encoded: bool = False  # a URL parameter cannot hold & or # unencoded


PLACES = (
    Place("tracking.uri", "postgresql://user:{}@host:5432/db"),
    Place("tracking.uri", "http://user:{}@127.0.0.1:1/mlflow", encoded=True),
    Place("tracking.uri", "https://{}@host/mlflow", encoded=True),
    Place("tracking.uri", "sqlite:///file:mlflow.db?uri=true&token={}", encoded=True),
    Place("tracking.artifacts", "s3://key:{}@bucket/artifacts"),
    Place("lake", "s3://user:{}@bucket/lake", encoded=True),
    Place("lake", "s3://bucket/lake?secret={}", encoded=True),
    Place("lake_options.aws_secret_access_key", "{}"),
    Place("lake_options.aws_endpoint_url", "https://user:{}@host"),
    Place("lake_options.aws_endpoint_url", "https://host?X-Amz-Signature={}", encoded=True),
    Place("source.prices", "https://user:{}@host/prices.csv"),
    Place("source.prices", "https://host/prices.csv?api_key={}", encoded=True),
    Place("source.hazards", "[from ftp://user:{}@host/prices]", encoded=True),
    Place("init_from", "https://user:{}@host/run"),
    Place("tracking", "postgresql://user:{}@host/db"),  # of the wrong type: the error quotes the value
    Place("seeds", "postgresql://user:{}@host/db"),
    Place("fit.epochs", "postgresql://user:{}@host/db"),
    Place("models.ridge.alphas", "https://user:{}@host/"),
    Place("nonsense", "https://user:{}@host/"),
    Place("name", "https://user:{}@host/"),
)


@pytest.mark.slow(3)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.text)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(password=passwords, how=st.sampled_from(("text", "env", "default")))
def test_no_secret_is_in_anything_that_prints_a_config(  # noqa: PLR0917 (hypothesis and fixtures)
    place: Place,
    password: str,
    how: str,
    tiny: dict[str, Any],
    peerglass: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``validate``, its errors and tracebacks, a run's files and identity, ``repr``, and data for MLflow.

    The secret is in the file, in the environment, or the default of a reference.
    """
    secret = quote(password, safe="") if place.encoded else password
    monkeypatch.setenv("PEERGLASS_TEST_PASSWORD", secret)
    written = {"text": secret, "env": "${PEERGLASS_TEST_PASSWORD}", "default": f"${{UNSET_7:-{secret}}}"}
    text = place.text.format(written[how])
    raw = {**tiny, "source": {"kind": "files", "prices": "prices.csv"}, "models": {"ridge": {}}}
    nested: Any = text[1:-1].split("]") if text.startswith("[") else text
    outer, _, inner = place.path.partition(".")
    if inner:
        for part in reversed(inner.split(".")):
            nested = {part: nested}
        nested = {**raw.get(outer, {}), **nested}
    raw[outer] = nested
    path = write(raw)
    printed: list[str] = []
    for arguments in (("validate", "a.yaml"), ("--debug", "validate", "a.yaml")):
        answer = peerglass(*arguments)
        assert answer.code in (0, 2, 3), answer.err
        printed += [answer.out, answer.err]
    answer = peerglass("validate", "a.yaml", "--set", f"{place.path}={text}")
    printed += [answer.out, answer.err]
    try:
        config = load_config(path)
    except ConfigError as error:
        printed.append(str(error))
    else:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
        run = recorded(config, {"prices": 1})
        printed += [repr(config), str(config.tracking), to_yaml(config), run.run_id]
        printed += [file.read_text() for file in run.folder.iterdir()]
        printed.append(json.dumps(config.without_secrets()))
        again = open_run(run.run_id, Path("runs")).config
        printed += [to_yaml(again), repr(again)]
        for kind in (DataError, TrackingError):
            printed.append(str(kind(f"{config.tracking.uri} {config.source} {config.tracking.uri!r}")))
    forms = {secret, password, quote(password, safe="")}
    for output in printed:
        for form in forms:
            assert form not in output, place


def test_messages_of_libraries_are_redacted(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], peerglass: Call
) -> None:
    """Libraries quote a password decoded, encoded, in another URL or alone."""
    monkeypatch.setenv("MLFLOW_PASSWORD", "p@ss word'2")
    write({**tiny, "tracking": {"uri": "postgresql://user:${MLFLOW_PASSWORD}@host/db"}})
    load_config(Path("a.yaml"))
    for text in (
        "FATAL: p@ss word'2 is wrong",
        "p%40ss%20word%272",
        "p%40ss+word%272",
        repr("p@ss word'2\""),
    ):
        assert "ss" not in redact(text).replace("FATAL", "")
    Progress().note("asked postgresql://user:p@ss word'2@host/db")
    assert "word" not in capsys.readouterr().err

    def broken(*_: object) -> None:
        raise RuntimeError("could not connect with p@ss word'2")

    from pipelines.config import load as config_load

    monkeypatch.setattr(config_load, "to_yaml", broken)
    for arguments in (("validate", "a.yaml"), ("--debug", "validate", "a.yaml")):
        answer = peerglass(*arguments)
        assert answer.code == 1
        assert "could not connect with ***" in answer.err
        assert "word" not in answer.err


@pytest.mark.parametrize("line", ["uri: [postgresql://u:{}@h", "uri: *{}", "uri: !{} x", "uri: {}: {}: x"])
def test_an_invalid_yaml_file_is_not_quoted(line: str, peerglass: Call) -> None:
    Path("a.yaml").write_text("name: a\ntracking:\n  " + line.replace("{}", SECRET) + "\n")
    answer = peerglass("validate", "a.yaml")
    assert answer.code == 2
    assert "a.yaml is not valid YAML" in answer.err
    assert "line " in answer.err
    assert SECRET not in answer.err + answer.out


@pytest.mark.slow(2)
def test_a_whole_run_writes_no_secret_anywhere(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, peerglass: Call
) -> None:
    """Secrets are in the store's URI, in the environment and in a hazard; every new file is searched."""
    rows = [f"{day},{ticker},{10 + day.day % 7 + len(ticker)}" for day, ticker in bars()]
    Path("prices.csv").write_text("date,ticker,close\n" + "\n".join(rows) + "\n")
    monkeypatch.setenv("STORE_TOKEN", "environment-" + SECRET)
    raw = {
        **tiny,
        "source": {
            "kind": "files",
            "prices": "${PRICES_CSV:-prices.csv}",
            "hazards": [f"bought at https://user:{SECRET}@vendor.com"],
        },
        "universe": {"min_history": 30},
        "models": {"zero": {}, "ridge": {}},
        "audit": {"enabled": False},
        "tracking": {
            "uri": "sqlite:///file:mlflow.db?uri=true&token=${STORE_TOKEN}&secret=" + SECRET,
            "artifacts": "mlartifacts",
        },
    }
    Path("config").mkdir()
    write(raw | {"root": ".."}, "config/a.yaml")
    answer = peerglass("run", "config/a.yaml")
    assert answer.code == 0, answer.err
    assert SECRET not in answer.out + answer.err
    assert "bought at https://user:***@vendor.com" in answer.out
    leaks = [
        path
        for path, content in everything_under(Path.cwd())
        if path.parent.name != "config" and SECRET.encode() in content
    ]
    assert leaks == []
    with closing(sqlite3.connect("mlflow.db")) as store:
        logged = dict(store.execute("select key, value from params").fetchall())
    assert logged["source.kind"] == "files", "the run is logged"
    assert len(list(Path("mlartifacts").rglob("report.html"))) == 1
    (report,) = Path("runs").rglob("report.html")
    assert "${STORE_TOKEN}" in report.read_text()
    assert f"${{PRICES_CSV:-{Path.cwd()}/prices.csv}}" in report.read_text()


def bars() -> Iterator[tuple[Any, str]]:
    import datetime as dt

    days = [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(430)]
    for day in days:
        if day.weekday() < 5:
            for ticker in ("A", "BB", "CCC", "DDDD", "EEEEE", "FFFFFF"):
                yield day, ticker


def test_an_unreachable_store_is_named_without_its_password(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # MLflow waits between them
    config: Config = load_config(write({**tiny, "tracking": {"uri": f"http://user:{SECRET}@127.0.0.1:1"}}))
    run = recorded(config, {"prices": 1})
    with pytest.raises(TrackingError) as caught:
        run_tracking.log_audit(run)
    assert "http://user:***@127.0.0.1:1 cannot be used (API request to" in str(caught.value)
    assert SECRET not in str(caught.value)
