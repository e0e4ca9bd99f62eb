"""Plotly in notebooks without a network, and charts of the pages as figures of plotly."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io._base_renderers import NotebookRenderer

from pipelines.pages.figure import FONT, INK, Figure, safe

_NAME = "peerglass"
MENU = {"x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 26}}
"""Place of a menu in a figure."""


class _Offline(NotebookRenderer):  # type: ignore[misc]  # plotly carries no annotations
    """Figures as HTML that asks no other host for anything; plotly.js comes from :func:`embed`."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """Return the figure as HTML; plotly's own renderer would load MathJax from a server."""
        html = pio.to_html(
            fig_dict,
            config={"displaylogo": False, "responsive": True},
            include_plotlyjs=False,
            include_mathjax=False,
            full_html=False,
            default_width="100%",
            validate=False,
        )
        return {"text/html": html}


def embed() -> None:
    """Embed plotly.js in the notebook, so that its figures need no network.

    Call it in the first cell. The output of that cell holds plotly.js (5 MB). Figures are then shown in
    JupyterLab, and kept when the notebook is exported to HTML, without a request to another host. To have a
    smaller file, choose another of plotly's renderers (``plotly.io.renderers``) instead.
    """
    pio.renderers[_NAME] = _Offline()
    pio.renderers.default = f"plotly_mimetype+{_NAME}"  # JupyterLab takes the first, HTML pages the second


def to_plotly(figure: Figure) -> go.Figure:
    """Turn a chart of the pages into a figure of plotly with title and legend; views become a menu."""
    made = go.Figure(list(figure.traces), dict(figure.layout))
    margin = made.layout.margin
    made.update_layout(
        title={"text": safe(figure.title), "x": 0.0, "xanchor": "left", "xref": "container", "y": 0.98},
        title_pad={"l": 8},
        title_font={"size": 16, "family": FONT, "color": INK},
        showlegend=bool(figure.legend),
        legend={"orientation": "h", "x": 0.0, "y": 1.0, "yanchor": "bottom"},
        margin={"l": margin.l, "r": max(margin.r, 24), "t": 100, "b": margin.b},
        height=figure.height + 106,
    )
    if figure.views:
        in_views = {index for indices in figure.views.values() for index in indices}
        buttons = [
            {
                "label": name,
                "method": "restyle",
                "args": [{"visible": [i in indices or i not in in_views for i in range(len(figure.traces))]}],
            }
            for name, indices in figure.views.items()
        ]
        made.update_layout(updatemenus=[{"buttons": buttons, **MENU}])
    return made
