"""What the site has beyond the pages in docs/, made when it is built (events of MkDocs, in the order of their calls).

- Links to code lead to a page with the highlighted file, at the line that contains their text: see code_links.py.
- Files of the repository that pages link to become pages, so that the site is whole without a network.
- A page of an algorithm gets its place in the family, its learning curves and its difference from its parent.
- `<!-- variants: ppo -->` becomes the table of a file and all its descendants, `<!-- family tree -->` the picture.
- `<!-- curves: dqn.csv, dqn_jax.csv -->` becomes the learning curves of these results, by step and by time;
  `<!-- all results -->` the scores and curves of all result files, and `<!-- compare page -->` the link to the page of
  rlops about them, which is made as well.
- Equations become MathML.

What cannot be made is a warning, and with that an error of `make docs`.
"""

import importlib.util
import logging
import os
import posixpath
import re
import urllib.parse
from pathlib import Path

import compare_page
import family_tree
import learning_curves
import source_pages
from code_links import TOKEN, LinkError, find_line, find_links
from equations import EquationError, replace_equations
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from cleanrl_utils.lineage_diff import html_page
from cleanrl_utils.lineage_source import Source, load_family

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmark" / "results"
FAMILY = load_family(ROOT)
# Pages of the site that are kept elsewhere, and the page that stands for the README
INCLUDED = {
    "CONTRIBUTING.md": "contribute/contributing.md",
    "cloud/README.md": "get-started/cloud.md",
    "benchmark/results/README.md": "get-started/results.md",
}
STANDS_FOR = {"README.md": "index.md", **INCLUDED}
LONG = 80  # lines of a difference that is folded at first

# Marks stand on a line of their own; in the middle of a line, a page speaks about them.
RESULT_TABLE = re.compile(
    r"^<!-- results: ([^\n]+?)(?: with [^\n]+?)? -->$.*?^<!-- end of results -->$", re.DOTALL | re.MULTILINE
)
PICTURE = re.compile(r"^!\[[^\]]*\]\((?:\.\./)?assets/(\w+)\.png\)$", re.MULTILINE)
CURVES = re.compile(r"^<!-- curves: (.+?) -->$", re.MULTILINE)
VARIANTS = re.compile(r"^<!-- variants: (\w+?)(?:\.py)? -->$", re.MULTILINE)
ALL_RESULTS = re.compile(r"^<!-- all results -->$", re.MULTILINE)
COMPARE_PAGE = re.compile(r"^<!-- compare page -->$", re.MULTILINE)
TREE = re.compile(r"^<!-- family tree -->$", re.MULTILINE)
PLACEHOLDER = re.compile(r"<!-- site: (\w+) (.*?) -->")

log = logging.getLogger("mkdocs.hooks.site")


def origin(src_uri: str) -> str:
    """Where in the repository a page is kept."""
    kept = {page: path for path, page in INCLUDED.items()}
    return kept.get(src_uri, f"docs/{src_uri}")


def resolve(src_uri: str, path: str) -> str:
    """The path in the repository of what a page links to."""
    folder = posixpath.dirname(origin(src_uri))
    return posixpath.normpath(posixpath.join(folder, urllib.parse.unquote(path)))


def source_page(path: str) -> str:
    return f"source/{path}.md"


def algorithm_of(src_uri: str) -> Source | None:
    """The file that a page of docs/rl-algorithms/ is about."""
    folder, name = posixpath.split(src_uri)
    return FAMILY.get(name.removesuffix(".md") + ".py") if folder == "rl-algorithms" else None


def relative(target: str, src_uri: str) -> str:
    """The address of a file of the site from a page: Markdown files are named as such, MkDocs does the rest."""
    return posixpath.relpath(target, posixpath.dirname(src_uri) or ".")


# The site as a whole


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    FAMILY.update(load_family(ROOT))  # anew, as `make docs-serve` builds again when a file has changed
    repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
    config.extra["repository"] = repository
    if repository:  # not as `repo_url`, for which the theme asks GitHub how popular we are
        config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": repository, "name": "Repository"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are kept elsewhere, and a page for each file that pages link to."""
    for path, page in INCLUDED.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    wanted = {f"cleanrl/{name}" for name in FAMILY}
    for file in files.documentation_pages():
        for link in find_links(file.content_string):
            path = resolve(file.src_uri, link["path"])
            if (ROOT / path).is_file() and not path.startswith("docs/") and path not in STANDS_FOR:
                wanted.add(path)
    for path in sorted(wanted):
        if path.endswith(".csv"):
            files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
        else:
            inclusion = InclusionLevel.NOT_IN_NAV
            content = describe_source(path, config)
            files.append(File.generated(config, source_page(path), content=content, inclusion=inclusion))
    for source in FAMILY.values():
        if source.parent in FAMILY:
            content = html_page(FAMILY[source.parent], source)
            files.append(File.generated(config, f"difference/{source.path.stem}.html", content=content))
    content = compare_page.make_page(RESULTS, log.info)
    files.append(File.generated(config, compare_page.NAME, content=content))
    return files


def describe_source(path: str, config: MkDocsConfig) -> str:
    """The page of a file of the repository."""
    name = posixpath.basename(path)
    lines = ["---", f"title: {name}", "search: {boost: 0.3}", "hide: [navigation, toc]", "---", f"# `{path}`", ""]
    links = []
    source = FAMILY.get(name) if path.startswith("cleanrl/") else None
    if source:
        lines += [family_tree.summary(source), ""]
        links.append(f"[Documentation](../../rl-algorithms/{source.path.stem}.md)")
        if source.parent in FAMILY:
            links.append(f"[difference from `{source.parent}`](../../rl-algorithms/{source.path.stem}.md#difference)")
    if config.extra["repository"]:
        links.append(f"[in the repository]({config.extra['repository']}/blob/HEAD/{path})")
    if links:
        lines += [" · ".join(links), ""]
    if source and source.parent in FAMILY:
        lines += [f"Lines that are not in `{source.parent}` are marked with a bar on the left.", ""]
    return "\n".join([*lines, f"<!-- site: source {path} -->"])


# A page, as Markdown


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    src_uri = page.file.src_uri
    heading = re.match(r"\s*# (.*)", markdown)
    if heading:  # the name in the browser's tab; in the navigation, where its group stands above it, it is shorter
        page.meta.setdefault("title", heading[1].replace("`", ""))
    algorithm = algorithm_of(src_uri)
    if algorithm:
        markdown = add_place_in_family(markdown, algorithm)
    markdown = VARIANTS.sub(lambda match: variants_table(match[1] + ".py", src_uri), markdown)
    markdown = TREE.sub("<!-- site: tree all -->", markdown)
    markdown = ALL_RESULTS.sub(lambda _: all_results(src_uri), markdown)
    markdown = COMPARE_PAGE.sub(lambda _: compare_link(src_uri), markdown)
    if 'class="sortable"' in markdown:  # wide tables get the room of the navigation
        page.meta.setdefault("hide", ["navigation", "toc"])
    markdown = add_curves(markdown, src_uri)
    if algorithm and algorithm.parent in FAMILY:
        markdown = add_difference(markdown, algorithm)
    return TOKEN.sub(lambda token: rewrite(token, src_uri, config), markdown)


def rewrite(token: re.Match, src_uri: str, config: MkDocsConfig) -> str:
    """A link that leads out of docs/, so that it leads to a page of the site; everything else as it is."""
    if token["path"] is None or token["image"] or not token["path"] or re.match(r"\w+:", token["path"]):
        return token[0]
    if src_uri.startswith("source/"):
        return token[0]
    path, text, anchor = resolve(src_uri, token["path"]), token["text"], token["anchor"]
    suffix = f"#{anchor}" if anchor else ""
    if path in STANDS_FOR:
        return f"[{text}]({relative(STANDS_FOR[path], src_uri)}{suffix})"
    if path.startswith("docs/"):
        return f"[{text}]({relative(path.removeprefix('docs/'), src_uri)}{suffix})"
    if not (ROOT / path).exists():
        log.warning("%s links to %s, which does not exist", origin(src_uri), path)
        return text
    if (ROOT / path).is_dir():
        repository = config.extra["repository"]
        return f"[{text}]({repository}/tree/HEAD/{path})" if repository else text
    if path.endswith(".csv"):
        return f"[{text}]({relative(f'source/{path}', src_uri)})"
    try:
        number = find_line(ROOT / path, text, anchor)
    except LinkError as error:
        log.warning("%s: %s", origin(src_uri), error)
        return text
    if number is None:
        return f"[{text}]({relative(source_page(path), src_uri)})"
    address = relative(f"source/{path}.html#L{number}", src_uri)
    return f'<a href="{address}">{text}</a>'  # not as Markdown: MkDocs would look for the anchor, which is made later


def add_place_in_family(markdown: str, algorithm: Source) -> str:
    """A line below the title: the source, the parent and the children."""
    parts = [f"[Source](../../cleanrl/{algorithm.name}), {len(algorithm.lines)} lines"]
    if algorithm.parent in FAMILY:
        changes = family_tree.changes(FAMILY, algorithm)
        parts.append(f"child of [`{algorithm.parent}`]({page_of(algorithm.parent)}), [{changes}](#difference)")
    children = sorted(name for name in FAMILY if FAMILY[name].parent == algorithm.name)
    if children:
        parts.append("parent of " + ", ".join(f"[`{name}`]({page_of(name)})" for name in children))
    parts.append("[family tree](../family-tree.md)")
    line = '<div class="place" markdown data-search-exclude>' + " · ".join(parts) + "</div>"
    return re.sub(r"\A(\s*# .*\n)", lambda title: f"{title[1]}\n{line}\n", markdown, count=1)


def page_of(name: str) -> str:
    """The page of an algorithm file, seen from the pages beside it."""
    return name.removesuffix(".py") + ".md"


def variants_table(name: str, src_uri: str) -> str:
    if name not in FAMILY:
        log.warning("%s: no file cleanrl/%s for its table of variants", origin(src_uri), name)
        return ""
    return family_tree.variants(FAMILY, name, lambda file: relative(f"rl-algorithms/{page_of(file)}", src_uri))


def add_curves(markdown: str, src_uri: str) -> str:
    """Curves in place of each picture of results, at each mark, and after tables of results that have neither."""
    shown: set[str] = set()

    def show(names: list[str]) -> str:
        shown.update(names)
        missing = [name for name in names if not (RESULTS / name).is_file() or not learning_curves.read(RESULTS / name)]
        if missing:
            log.warning("%s: no learning curves in benchmark/results/%s", origin(src_uri), ", ".join(missing))
            return ""
        return curve_tabs(names)

    def at_picture(match: re.Match) -> str:
        name = match[1] + ".csv"
        if not (RESULTS / name).is_file() or not learning_curves.read(RESULTS / name):
            return match[0]
        return show([name])

    def after_table(match: re.Match) -> str:
        names = match[1].split(", ")
        if shown & set(names):
            return match[0]
        return f"{match[0]}\n\n{show(names)}"

    markdown = PICTURE.sub(at_picture, markdown)
    markdown = CURVES.sub(lambda match: show(match[1].split(", ")), markdown)
    return RESULT_TABLE.sub(after_table, markdown)


def curve_tabs(names: list[str]) -> str:
    tabs = [f'=== "By {by}"\n\n    <!-- site: curves {by} {" ".join(names)} -->\n' for by in ("step", "time")]
    return "\n" + "\n".join(tabs)


def all_results(src_uri: str) -> str:
    """Scores and learning curves of all result files, as Markdown."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmark" / "results.py")
    results = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(results)
    sections = []
    for path in sorted(RESULTS.glob("*.csv")):
        runs = learning_curves.read(path)
        if runs:
            # A result file begins with the name of its algorithm, which may be followed by that of a variant or a task
            algorithms = [name.removesuffix(".py") for name in FAMILY]
            name = max((name for name in algorithms if path.stem.startswith(name)), key=len)
            page = relative(f"rl-algorithms/{name}.md", src_uri)
            table = "\n".join(results.make_table([path], "published", "minutes"))
            sections.append(
                f"## {path.stem}\n\n[About the method]({page}#results)\n\n{table}\n\n{curve_tabs([path.name])}"
            )
    return "\n\n".join(sections)


def compare_link(src_uri: str) -> str:
    address = relative(compare_page.NAME, src_uri)
    return (
        f"[**Compare all runs in the browser**]({address}): learning curves, scores with confidence "
        f"intervals, filters and groups, on one page made by [`rlops`]({relative('get-started/rlops.md', src_uri)})."
    )


def add_difference(markdown: str, algorithm: Source) -> str:
    mark = "<!-- difference -->"
    changes = family_tree.changes(FAMILY, algorithm)
    name = algorithm.path.stem
    section = (
        f"## Difference from `{algorithm.parent}` {{#difference}}\n\n"
        f"{changes} lines, without the module docstring and blank lines. Click a number to go to that line. "
        f"See also the [side-by-side view](../difference/{name}.html), or in a terminal: "
        f"`python -m cleanrl_utils.lineage diff {name}`\n\n"
        f"<!-- site: difference {algorithm.name} -->"
    )
    return markdown.replace(mark, section, 1) if mark in markdown else f"{markdown}\n\n{section}\n"


# A page, as HTML


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    try:
        html = replace_equations(html)
    except EquationError as error:
        log.warning("%s: %s", origin(page.file.src_uri), error)
    return html


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Fills in code and pictures last of all, so that the search does not index them."""
    return PLACEHOLDER.sub(lambda match: fill(match[1], match[2], page), output)


def fill(kind: str, argument: str, page: Page) -> str:
    """What stands in the place of a mark."""
    src_uri = page.file.src_uri
    if kind == "source":
        path = ROOT / argument
        source = FAMILY.get(path.name) if argument.startswith("cleanrl/") else None
        parent = FAMILY.get(source.parent) if source else None
        return source_pages.listing(path.name, path.read_text(encoding="utf-8"), parent)
    if kind == "tree":
        return family_tree.tree(
            FAMILY, lambda name: relative(f"rl-algorithms/{name.removesuffix('.py')}.html", src_uri)
        )
    if kind == "curves":
        by, *names = argument.split()
        return learning_curves.figure([RESULTS / name for name in names], by)
    new = FAMILY[argument]
    old = FAMILY[new.parent]
    addresses = [relative(f"source/cleanrl/{source.name}.html", src_uri) for source in (old, new)]
    html, lines = source_pages.difference(old, new, *addresses)
    state = "" if lines > LONG else " open"
    return f"<details class='fold'{state}><summary>{lines} lines, including context</summary>{html}</details>"
