"""Parts that workloads share to record a history: records, operations, transactions."""
