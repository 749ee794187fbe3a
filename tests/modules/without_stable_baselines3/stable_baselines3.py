raise ModuleNotFoundError("No module named 'stable_baselines3'")
