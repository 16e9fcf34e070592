"""PyInstaller's hook for the package ``moldau``: modules that no ``import`` statement names."""

from moldau.runtime.freezing import module_names

hiddenimports = [*module_names(), "crc32c"]  # moldau.records.checksum finds the extension of crc32c by its file
