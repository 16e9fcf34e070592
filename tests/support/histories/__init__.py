"""Exhaustive checks of small worlds: every short history of two or three actors around one pure core."""
