raise ImportError("a machine without the repository")
