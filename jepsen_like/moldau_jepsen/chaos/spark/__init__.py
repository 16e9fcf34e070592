"""The workload ``spark``: a streaming query from topic to topic, whose processes are killed while it runs."""
