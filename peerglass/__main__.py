"""``python -m peerglass``, and the command ``peerglass``."""

from pipelines.cli.main import main

if __name__ == "__main__":
    main()
