"""The processes of Headgate (gateway, worker, relay, arena), and how each is put together, run and stopped.

`assembly.py` opens the features that a process runs. SIGTERM and SIGINT arrive in `kit/life.py`: every command here enters
a `Life`, whose event `quiet` starts the shutdown.
"""
