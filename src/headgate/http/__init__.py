"""HTTP/1.1 itself: the server (connections, requests, responses, worker processes), the client, and routes as data."""
