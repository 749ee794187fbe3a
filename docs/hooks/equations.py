"""Equations in LaTeX, as MathML: a browser draws them without any script."""

import re
from html import escape, unescape

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $...$ and of $$...$$
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FUNCTION = r"\\(log|ln|exp|tanh|sin|cos)(?![a-zA-Z])"
# What GitHub draws and latex2mathml does not know, in words that it knows
SYNONYMS = [
    (r"\\(begin|end)\{aligned\}", r"\\\1{split}"),
    (r"\\arg\s*\\(max|min)(?![a-zA-Z])", r"\\arg\1"),
    (r"\\operatorname\*?\{arg\s*(?:\\,)?\s*(max|min)\}", r"\\arg\1"),
    (r"\\operatorname\*", r"\\operatorname"),
    (r"\\[lr]Vert(?![a-zA-Z])", r"\\Vert"),
    # room around the names of functions, as TeX leaves it: 2 log x, but log(x)
    (r"(?<=[a-zA-Z0-9})])\s*" + FUNCTION, r"\\,\\\1"),
    (FUNCTION + r"\s*(?=[a-zA-Z0-9]|\\(?!left|[bB]ig)[a-zA-Z])", r"\\\1\\,"),
]
# Browsers know bold and double-struck letters as characters of their own, no longer as the attribute `mathvariant`.
ALPHABETS = {
    "bold": {"A": 0x1D400, "a": 0x1D41A, "0": 0x1D7CE, "Α": 0x1D6A8, "α": 0x1D6C2},
    "bold-italic": {"A": 0x1D468, "a": 0x1D482, "Α": 0x1D71C, "α": 0x1D736},
    "double-struck": {"A": 0x1D538, "a": 0x1D552, "0": 0x1D7D8},
}
VARIANT = re.compile(r'<(m[ino]) mathvariant="([a-z-]+)">(&#x\w+;|.)</\1>')


class EquationError(Exception):
    """An equation that cannot be shown: one line for the author."""


def in_alphabet(match: re.Match) -> str:
    letter = unescape(match[3])
    for first, code in sorted(ALPHABETS.get(match[2], {}).items(), reverse=True):
        if first <= letter:
            return f"<{match[1]}>&#x{code + ord(letter) - ord(first):X};</{match[1]}>"
    return match[0]


def to_mathml(latex: str, display: str = "inline") -> str:
    if len(re.findall(r"(?<!\\)\{", latex)) != len(re.findall(r"(?<!\\)\}", latex)):
        raise EquationError(f"braces that do not match in the equation {latex!r}")
    known = latex
    for pattern, synonym in SYNONYMS:
        known = re.sub(pattern, synonym, known)
    if display == "block":  # what is written small under a maximum
        known = re.sub(r"\\((?:arg)?(?:max|min))\s*_", r"\\\1\\limits_", known)
    try:
        mathml = convert(known, display=display)
    except Exception as error:  # latex2mathml has many, and most of them without a text
        raise EquationError(f"cannot read the equation {latex!r}: {error or type(error).__name__}") from None
    unknown = re.search(r"\\[a-zA-Z]+|(?<=>)&(?=<)|<mo */>", mathml)
    if unknown:
        raise EquationError(f"cannot show {unknown[0]} in the equation {latex!r}")
    mathml = mathml.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")  # \sim is a relation
    mathml = VARIANT.sub(in_alphabet, mathml)
    return mathml.replace("<math ", f'<math aria-label="{escape(latex, quote=True)}" ', 1)


def replace_equations(html: str) -> str:
    """The page with its equations as MathML."""

    def replace(match: re.Match) -> str:
        display = "block" if match[1] == "div" else "inline"
        mathml = to_mathml(unescape(match[3]).strip(), display)
        return f'<div class="equation">{mathml}</div>' if display == "block" else mathml

    return EQUATION.sub(replace, html)
