"""The charts of the pages and of notebooks: one function per figure."""
