"""Settings that change while everything runs: versions, history, rollback and watches, one slot per namespace."""
