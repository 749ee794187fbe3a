"""The lineage tool on small made-up families: ppo.py -> ppo_atari.py -> ppo_atari_lstm.py, and dqn.py beside them."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import cleanrl_utils.accelerate
from cleanrl_utils import density, lineage

MOULD = '''"""{title}

Parent: {parent}
"""

import os
from dataclasses import dataclass


@dataclass
class Args:
    seed: int = 1
    """seed of the experiment"""

    # Algorithm specific arguments
    gamma: float = 0.99


def make_env(env_id):
    return env_id


class Agent:
    def act(self, obs):
        return obs


def loss(x):
    return x


if __name__ == "__main__":
    args = Args()
    print(args)
    print(make_env("CartPole-v1"))
    for step in range(10):
        print(step)
    print("done")
'''
PPO = MOULD.format(title="PPO", parent="none")
ATARI = MOULD.format(title="PPO, Atari", parent="ppo.py").replace("CartPole", "Breakout")
LSTM = ATARI.replace("PPO, Atari", "PPO, Atari, LSTM").replace("Parent: ppo.py", "Parent: ppo_atari.py")
LSTM = LSTM.replace("import os\n", "import os\nimport sys\n")
DQN = MOULD.format(title="DQN", parent="none")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cleanrl").mkdir()
    write(tmp_path, ppo=PPO, ppo_atari=ATARI, ppo_atari_lstm=LSTM, dqn=DQN)
    return tmp_path


@pytest.fixture
def repository(root):
    git(root, "init", "-q")
    commit(root)
    return root


def write(root, **files):
    for name, text in files.items():
        (root / "cleanrl" / f"{name}.py").write_text(text)


def read(root, name):
    return (root / "cleanrl" / f"{name}.py").read_text()


def git(root, *arguments):
    subprocess.run(["git", "-C", root, "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True)


def commit(root):
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "change")


@pytest.fixture
def run(root, capsys):
    """Runs the tool in this process: (exit code, what it printed, what it complained about)."""

    def run(*arguments):
        code = lineage.main(["--root", str(root), *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def proofs(monkeypatch):
    """A stand-in for cleanrl_utils.accelerate.proofs: no file lacks a proof, and proving succeeds."""
    proofs = types.ModuleType("cleanrl_utils.accelerate.proofs")
    proofs.missing = lambda paths: []
    proofs.prove = lambda paths: 0
    monkeypatch.setattr(cleanrl_utils.accelerate, "proofs", proofs, raising=False)
    monkeypatch.setitem(sys.modules, "cleanrl_utils.accelerate.proofs", proofs)
    return proofs


def problems(run):
    code, out, _ = run("check")
    assert code == 1
    return out.splitlines()


# ---- tree ----


def test_tree_draws_every_edge_with_its_changes_its_budget_and_its_density(run):
    code, out, _ = run("tree")
    assert code == 0
    density = " 4.5 tokens a line,   0% long,  0.0 clever"  # 68 tokens in 15 lines of code
    assert out == (
        f"dqn.py                     38 lines of 350     {density}\n"
        f"ppo.py                     38 lines of 400     {density}\n"
        f"└── ppo_atari.py           +1/-1 of budget 36  {density}\n"
        f"    └── ppo_atari_lstm.py  +1/-0 of budget 70  {density}\n"
    )


def test_tree_points_at_what_is_over_budget_or_in_a_cycle(run, root, monkeypatch):
    write(root, dqn=DQN.replace("none", "c51.py"), c51=DQN.replace("none", "dqn.py"))
    monkeypatch.setitem(lineage.BUDGETS, "ppo_atari.py", 0)
    code, out, _ = run("tree")
    assert code == 0
    assert re.search("ppo_atari.py           .1/-1 of budget 0 .* clever  over budget\n", out)
    assert "dqn.py  not drawn: its ancestors are a cycle\n" in out


def test_tree_points_at_what_is_too_dense_or_does_not_parse(run, root):
    write(root, dqn=DQN + WIDE_AND_CLEVER, ppo_atari=ATARI + "def f(:\n")
    code, out, _ = run("tree")
    assert code == 0
    assert re.search("dqn.py .* clever  too many long lines, too clever\n", out)
    assert re.search("ppo_atari.py .* of budget 36  does not parse\n", out)


def test_docstring_and_blank_lines_do_not_count_as_changes(root, run):
    child = PPO.replace("PPO\n", "A longer\n\nstory\n").replace("Parent: none", "Parent: ppo.py")
    write(root, ppo_atari=child.replace("\n\n", "\n\n\n"))
    assert "ppo_atari.py           +0/-0" in run("tree")[1]


def test_added_and_removed_lines_are_counted_apart(root, run):
    child = ATARI.replace("    print(args)\n", "").replace('    print("done")\n', "    print(1)\n    print(2)\n")
    write(root, ppo_atari=child)
    assert "ppo_atari.py           +3/-3" in run("tree")[1]  # the name of the game is one of each


def test_lines_that_occur_often_still_match(root, run):
    calls = "".join(f"call_{i}(\n    argument,\n)\n" for i in range(100))
    write(root, ppo=PPO + calls, ppo_atari=ATARI + calls.replace("call", "name"))
    assert "ppo_atari.py           +101/-101" in run("tree")[1]  # the names, not the arguments and brackets


# ---- check ----


def test_check_passes_on_a_family_that_keeps_the_rules(run):
    assert run("check") == (0, "4 files, no problems\n", "")


def test_check_names_the_files_without_a_proof_and_still_passes(root, run, proofs):
    proofs.missing = lambda paths: [path.name for path in paths if path.parent == root / "cleanrl"][:2]
    code, out, _ = run("check")
    last = "without a proof, so run as written: dqn.py, ppo.py (see `lineage prove`)"
    assert (code, out.splitlines()) == (0, ["4 files, no problems", last])
    write(root, dqn=DQN + "#" * 121 + "\n")
    assert problems(run)[-1] == last


def test_check_says_nothing_of_proofs_where_pytorch_is_missing(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanrl_utils.accelerate", None)  # importing it is an ImportError
    assert run("check") == (0, "4 files, no problems\n", "")


def test_check_passes_on_this_repository(capsys):
    code = lineage.main(["check"])
    assert code == 0, capsys.readouterr()


@pytest.mark.parametrize("docstring", ['"""PPO"""', '"""PPO\n\nParent:\n"""', "'PPO'", "# PPO"])
def test_check_asks_for_the_parent_of_a_file_that_names_none(root, run, docstring):
    write(root, dqn=docstring + DQN[DQN.index("\n\nimport") :])
    assert any(line.startswith("cleanrl/dqn.py:1: no parent: add a line `Parent:") for line in problems(run))


def test_check_finds_a_parent_that_does_not_exist(root, run):
    write(root, ppo_atari=ATARI.replace("Parent: ppo.py", "Parent: pppo.py"))
    assert "cleanrl/ppo_atari.py:1: unknown parent: pppo.py is not in cleanrl/" in problems(run)


def test_check_reports_a_cycle_once(root, run):
    write(root, ppo=PPO.replace("Parent: none", "Parent: ppo_atari_lstm.py"))
    cycles = [line for line in problems(run) if "cycle" in line]
    path = "ppo.py -> ppo_atari_lstm.py -> ppo_atari.py -> ppo.py"
    assert cycles == [f"cleanrl/ppo.py:1: cycle of parents: {path}"]


def test_check_reports_a_file_that_is_its_own_parent(root, run):
    write(root, dqn=DQN.replace("none", "dqn.py"))
    assert "cleanrl/dqn.py:1: cycle of parents: dqn.py -> dqn.py" in problems(run)


def test_check_wants_the_docstring_to_name_the_parent_of_the_table(root, run, monkeypatch):
    monkeypatch.setitem(lineage.FAMILY, "ppo_atari.py", ("dqn.py", 30))
    places = "ppo.py in its docstring, dqn.py in FAMILY of cleanrl_utils/lineage.py"
    assert f"cleanrl/ppo_atari.py:1: two parents: {places}" in problems(run)


def test_check_allows_exactly_the_budget_of_a_child(root, run, monkeypatch):
    monkeypatch.setitem(lineage.BUDGETS, "ppo_atari.py", 1)
    assert run("check")[0] == 0
    monkeypatch.setitem(lineage.BUDGETS, "ppo_atari.py", 0)
    assert problems(run) == ["cleanrl/ppo_atari.py:1: over budget: adds 1 lines to ppo.py, 0 are allowed"]


def test_check_allows_exactly_the_length_of_a_root(root, run, monkeypatch):
    monkeypatch.setitem(lineage.BUDGETS, "dqn.py", 38)
    assert run("check")[0] == 0
    monkeypatch.setitem(lineage.BUDGETS, "dqn.py", 37)
    assert problems(run) == ["cleanrl/dqn.py:1: too long: 38 lines, 37 are allowed"]


def test_check_says_where_to_enter_a_new_file(root, run):
    write(root, novel=DQN)
    assert problems(run) == [
        'cleanrl/novel.py:1: no budget: add `"novel.py": ("none", <lines>)` to FAMILY in cleanrl_utils/lineage.py'
    ]


@pytest.mark.parametrize("name, text, model", [("ppo_atari_lstm", LSTM, "ppo_atari.py"), ("ppo", PPO, "dqn.py")])
def test_check_wants_the_common_arguments_identical_in_children_and_roots(root, run, name, text, model):
    write(root, **{name: text.replace("seed of the", "seed for the")})
    line = text.splitlines().index("    seed: int = 1") + 2
    assert f"cleanrl/{name}.py:{line}: the common block of Args is not that of {model}" in problems(run)


def test_check_wants_the_line_that_ends_the_common_arguments(root, run):
    write(root, dqn=DQN.replace("    # Algorithm specific arguments\n", "    # Arguments of DQN\n"))
    assert [line for line in problems(run) if "Args has no common block" in line and "/dqn.py" in line]


def test_arguments_of_the_algorithm_may_differ_without_a_word(root, run):
    write(root, ppo_atari_lstm=LSTM.replace("0.99", "0.9"))
    assert run("check")[0] == 0


@pytest.mark.parametrize("old, new", [("return env_id", "return 1"), ("self, obs", "x"), ("def loss", "@f\ndef loss")])
def test_check_wants_a_reason_where_a_definition_of_the_same_name_differs(root, run, old, new):
    write(root, ppo_atari_lstm=LSTM.replace(old, new))
    assert len(problems(run)) == 1
    assert "is not that of ppo_atari.py" in problems(run)[0]


@pytest.mark.parametrize(
    "old, new",
    [
        ("    return env_id", "    # differs from ppo_atari.py: a list\n    return [env_id]"),
        ("    return env_id", '    """differs from ppo_atari.py: a list"""\n    return [env_id]'),
        ("def make_env(env_id):", "# differs from ppo_atari.py: a seed,\n# for tests\ndef make_env(env_id, seed=1):"),
        ("class Agent:", "# differs from ppo_atari.py: frozen\n@dataclass(frozen=True)\nclass Agent:"),
    ],
)
def test_a_reason_inside_or_right_above_the_definition_is_enough(root, run, old, new):
    write(root, ppo_atari_lstm=LSTM.replace(old, new))
    assert run("check")[0] == 0


@pytest.mark.parametrize("reason", ["differs from ppo_atari.py:", "differs from ppo.py: of the grandparent", "why not"])
def test_a_reason_must_name_the_parent_and_say_something(root, run, reason):
    write(root, ppo_atari_lstm=LSTM.replace("    return env_id", f"    # {reason}\n    return [env_id]"))
    assert len(problems(run)) == 1


def test_a_reason_counts_only_for_its_own_definition(root, run):
    text = LSTM.replace("    return x", "    # differs from ppo_atari.py: a sign\n    return -x")
    write(root, ppo_atari_lstm=text.replace("return obs", "return -obs"))
    assert [line.split(": ")[1] for line in problems(run)] == ["Agent is not that of ppo_atari.py"]


def test_check_finds_definitions_in_another_order_than_the_parents(root, run):
    loss = "def loss(x):\n    return x\n\n\n"
    write(root, ppo_atari_lstm=LSTM.replace(loss, "").replace("class Agent:", loss + "class Agent:"))
    order = "ppo_atari.py has Args, make_env, Agent, loss"
    assert problems(run) == [f"cleanrl/ppo_atari_lstm.py:24: out of order: {order}"]


def test_a_child_may_add_and_drop_definitions(root, run):
    text = LSTM.replace("def make_env(env_id):\n    return env_id\n\n\n", "")
    write(root, ppo_atari_lstm=text.replace("class Agent:", "def new(x):\n    return x\n\n\nclass Agent:"))
    assert run("check")[0] == 0


def test_check_finds_lines_that_are_too_wide(root, run):
    write(root, dqn=DQN + "#" * 120 + "\n" + "#" * 121 + "\n")
    assert problems(run) == ["cleanrl/dqn.py:40: 121 characters wide, 120 are allowed"]


WIDE_AND_CLEVER = f"x = 1 if 2 else {'3' * 99}\n" * 2  # beside 68 tokens in 15 lines of code, 14 in 2


def test_check_finds_files_that_are_too_dense(root, run, monkeypatch):
    write(root, dqn=DQN + WIDE_AND_CLEVER)
    monkeypatch.setattr(density, "MAX_TOKENS", 4.8)
    assert problems(run) == [
        "cleanrl/dqn.py:1: too clever: 11.8 ternaries, walruses and star-unpackings per 100 lines, 3 are allowed",
        "cleanrl/dqn.py:1: too dense: 4.82 tokens a line, 4.8 are allowed",
        "cleanrl/dqn.py:1: too many long lines: 11.8% are over 100 characters, 8% are allowed",
    ]
    monkeypatch.setattr(density, "MAX_TOKENS", 82 / 17)
    monkeypatch.setattr(density, "MAX_LONG", 200 / 17)
    monkeypatch.setattr(density, "MAX_CLEVER", 200 / 17)
    assert run("check")[0] == 0


def test_density_counts_only_lines_of_code():
    text = f'''"""A docstring {"of a long line" * 9} if x else *y"""
import os, sys, re

@dataclass
class Args:
    a: int = 1 if os else 2

# a comment
def f(x):  # with another comment
    """Another docstring"""
    return (x,
            2)
'''
    # @dataclass: 2 tokens, def f(x): 6, and 4 and 2 in the last two lines; the ternary is seen wherever it stands
    assert density.measure(text) == density.Density(tokens=14 / 4, long=0.0, clever=25.0)
    assert density.measure("# nothing\n") == density.Density(0.0, 0.0, 0.0)


@pytest.mark.parametrize("line", ["a = b if c else d", "f(a := b)", "f(*a)", "a, *b = c"])
def test_density_counts_each_kind_of_clever_construct(line):
    assert density.measure(f"{line}\npass\n").clever == 50.0


def test_density_counts_lines_over_100_characters():
    lines = ["a" * 100, "b" * 101, "c", "d"]
    assert density.measure("\n".join(lines)).long == 25.0


def nested(depth):
    ifs = "".join("    " * level + "if True:\n" for level in range(depth))
    return ifs + "    " * depth + "print(\n" + "    " * 9 + "1)\n" + "if False:\n    pass\nelif True: print(2)\n"


def test_check_finds_blocks_that_are_too_deep(root, run):
    write(root, dqn=DQN + nested(5))
    assert run("check")[0] == 0
    write(root, dqn=DQN + nested(6))
    assert problems(run) == ["cleanrl/dqn.py:45: 6 blocks deep, 5 are allowed"]


@pytest.mark.parametrize(
    "statement, module",
    [
        ("import cleanrl_utils.hub", "cleanrl_utils.hub"),
        ("from cleanrl_utils import hub", "cleanrl_utils"),
        ("from cleanrl.ppo import Agent", "cleanrl.ppo"),
        ("from ppo import Agent", "ppo"),
        ("from .ppo import Agent", ".ppo"),
        ("try:\n    import cleanrl_utils\nexcept ImportError:\n    pass", "cleanrl_utils"),
    ],
)
def test_check_finds_top_level_imports_from_this_repository(root, run, statement, module):
    write(root, dqn=DQN.replace("import os", statement))
    assert [line for line in problems(run) if f"top-level import of {module}:" in line]


def test_imports_from_this_repository_are_fine_where_they_are_used(root, run):
    text = DQN.replace("    args = Args()", "    from cleanrl_utils import hub\n    args = Args()")
    write(root, dqn=text.replace("    return obs", "    import cleanrl_utils\n        return obs"))
    assert run("check")[0] == 0


def test_check_finds_files_that_do_not_parse_and_conflicts_that_do(root, run):
    write(root, dqn=DQN + "def f(:\n")
    assert problems(run) == ["cleanrl/dqn.py:39: does not parse: invalid syntax"]
    write(root, dqn=DQN.replace("DQN\n", "DQN\n<<<<<<< dqn.py\none\n=======\nother\n>>>>>>> c51.py\n"))
    assert problems(run) == [f"cleanrl/dqn.py:{line}: unresolved conflict" for line in (2, 6)]


# ---- diff ----


@pytest.mark.parametrize("names", [["ppo", "ppo_atari"], ["ppo.py", "ppo_atari.py"], ["ppo_atari"], None])
def test_diff_shows_two_files_or_a_child_against_its_parent(root, run, names):
    code, out, _ = run("diff", *(names or [str(root / "cleanrl" / f"{name}.py") for name in ("ppo", "ppo_atari")]))
    assert code == 0
    assert out.startswith('--- ppo.py\n+++ ppo_atari.py\n@@ -1,6 +1,6 @@\n-"""PPO\n+"""PPO, Atari\n')
    assert '-    print(make_env("CartPole-v1"))\n+    print(make_env("Breakout-v1"))\n' in out
    assert "\033" not in out  # not a terminal


def test_diff_is_a_patch_that_turns_one_file_into_the_other(root, run):
    patch = run("diff", "ppo", "ppo_atari_lstm")[1]
    subprocess.run(["git", "apply", "-p0"], cwd=root / "cleanrl", input=patch.replace("_atari_lstm", ""), text=True)
    assert read(root, "ppo") == LSTM


def test_diff_is_coloured_on_a_terminal_unless_told_otherwise(run, monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert '\033[32m+    print(make_env("Breakout-v1"))\033[0m' in run("diff", "ppo_atari")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in run("diff", "ppo_atari")[1]


def test_html_page_is_self_contained_and_marks_the_changed_words(root, run, tmp_path):
    page = tmp_path / "page.html"
    write(root, ppo_atari_lstm=LSTM.replace("return env_id", "return env_id < 1"))
    assert run("diff", "ppo_atari_lstm", "--html", str(page))[:2] == (0, f"wrote {page}\n")
    html = page.read_text()
    assert not re.search(r"https?://|(src|href)\s*=|url\(|@import|<link", html)
    assert "<h1>ppo_atari.py <span>→</span> ppo_atari_lstm.py</h1>" in html
    assert '<b class="new">+2</b> <b class="old">−1</b>' in html
    assert "return env_id<mark> &lt; 1</mark>" in html
    assert re.search(r"<details><summary>\d+ unchanged lines</summary>", html)


def test_html_page_shows_every_line_of_both_files_once_and_in_order(root, run, tmp_path):
    old = PPO.replace("    args = Args()\n", "    x = 0\n    train(args, envs, 1)\n    assert y\n")
    new = LSTM.replace("    args = Args()\n", "    # unlike\n    train(args, envs, 2)\n    del z\n    del w\n")
    write(root, ppo=old, ppo_atari_lstm=new)
    run("diff", "ppo", "ppo_atari_lstm", "--html", str(tmp_path / "page.html"))
    html = (tmp_path / "page.html").read_text()
    assert "train(args, envs, <mark>2</mark>)" in html  # faces the line it resembles
    for side, text in (("old", old), ("new", new)):
        cells = "".join(re.findall(rf'<div class="{side}">(.*?)</div>', html))
        numbers = [int(number) for number in re.findall(r"<i>(\d+)</i>", cells)]
        assert numbers == list(range(1, len(text.splitlines()) + 1))


def test_html_page_has_a_name_of_its_own_and_never_overwrites_a_source_file(root, run, monkeypatch):
    monkeypatch.chdir(root)
    assert run("diff", "ppo", "dqn", "--html")[1] == "wrote ppo_to_dqn.html\n"
    assert (root / "ppo_to_dqn.html").exists()
    code, _, err = run("diff", "--html", "cleanrl/ppo.py", "ppo_atari.py")
    assert (code, err) == (2, "lineage: --html writes a .html file, not cleanrl/ppo.py\n")
    assert read(root, "ppo") == PPO


# ---- propagate ----

EDIT = ("        print(step)\n", "        print(step)\n        print(step + 1)\n")


def test_propagate_carries_an_uncommitted_change_over_three_generations(repository, run):
    write(repository, ppo=PPO.replace(*EDIT))
    code, out, _ = run("propagate", "ppo")
    assert (code, out) == (0, "ppo.py since HEAD: 2 of 2 descendants changed\n")
    assert read(repository, "ppo_atari") == ATARI.replace(*EDIT)
    assert read(repository, "ppo_atari_lstm") == LSTM.replace(*EDIT)
    assert read(repository, "dqn") == DQN  # of another family


def test_propagate_twice_is_propagate_once(repository, run):
    write(repository, ppo=PPO.replace(*EDIT))
    run("propagate", "ppo.py")
    path = str(repository / "cleanrl" / "ppo.py")
    assert run("propagate", path)[:2] == (0, "ppo.py since HEAD: 0 of 2 descendants changed\n")


def test_propagate_keeps_uncommitted_edits_of_the_descendants(repository, run):
    write(repository, ppo=PPO.replace(*EDIT), ppo_atari_lstm=LSTM.replace("0.99", "0.9"))
    assert run("propagate", "ppo")[0] == 0
    assert read(repository, "ppo_atari_lstm") == LSTM.replace("0.99", "0.9").replace(*EDIT)


def test_propagate_can_start_from_an_older_revision(repository, run):
    write(repository, ppo=PPO.replace(*EDIT))
    commit(repository)
    assert run("propagate", "ppo")[:2] == (0, "ppo.py has not changed since HEAD: nothing to propagate\n")
    assert run("propagate", "ppo", "--base", "HEAD~1")[0] == 0
    assert read(repository, "ppo_atari_lstm") == LSTM.replace(*EDIT)


def test_propagate_dry_run_shows_the_change_and_writes_nothing(repository, run):
    write(repository, ppo=PPO.replace(*EDIT))
    code, out, _ = run("propagate", "ppo", "--dry-run")
    assert code == 0
    assert out.count("+        print(step + 1)\n") == 2
    assert out.endswith("ppo.py since HEAD: 2 of 2 descendants would change\n")
    assert (read(repository, "ppo_atari"), read(repository, "ppo_atari_lstm")) == (ATARI, LSTM)


def test_propagate_marks_and_lists_a_conflict_and_leaves_alone_what_is_below_it(repository, run):
    write(repository, ppo=PPO.replace("CartPole-v1", "CartPole-v0"))
    code, out, _ = run("propagate", "ppo")
    line = ATARI.splitlines().index('    print(make_env("Breakout-v1"))') + 1
    assert code == 1
    assert out.splitlines()[1:] == [
        f"conflict: cleanrl/ppo_atari.py:{line}",
        "skipped: cleanrl/ppo_atari_lstm.py: below a conflict; once it is resolved, propagate ppo_atari.py",
    ]
    assert read(repository, "ppo_atari").splitlines()[line - 1 : line + 4] == [
        "<<<<<<< ppo_atari.py",
        '    print(make_env("Breakout-v1"))',
        "=======",
        '    print(make_env("CartPole-v0"))',
        ">>>>>>> ppo.py now",
    ]
    assert read(repository, "ppo_atari_lstm") == LSTM


def test_propagate_refuses_a_family_with_an_open_conflict_and_goes_on_once_it_is_resolved(repository, run):
    write(repository, ppo=PPO.replace("CartPole-v1", "CartPole-v0"))
    run("propagate", "ppo")
    conflicted = read(repository, "ppo_atari")
    code, _, err = run("propagate", "ppo")
    assert (code, err) == (2, "lineage: unresolved conflicts in ppo_atari.py: resolve them first\n")
    assert read(repository, "ppo_atari") == conflicted
    write(repository, ppo_atari=ATARI.replace("Breakout-v1", "Breakout-v0"))
    assert run("propagate", "ppo_atari")[0] == 0
    assert read(repository, "ppo_atari_lstm") == LSTM.replace("Breakout-v1", "Breakout-v0")


# ---- prove ----


@pytest.mark.parametrize("arguments, names", [(["ppo", "dqn.py"], ["ppo.py", "dqn.py"]), ([], None)])
def test_prove_hands_over_the_named_files_or_all_and_returns_their_exit_code(root, run, proofs, arguments, names):
    proven = []
    proofs.prove = lambda paths: proven.extend(paths) or 3
    assert run("prove", *arguments)[0] == 3
    expected = [root / "cleanrl" / name for name in names] if names else sorted((root / "cleanrl").glob("*.py"))
    assert proven == expected


# ---- bad input ----


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["diff", "nope"], "no such file: nope"),
        (["diff", "ppo", "nope.py"], "no such file: nope.py"),
        (["diff", "ppo"], "ppo.py has no parent in cleanrl/"),
        (["diff", "ppo", "dqn", "--html", f"{__file__}/page.html"], "File exists"),
        (["propagate", "nope"], "no such file: nope"),
        (["prove", "nope"], "no such file: nope"),
        (["propagate", __file__], "is not in"),
        (["propagate", "ppo", "--base", "nope"], "nope"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(repository, run, arguments, complaint):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("lineage: ") and complaint in err and err.count("\n") == 1


def test_propagate_outside_a_git_repository_is_one_line_and_exit_code_2(run):
    code, out, err = run("propagate", "ppo")
    assert (code, out) == (2, "")
    assert "not a git repository" in err and err.count("\n") == 1


def test_propagate_refuses_a_cycle(repository, run):
    write(repository, ppo=PPO.replace("Parent: none", "Parent: ppo_atari_lstm.py"))
    assert run("propagate", "ppo")[0] == 2


def test_a_root_without_algorithms_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert lineage.main(["--root", str(tmp_path), "tree"]) == 2
    assert "no algorithm files in" in capsys.readouterr().err


def test_the_command_runs_from_any_directory_and_ends_quietly_in_a_closed_pipe(root):
    command = [sys.executable, "-m", "cleanrl_utils.lineage", "--root", str(root), "tree"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    closed = subprocess.Popen(command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    closed.stdout.close()
    assert closed.stderr.read() == b""
    closed.wait()
