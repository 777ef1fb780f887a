"""The redactor: takes secrets out of what is told."""
