"""``python -m peerglass``, and the command ``peerglass``."""

from __future__ import annotations

from pipelines.cli.main import main

if __name__ == "__main__":
    main()
