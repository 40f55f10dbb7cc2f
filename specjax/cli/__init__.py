"""The command line: one file a command."""

from specjax.cli import interrupts


def main() -> None:
    """Runs the command line; Ctrl-C ends it while it is still being imported, too."""
    with interrupts.leave_at_once():
        from specjax.cli import app

        app.main()
