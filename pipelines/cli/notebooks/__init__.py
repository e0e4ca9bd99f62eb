"""``peerglass notebook``: the notebooks that come with Peerglass, in JupyterLab or as an HTML page."""
