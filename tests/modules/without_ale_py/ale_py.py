raise ModuleNotFoundError("No module named 'ale_py'")
