"""Names of functions without what changes from build to build.

Compilers number closures, blocks and clones, and copy generic functions for each type: what a
function is called in one build it need not be called in the next.
"""

from __future__ import annotations

import re

_LONGEST = 4096
"""Characters of a name that are looked at."""
_PREFIX = re.compile(
    r"(?:(?:generic |not re-abstracted |function signature )*specialized "
    r"|(?:generic|function signature) (?:pre-)?specialization (?:<.{0,2000}> )?of "
    r"|partial apply (?:forwarder )?for "
    r"|(?:curry |dispatch |vtable |reabstraction |implicit )*thunk (?:helper )?(?:for|of) "
    r"|merged "
    r"|@objc |@nonobjc "
    r"|default argument [0-9]{1,4} of "
    r"|\([0-9]{1,6}\) (?:suspend|await) resume partial function for )"
)
_CLOSURE = re.compile(r"\b((?:implicit )?closure) #[0-9]{1,6}")
_WITNESS = re.compile(r"protocol witness for (?P<what>.{1,2000}) in conformance .{1,2000}")
_BLOCK = re.compile(r"_block_invoke[0-9]{0,9}(?:[_.][0-9]{1,9})*")
_BLOCK_LENGTH = re.compile(r"__[0-9]{1,6}(?=[-+]\[)")
_CLONE = re.compile(
    r"(?: \[clone [^\]]{1,200}\]| \([.][^)]{1,200}\)"
    r"|[.](?:cold|isra|part|constprop|lto_priv|llvm|resume|destroy|cleanup|warm)"
    r"(?:[.][0-9A-Za-z_]{1,40}){0,4}|[.][0-9]{1,20})$"
)
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
_LAMBDA = re.compile(r"(\$_|'lambda|\{lambda)[0-9]{0,9}('?)")
_LAMBDA_NUMBER = re.compile(r"#[0-9]{1,9}(?=\})")
_OPERATOR = re.compile(r"operator ?(?:<=>|<<=|>>=|->\*?|<<|>>|<=|>=|<|>)")
_NO_NAME = re.compile(
    r"(?:0x[0-9a-fA-F]{1,16}|\?\?\?|<redacted>|unnamed_[0-9a-f]{1,16}|__?mh_execute_header"
    r"|(?:.{1,200}\+)?0x[0-9a-f]{1,16}|[0-9]{1,20})"
)
_ANGLES = str.maketrans({"<": "\ue000", ">": "\ue001"})
_BACK = str.maketrans({"\ue000": "<", "\ue001": ">"})


def is_name(name: str) -> bool:
    """Whether it says more than an address does."""
    return bool(name) and _NO_NAME.fullmatch(name[:_LONGEST]) is None


def grouping_name(name: str) -> str:
    """``name`` as builds of the same source share it: without numbers, clones and generics.

    A closure of ``Demo.run`` stays one, whichever it is; ``specialized`` and thunks are the
    function that they are of. Nothing is looked up.
    """
    name = name[:_LONGEST].strip()
    while (match := _PREFIX.match(name)) is not None:
        name = name[match.end() :]
    witness = _WITNESS.fullmatch(name)
    if witness is not None:
        name = witness["what"]
    while (clone := _CLONE.search(name)) is not None and clone.start():
        name = name[: clone.start()]
    name = _RUST_HASH.sub("", name)
    name = _BLOCK_LENGTH.sub("", _BLOCK.sub("_block_invoke", name))
    if name.startswith(("-[", "+[")):
        return name
    name = _LAMBDA_NUMBER.sub("", _LAMBDA.sub(r"\1\2", _CLOSURE.sub(r"\1", name)))
    return without_generics(name)


def without_generics(name: str) -> str:
    """``name`` less what is in angle brackets; operators that are written with them stay."""
    kept = _OPERATOR.sub(lambda match: match[0].translate(_ANGLES), name).replace("->", "-\ue001")
    if kept.count("<") != kept.count(">") or kept.startswith("<"):
        return name
    pieces: list[str] = []
    depth = start = 0
    for match in re.finditer("[<>]", kept):
        if match[0] == "<":
            if not depth:
                pieces.append(kept[start : match.start()])
            depth += 1
        else:
            depth -= 1
            start = match.end()
            if depth < 0:
                return name
    return "".join((*pieces, kept[start:])).translate(_BACK)
