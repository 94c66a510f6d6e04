"""Users wait their turn: queues, promotion, tickets, and the seats of servers."""
