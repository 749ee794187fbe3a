raise ModuleNotFoundError("No module named 'pettingzoo'")
