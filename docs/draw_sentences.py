"""Print random sentences of the guide and of the docstrings, to be read aloud.

A sentence that has to be read twice should be rewritten. The same seed draws the same sentences of the same
texts.
"""

import argparse
import ast
import inspect
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("features", "models", "backtest", "pipelines", "peerglass")
FEWEST_WORDS = 4


def texts() -> Iterator[tuple[str, str]]:
    """Every text, with the file that it is in: prose of Markdown pages, and docstrings."""
    for page in sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]):
        prose = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
        kept = [line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#", ":::", "!["))]
        yield str(page.relative_to(ROOT)), "\n".join(kept)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node, clean=False)
                    if text:
                        line = 1 if isinstance(node, ast.Module) else node.lineno
                        yield f"{path.relative_to(ROOT)}:{line}", inspect.cleandoc(text)


def sentences(text: str) -> Iterator[str]:
    """Split a text into sentences; headings of docstring sections and names of arguments are left out."""
    lines = text.splitlines()
    depths = [len(line) - len(line.lstrip()) for line in lines]
    for i in range(len(lines) - 1):
        if (
            lines[i + 1].strip()
            and depths[i + 1] > depths[i]
            and not lines[i].lstrip().startswith(("-", "*"))
        ):
            lines[i] = ""  # the name of an argument, above its description
    prose = "\n".join(lines)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n-{3,}\n", prose):
        plain = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", plain):
            if len(sentence.split()) >= FEWEST_WORDS:
                yield sentence.removeprefix("- ")


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--count", type=int, default=20, help="sentences (20)")
    arguments = parser.parse_args()
    found = [(place, sentence) for place, text in texts() for sentence in sentences(text)]
    for place, sentence in random.Random(arguments.seed).sample(found, arguments.count):  # noqa: S311 (no secret)
        print(f"{place}\n    {sentence}\n")


if __name__ == "__main__":
    main()
