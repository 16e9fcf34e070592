"""Starting and stopping a broker, its configuration, its directories and housekeeping tasks."""
