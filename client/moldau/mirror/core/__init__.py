"""The mirror's pure core: names, filters, record formats, offset translation, plans of topics, positions, settings."""
