raise ImportError("a machine without the extra")
