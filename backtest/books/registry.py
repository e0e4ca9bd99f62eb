"""The books by kind: every rule in a file of `backtest.books.rules`."""

import importlib
import pkgutil
from collections.abc import Iterator

from backtest.books import rules
from backtest.books.book import Book


def _rules() -> Iterator[type[Book]]:
    """The subclasses of `Book` that the files of `backtest.books.rules` define."""
    for file in pkgutil.iter_modules(rules.__path__, f"{rules.__name__}."):
        for value in vars(importlib.import_module(file.name)).values():
            if isinstance(value, type) and issubclass(value, Book) and value.__module__ == file.name:
                yield value


BOOKS: dict[str, type[Book]] = {rule.model_fields["kind"].default: rule for rule in _rules()}
"""Kind -> class of the rule."""
