"""The base of all packages: settings, logs, metrics, traces, problems, routes, life cycle and ids."""
