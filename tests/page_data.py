"""The data of a page, as its scripts read them."""

import base64
import gzip
import json
import re
from typing import Any


def unpack(text: str) -> Any:  # noqa: ANN401  # any JSON value
    """Read the compressed JSON of a page."""
    (packed,) = re.findall(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))
