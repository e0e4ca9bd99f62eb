"""An S3-compatible object store on loopback (moto's server) for tests.

The server runs in its own process: deltalake holds Python's lock while it waits for some answers, so a server
in a thread of the same process could never send them.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
"""Environment variables that a client needs."""
_SERVER = """
import logging, sys, threading
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"  # clients keep their connections
server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@contextmanager
def object_store() -> Iterator[str]:
    """Run a store with a bucket ``bucket``, and yield its address."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            with urllib.request.urlopen(  # noqa: S310 (loopback)
                urllib.request.Request(f"{url}/bucket", method="PUT")  # noqa: S310
            ):
                pass
            yield url
        finally:
            server.kill()


def options_of(address: str) -> dict[str, str]:
    """Options of a lake or a copy on the store."""
    return {"aws_endpoint_url": address, "aws_region": "us-east-1", "aws_allow_http": "true"}
