"""The ports through which Moldau touches the world, and their production implementation."""
