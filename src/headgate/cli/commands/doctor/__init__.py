"""`headgate doctor`: the command and its checks of a store, of the data in it, and of a gateway."""
