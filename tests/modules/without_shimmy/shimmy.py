raise ModuleNotFoundError("No module named 'shimmy'")
