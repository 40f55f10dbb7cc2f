"""``python -m specjax COMMAND``."""

from specjax.cli.start import main

if __name__ == "__main__":
    main()
