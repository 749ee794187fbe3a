raise ModuleNotFoundError("a machine without the repository")
