"""The policy of a script in JAX as an ONNX model, for `export.py`.

JAX writes a function as a list of primitive operations (a jaxpr). Each of those that networks consist of becomes a node
of ONNX here. The function is written down for one size of batch; an axis of this size at the front is the batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cleanrl_utils.export import BATCH, ExportError, input_type

# Primitives that have an operation of the same meaning, and no parameters that matter.
SAME = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow", "neg": "Neg"}
SAME |= {"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "sign": "Sign", "erf": "Erf", "logistic": "Sigmoid"}
SAME |= {"tanh": "Tanh", "sin": "Sin", "cos": "Cos", "floor": "Floor", "ceil": "Ceil", "stop_gradient": "Identity"}
SAME |= {"copy": "Identity", "copy_p": "Identity", "eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual"}
SAME |= {"lt": "Less", "le": "LessOrEqual", "and": "And", "or": "Or", "not": "Not"}
REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}


def find_act(policy: Callable, obs: np.ndarray) -> tuple[Callable, tuple]:
    """The jitted function inside a policy of `load_policy`, and the arguments with which the policy calls it."""
    cells = getattr(policy, "__closure__", None) or ()
    compiled = [cell for cell in cells if hasattr(cell.cell_contents, "lower")]
    if len(compiled) != 1:
        raise ExportError("its load_policy is no function around one that is compiled by jax.jit: not exportable")
    (cell,) = compiled
    act, calls = cell.cell_contents, []

    def watched(*args: Any) -> Any:
        calls.append(args)
        return act(*args)

    cell.cell_contents = watched
    try:
        policy(obs)
    finally:
        cell.cell_contents = act
    return act, calls[0]


class Graph:
    """The nodes and the constants of an ONNX model, as they are added."""

    def __init__(self) -> None:
        self.nodes, self.constants, self.count = [], [], 0
        self.scores = None  # what an argmax is taken of

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        self.count += 1
        name = f"constant{self.count}"
        self.constants.append(numpy_helper.from_array(np.array(value), name))
        return name

    def add(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; returns the names of its outputs."""
        from onnx import helper

        self.count += 1
        names = [f"{operation.lower()}{self.count}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operation, list(inputs), names, **attributes))
        return names

    def cast(self, x: str, dtype: Any) -> list[str]:
        from onnx import helper

        return self.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, x: str, shape: tuple, new_shape: tuple) -> list[str]:
        is_batch = shape[:1] == (BATCH,) and new_shape[:1] == (BATCH,)
        sizes = [-1, *new_shape[1:]] if is_batch else new_shape
        return self.add("Reshape", x, self.constant(np.array(sizes, np.int64)))

    def broadcast(self, x: str, shape: tuple, new_shape: tuple, dimensions: tuple) -> list[str]:
        aligned = [1] * len(new_shape)  # the axes of x where they belong, the others of size one
        for size, dimension in zip(shape, dimensions, strict=True):
            aligned[dimension] = size
        (x,) = self.reshape(x, shape, tuple(aligned))
        sizes = [1 if i == 0 and size == BATCH else size for i, size in enumerate(new_shape)]
        return self.add("Expand", x, self.constant(np.array(sizes, np.int64)))  # a batch may still be of size one

    def convolution(self, x: str, weights: str, p: dict) -> list[str]:
        x_axes, weight_axes, out_axes = p["dimension_numbers"]
        if any(size != 1 for size in p["lhs_dilation"]) or p["batch_group_count"] != 1:
            raise ExportError("a transposed convolution has no translation to ONNX here")
        (x,) = self.add("Transpose", x, perm=x_axes)
        (weights,) = self.add("Transpose", weights, perm=weight_axes)
        pads = [*(before for before, _ in p["padding"]), *(after for _, after in p["padding"])]
        flags = {"strides": p["window_strides"], "dilations": p["rhs_dilation"], "group": p["feature_group_count"]}
        (x,) = self.add("Conv", x, weights, pads=pads, **flags)
        return self.add("Transpose", x, perm=np.argsort(out_axes).tolist())

    def max_pool(self, x: str, p: dict) -> list[str]:
        """Over height and width of pictures whose channels are their last axis."""
        window = p["window_dimensions"]
        if len(window) != 4 or window[0] != 1 or window[3] != 1:
            raise ExportError("only the pooling of pictures with their channels last has a translation to ONNX here")
        (x,) = self.add("Transpose", x, perm=[0, 3, 1, 2])
        pads = [p["padding"][axis][side] for side in (0, 1) for axis in (1, 2)]
        (x,) = self.add("MaxPool", x, kernel_shape=window[1:3], strides=p["window_strides"][1:3], pads=pads)
        return self.add("Transpose", x, perm=[0, 2, 3, 1])

    def translate(self, equation: Any, inputs: list[str]) -> list[str]:
        """The nodes of one primitive operation; returns the names of its results."""
        name, p = equation.primitive.name, equation.params
        shapes = [x.aval.shape for x in equation.invars]
        result = equation.outvars[0].aval
        match name:
            case _ if name in SAME:
                return self.add(SAME[name], *inputs)
            case _ if name in REDUCTIONS:
                return self.add(REDUCTIONS[name], inputs[0], self.constant(np.array(p["axes"], np.int64)), keepdims=0)
            case "argmax":
                self.scores = inputs[0]
                return self.add("ArgMax", inputs[0], axis=p["axes"][0], keepdims=0)
            case "broadcast_in_dim":
                return self.broadcast(inputs[0], shapes[0], result.shape, p["broadcast_dimensions"])
            case "concatenate":
                return self.add("Concat", *inputs, axis=p["dimension"])
            case "conv_general_dilated":
                return self.convolution(*inputs, p)
            case "convert_element_type":
                return self.cast(inputs[0], result.dtype)
            case "dot_general" if p["dimension_numbers"] == (((len(shapes[0]) - 1,), (0,)), ((), ())):
                return self.add("MatMul", *inputs)
            case "integer_pow":
                return self.add("Pow", inputs[0], self.constant(np.array(p["y"], result.dtype)))
            case "reduce_window_max":
                return self.max_pool(inputs[0], p)
            case "reshape" | "squeeze" | "expand_dims":
                return self.reshape(inputs[0], shapes[0], result.shape)
            case "rsqrt":
                return self.add("Reciprocal", *self.add("Sqrt", inputs[0]))
            case "select_n" if len(inputs) == 3:
                return self.add("Where", inputs[0], inputs[2], inputs[1])
            case "split":
                sizes = self.constant(np.array(p["sizes"], np.int64))
                return self.add("Split", inputs[0], sizes, outputs=len(p["sizes"]), axis=p["axis"])
            case "square":
                return self.add("Mul", inputs[0], inputs[0])
            case "transpose":
                return self.add("Transpose", inputs[0], perm=p["permutation"])
        raise ExportError(f"JAX's operation {name} has no translation to ONNX in cleanrl_utils/export_jax.py")

    def run(self, jaxpr: Any, constants: list, inputs: list[str]) -> list[str]:
        """Add all operations of a jaxpr, and those of the functions that it calls; returns the names of its results."""
        names = dict(zip(jaxpr.invars, inputs, strict=True))
        names |= {x: self.constant(np.asarray(value)) for x, value in zip(jaxpr.constvars, constants, strict=True)}

        def name_of(x: Any) -> str:
            is_literal = hasattr(x, "val")
            return self.constant(np.asarray(x.val, x.aval.dtype)) if is_literal else names[x]

        for equation in jaxpr.eqns:
            given = [name_of(x) for x in equation.invars]
            called = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if called is not None:
                results = self.run(called.jaxpr, called.consts, given)
            else:
                results = self.translate(equation, given)
            names |= dict(zip(equation.outvars, results, strict=True))
        return [name_of(x) for x in jaxpr.outvars]


def trace(original: Callable, obs: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """The policy as an ONNX model, for batches of any size. No script in JAX has a memory."""
    from onnx import TensorProto, checker, helper

    act, (x, *rest) = find_act(original, obs)
    program = jax.make_jaxpr(act)(x, *rest)
    graph = Graph()
    # The noise of a deterministic policy is zero in every row, so that one row will do; a random key is not used.
    further = [graph.constant(np.asarray(y)[:1] if isinstance(y, np.ndarray) else 0) for y in rest]
    (action,) = graph.run(program.jaxpr, program.consts, [*graph.cast("obs", x.dtype), *further])
    (result,) = program.out_avals
    is_discrete = np.issubdtype(result.dtype, np.integer)
    kind = TensorProto.INT64 if is_discrete else TensorProto.FLOAT
    graph.nodes.append(helper.make_node("Cast", [action], ["action"], to=kind))
    outputs = [helper.make_tensor_value_info("action", kind, ["batch", *result.shape[1:]])]
    if is_discrete and graph.scores:
        graph.nodes.append(helper.make_node("Identity", [graph.scores], ["scores"]))
        outputs.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", None]))
    obs_kind = helper.np_dtype_to_tensor_dtype(input_type(obs))
    inputs = [helper.make_tensor_value_info("obs", obs_kind, ["batch", *obs.shape[1:]])]
    written = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = helper.make_model(written, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model)
    return model, []


def act_and_score(original: Callable, obs: np.ndarray) -> list[np.ndarray]:
    """The action of the original policy, in the type that ONNX has for indices."""
    action = original(obs)
    return [action.astype(np.int64) if np.issubdtype(action.dtype, np.integer) else action]


def versions() -> dict[str, str]:
    return {"jax": jax.__version__}
