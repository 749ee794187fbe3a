raise ModuleNotFoundError("No module named 'cv2'")
