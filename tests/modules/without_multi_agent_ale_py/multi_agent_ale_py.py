raise ModuleNotFoundError("No module named 'multi_agent_ale_py'")
