"""``python -m specjax COMMAND``."""

from specjax.cli import main

if __name__ == "__main__":
    main()
