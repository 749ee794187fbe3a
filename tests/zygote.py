"""A Python with PyTorch in it that forks: programs of the tests start in a tenth of a second instead of four.

Reads requests, one JSON object a line, from its input; for each it forks a child that becomes the program, and answers
with the child's pid and, when it ends, with its exit code.
"""

import atexit
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading


def become(request: dict) -> int:
    """Run a program as `python ARGUMENTS...` would; returns its exit code."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, stream in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_TRUNC), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    if "PYTHONPATH" in request["environment"]:  # found before anything that is installed
        folders = request["environment"]["PYTHONPATH"].split(":")
        sys.path[1:1] = folders
        shadowed = {name.removesuffix(".py") for folder in folders for name in os.listdir(folder)}
        for name in [name for name in sys.modules if name.split(".")[0] in shadowed]:
            del sys.modules[name]
    option, *rest = request["command"]
    try:
        if option == "-c":
            code, *rest = rest
            sys.argv, sys.path[0] = ["-c", *rest], ""
            module = type(sys)("__main__")
            sys.modules["__main__"] = module
            exec(compile(code, "<string>", "exec"), vars(module))
        elif option == "-m":
            name, *rest = rest
            sys.argv, sys.path[0] = [name, *rest], request["cwd"]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = [option, *rest], os.path.dirname(option) or request["cwd"]
            runpy.run_path(option, run_name="__main__")
        code = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    import gymnasium  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch
    import torch._dynamo  # noqa: F401 (optimizers import it)
    import tyro  # noqa: F401
    from torch.utils.tensorboard import SummaryWriter  # noqa: F401

    if importlib.util.find_spec("flax"):
        import flax.linen  # noqa: F401 (and JAX, which starts its threads later, when it is first used)
        import optax  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os._exit(become(json.loads(line)))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
