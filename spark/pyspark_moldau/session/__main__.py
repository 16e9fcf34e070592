"""Prints the home of the Java that a session would use; exit code 1 means that there is none."""

import sys

from pyspark_moldau.session.java import main

if __name__ == "__main__":
    sys.exit(main())
