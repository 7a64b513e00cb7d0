"""For PYTHONPATH: `sitecustomize` is imported by each Python that is started with it."""
