"""Mangled names of Swift, in full and simplified.

An input is a name, in UTF-8 where it is that.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.mutation import Mutation, insert_token
from fuzz.name_mutation import gap, letter, part
from fuzz.programs import ROOT
from fuzz.target import ContractError, Target
from machtrace.demangler.library import demangle_swift

_NAMES = ROOT / "tests" / "demangler" / "swift_names.txt"
_MAX_OUTPUT_LENGTH = 1 << 22


def run(data: bytes) -> None:
    """Demangle the name in both forms; it has one, of limited length, or none."""
    name = data.decode("utf-8", "surrogateescape")
    for simplified in (False, True):
        found = demangle_swift(name, simplified=simplified)
        if found is not None and not 0 < len(found) <= _MAX_OUTPUT_LENGTH:
            raise ContractError(f"{len(found)} characters")


def _seeds() -> Sequence[bytes]:
    lines = _NAMES.read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0].encode() for line in lines if not line.startswith("#")]


_OPERATORS = b"""
Sg SaySiG SDySSSiG yycfU_ AA AB A3_ A2048A _tG yp yXl XE XD Xx XX lXX Ieg_ Iegyr_ IetMIy_ ly lu
r_0_l Rz RzlE RvzlF QryFQOyQo_ Qp QP Qz Rszl Ri_z Mp Mn MXX WP WOy WZ Tl TR TA Tf1c_n Tf4pf_n
Tf4pSpi3_n Tg5 Ttg5 Tu TY0_ TKq TJfSpSr TJSSfSpSrSP WJrSpSr HD1_ HC HX g0_ fMf_ fMX1_2_ $3_ $n1_
.resume.0 0aB0 009brand_zua 0A0C 1aLL 1bL_ 1cLl oi op To
""".split()
_MUTATIONS: tuple[Mutation, ...] = (
    *(letter, letter, letter, part, part, gap),
    *(insert_token(_OPERATORS), insert_token(_OPERATORS)),
)

TARGET = Target("swift", run, _seeds, _MUTATIONS)
