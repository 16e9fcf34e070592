"""The controller's decisions: pure functions from a request and an image to records and a response.

One module per area. Each entry point takes the request, the image to decide against, and a ``Context`` (settings, time,
drawn values), changes nothing, and returns a ``Result``. The shell (``moldau_quorum.active``) writes the records as one
command, replays them, and answers when they are committed. ``dispatch`` knows which function serves which request.
"""
