"""The command line. Importing this package imports nothing else: a gateway's workers need no command-line parser."""


def main() -> None:
    """Run the command line of this process and exit."""
    from headgate.cli.app import main as run_command

    run_command()
