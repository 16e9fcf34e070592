"""Handlers of all requests except Produce and Fetch, by subject, and the table of APIs.

A handler takes the broker's context, the decoded request and the call, and returns the response.
"""
