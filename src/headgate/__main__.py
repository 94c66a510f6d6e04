"""`python -m headgate` is `headgate`."""

from headgate.cli import main

if __name__ == "__main__":  # a process that granian spawns imports this module too
    main()
