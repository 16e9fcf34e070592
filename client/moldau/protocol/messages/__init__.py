"""One module per API: request, response and their parts as tables."""
