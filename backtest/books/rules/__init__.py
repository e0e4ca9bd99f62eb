"""The rules: a file is a kind of book, with its settings and its weights."""
