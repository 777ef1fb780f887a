"""Places where runs survive their process: one port, three stores. Importing this imports no database driver."""
