"""The HTTP API: dispatch, authentication, limits, OpenAPI, console and pages."""
