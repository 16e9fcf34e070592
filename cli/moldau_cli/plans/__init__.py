"""Pure plans that commands show before they carry them out, and the files of such plans."""
