"""The version of Moldau. This is the only place that states it."""

VERSION = "0.2.0.dev0"
