"""What every part stands on: settings, logs, metrics, traces, problems, routes, life cycle and ids."""
