"""``moldau demo``: real records through a cluster whose leader is killed, to Spark and Parquet, with a proof at the
end.
"""
