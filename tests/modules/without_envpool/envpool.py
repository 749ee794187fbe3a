raise ModuleNotFoundError("No module named 'envpool'")
