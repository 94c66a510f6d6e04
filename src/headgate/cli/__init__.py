"""The command line. Importing this package costs nothing: a gateway's workers use parts of it and need no parser of flags."""


def main() -> None:
    """Run the command line of this process and exit."""
    from headgate.cli.app import main as run_command

    run_command()
