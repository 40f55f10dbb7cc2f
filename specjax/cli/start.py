"""Where a command begins: nothing heavy is imported before Ctrl-C is listened to."""

from specjax.cli import interrupts


def main() -> None:
    """Runs the command line; Ctrl-C ends it while it is still being imported, too."""
    with interrupts.leave_at_once():
        from specjax.cli import app

        app.main()
