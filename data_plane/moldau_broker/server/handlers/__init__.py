"""Request handlers, by subject.

A handler takes the broker's context, the decoded request and the call, and returns the response.
"""
