"""What the page of a notebook must hold, for tests that run one."""

from __future__ import annotations

import ast
import json
import re

from places import ROOT

FOLDER = ROOT / "notebooks"


def cells(name: str, kind: str) -> list[str]:
    """Sources of a notebook's cells of one type."""
    content = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def drawn(code: str) -> int:
    """Number of figures that a cell ends with."""
    last = ast.parse(code).body[-1]
    return int(isinstance(last, ast.Expr) and bool(re.match(r"charts\.(?!embed)", ast.unparse(last))))


def expect_page(name: str, text: str) -> int:
    """The page of a notebook has all its figures and loads nothing; returns the number of figures."""
    figures = sum(drawn(cell) for cell in cells(name, "code"))
    assert figures >= 2
    assert text.count("Plotly.newPlot(") - text.count('"Plotly.newPlot(') >= figures
    assert "default-src 'none'" in text
    assert not re.findall(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](?!data:)[^"'#]""", text)
    return figures
