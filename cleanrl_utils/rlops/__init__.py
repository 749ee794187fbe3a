"""Compare runs: curves, scores with intervals, profiles, as PNG, Markdown and one offline page. See `__main__.py`."""
