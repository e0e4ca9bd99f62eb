"""A griffe extension for the API pages: reStructuredText in docstrings becomes Markdown.

Docstrings name other objects as ``:func:`pipelines.stages.run_config` ``, and begin code with ``::``.
Markdown has neither.
"""

import re

import griffe

ROLE = re.compile(r":(?:func|class|data|mod|meth|attr|exc):`~?([^`]+)`")
LITERAL_BLOCK = re.compile(r"::(?=\n\n {4})")


class DocstringRoles(griffe.Extension):
    """Replace roles by code, and the two colons before a literal block by one."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = LITERAL_BLOCK.sub(":", text)
