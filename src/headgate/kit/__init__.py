"""The base of all packages: settings, logs, metrics, traces, problems, tasks, life cycle and ids."""
