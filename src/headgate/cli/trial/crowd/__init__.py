"""A simulated crowd: thousands of players who stand in line well or badly, and a record of what happened to them."""
