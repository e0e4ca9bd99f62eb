"""The notebooks define nothing, caption their figures, run from the top, and keep figures as a page."""

from __future__ import annotations

import ast
import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from notebook_pages import FOLDER, cells, drawn, expect_page
from places import ROOT
from playwright.sync_api import Browser, Route, sync_playwright
from shared_folders import shared_folder
from tracking_stores import new_store
from warm import Process

import peerglass
from pipelines.commands.notebooks import copy_notebooks, write_page
from pipelines.errors import ConfigError, PeerglassError

NAMES = [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
FIRST = "first.html"
SMALLER = {"firms: 60, sessions: 900": "firms: 50, sessions: 640", "train: 500": "train: 300"}
"""Changes of the notebooks' market for these tests."""
CHROMIUM = Path("/usr/bin/chromium")
KERNEL = "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PUBLIC = {"os", "pathlib", "polars", "peerglass"}


def _make(folder: Path) -> None:
    copy_notebooks(folder / "notebooks")
    market = folder / "notebooks" / "market.yaml"
    text = market.read_text("utf-8")
    for users, ours in SMALLER.items():
        assert users in text
        text = text.replace(users, ours)
    market.write_text(text, "utf-8")
    (folder / "data").mkdir()
    new_store(folder / "data")
    new_store(folder / "data" / "own" / "data")  # of the fourth notebook
    write_page(folder / "notebooks" / f"{NAMES[0]}.ipynb", folder / FIRST, {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def warm_kernels() -> Iterator[None]:
    """Start kernels with the libraries already loaded (`warm`); `test_new_user` starts one as users do."""

    def launch(cmd: Sequence[str], *, cwd: str, env: Mapping[str, str], **_: object) -> Process:
        assert list(cmd[1:3]) == ["-m", "ipykernel_launcher"]
        kernel = Process(KERNEL, cmd[3:], Path(cwd), env)
        while os.getpgid(kernel.pid) != kernel.pid:  # until then, a signal to its group would end pytest
            time.sleep(0.01)
        return kernel

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("jupyter_client.provisioning.local_provisioner.launch_kernel", launch)
        yield


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory, migrated_stores: None, warm_kernels: None) -> Path:
    """A folder with the notebooks, the first one's page, and the run of their market that it made."""
    return shared_folder(tmp_path_factory, "notebooks", _make)


def test_all_are_numbered_and_all_are_part_of_an_installation() -> None:
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shipped = {source for source in wheel["force-include"] if source.startswith("notebooks/")}
    assert shipped == {f"notebooks/{path.name}" for path in FOLDER.iterdir() if path.is_file()}
    assert all(source == target for source, target in wheel["force-include"].items())


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_defines_nothing_and_imports_the_public_api(name: str) -> None:
    code = cells(name, "code")
    assert len(code) > 5
    imported = set()
    for node in (node for cell in code for node in ast.walk(ast.parse(cell))):
        assert not isinstance(node, _DEFINES), f"{name} defines something: {ast.unparse(node)}"
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    assert {"peerglass"} <= imported <= _PUBLIC
    content = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))
    for cell in content["cells"]:
        assert not cell.get("outputs"), "notebooks are committed without outputs"
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_followed_by_what_it_does_not_show(name: str) -> None:
    content = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))
    waiting, figures = 0, 0
    for cell in content["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            figures += drawn(text)
            waiting += drawn(text)
        elif "not show" in text:
            waiting = 0
        else:
            assert waiting == 0 or not text.startswith("##"), (
                f"{name}: a figure before {text[:40]!r} has no caption"
            )
    assert figures >= 2
    assert waiting == 0


@pytest.mark.slow(45)
@pytest.mark.parametrize("name", NAMES[:-1])  # the last one is run by `test_new_user`, from the wheel
def test_a_notebook_runs_and_keeps_its_figures_as_a_page(name: str, market: Path, tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(ROOT)}
    if name[:2] in ("02", "03"):
        variables["PEERGLASS_RUN"] = str(peerglass.open_run(output=market / "data/runs").folder)
    page = market / FIRST
    if name != NAMES[0]:
        with FileLock(market / "notebooks.lock"):  # the tests of other processes share the market
            page = write_page(market / "notebooks" / f"{name}.ipynb", tmp_path / "page.html", variables)
    expected = expect_page(name, page.read_text("utf-8"))
    if name.startswith("02") and CHROMIUM.exists():
        look_at(page, expected)


def look_at(page_file: Path, figures: int) -> None:
    """Open the page in a browser: figures are drawn, a menu changes the firm, and nothing is requested."""
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    with sync_playwright() as driver:
        browser: Browser = driver.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.route(lambda url: not url.startswith("file:"), refuse)
        page.goto(page_file.as_uri())
        page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot .main-svg').length >= {figures}")
        plot = page.locator(".js-plotly-plot").first
        before = plot.locator(".gtitle").text_content()
        label, title = plot.evaluate(  # what plotly does when an entry of the menu is clicked
            """async plot => {
                const button = plot.layout.updatemenus[0].buttons[3];
                await Plotly.update(plot, ...button.args);
                return [button.label, plot.querySelector('.gtitle').textContent];
            }"""
        )
        assert before != title
        assert title.startswith(f"Peers of {label} on ")
        assert plot.locator(".errorbar path").count() > 5
        browser.close()
    assert not asked
    assert not errors


@pytest.mark.slow(4)
def test_an_error_in_a_cell_is_one_sentence_and_writes_nothing(market: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    notebook = market / "notebooks" / "02_peer_network_review.ipynb"
    with pytest.raises(ConfigError, match=r"^02_peer_network_review.ipynb: No run .* 'none'"):
        write_page(notebook, target, {"PYTHONPATH": str(ROOT), "PEERGLASS_RUN": "none"})
    wrong = tmp_path / "wrong.ipynb"
    content: dict[str, Any] = json.loads(notebook.read_text("utf-8"))
    content["cells"] = [{**content["cells"][1], "source": ["1 / 0"]}]
    wrong.write_text(json.dumps(content))
    with pytest.raises(PeerglassError, match=r"^wrong.ipynb: a cell ended with ZeroDivisionError: division"):
        write_page(wrong, target, {})
    assert not target.exists()
