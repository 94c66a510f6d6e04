"""One module per noun of `headgate …`."""
