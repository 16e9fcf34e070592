"""Spark reads Moldau: the Python data source that Spark discovers by itself as format ``moldau``."""
