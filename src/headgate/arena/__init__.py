"""The reference game server: a chat room behind the waiting room, and the client that enters it."""
