"""The HTTP edge: assembly, tokens, limits, problems, OpenAPI, pages, and the processes that serve them."""
