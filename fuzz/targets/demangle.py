"""Mangled names of C++ and Rust, in both styles.

An input is a name, in UTF-8 where it is that. It begins as mangled names do more often than chance
would have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fuzz.mutation import Mutation, insert_token
from fuzz.name_mutation import gap, letter, part
from fuzz.target import ContractError, Target
from machtrace.demangler import demangle
from machtrace.demangler.itanium.demangler import (
    demangle_cplusplus,
    demangle_type,
    read_cplusplus,
)

_MAX_OUTPUT_LENGTH = 1 << 22
_SEEDS = b"""
_Z1fv
__ZN6Player4playEi
_ZNSt3__16vectorIiNS_9allocatorIiEEE9push_backEOi
_ZNSt3__110__function6__funcIZN2at21wrapPropagateTLSStateINS_8functionIFvvEEEEEDaT_EUlDpOT_E_S5_E7destroyEv
_ZZN5names8conceptsEvENK3$_0clIiEEDaT_Q4SameIS2_iE
_ZN5names8requiredIiQrQT__XplfL0p_Li1ETNS_3BoxIS1_EEXmlfL0p_Li2ENRNS_4SameIS1_EEQ5SmallIS1_EEEEvS1_
_ZN5names11folded_leftIJbbEEEDTflaaT_EDpT_
_ZN5names5addedIiEEDTplfp_mlfp0_Li2EET_S2_
_ZN5names11nested_packIiJcfEEEvDpPNS_3BoxINS1_IT0_EEEET_
_ZN5names9by_objectITnDaXtlNS_7LiteralELi1ELd4004000000000000EEEEEvv
_ZN5names7membersEMNS_5PlainEiMS0_KFiiEMS0_FvvREMS0_KFvvOE
_ZNK5names6NumbercvPT_IiEEv
_ZThn16_N5names1C1bEv
_ZTcv0_n24_v0_n32_N5names1W1bEv
_ZTCN5names1WE0_NS_1VE
_ZGRN5names8extendedE_
____ZN5names6blocksEv_block_invoke_2
_ZN5names10per_threadE$tlv$init
_ZN1AIXadL_ZN1BIiE1cEvEEE1dEv.isra.0.cold.1
_ZUlvE_
_ZN5later4sortIPNS_6UpdateIPcEENS_4WrapIZNS_8legalizeIS2_EEvPNS1_IT_EEEUlRKS3_SB_E_EEEEvS7_S7_T0_
_ZZN5later18constrained_lambdaIlEEvvENKUlTyT_T0_E_clIicEEDaS1_S2_Qaa5SmallIS1_E5SmallITL0__E
_ZN5later12of_templatesITpTtTyTnTL0__EJNS_6ValuedES1_EEEvv
_ZNK5later11ConvertiblecvNS_6UpdateIPFvDpPT_EEEIJicEEEv
__ZNK6Holder3runMUlP5PlainE_clES1_
__Z3runIiEDaT_P5PlainS3_
_ZTAXtl1StlA9_cLc72ELc7ELc1ELc49ELcn61ELcn87EEEE
_Z1gILi0EJciEEDyT0_T_v
_ZNSt6locale7classicEv@@GLIBCXX_3.4
__imp__Z3foov
__alloc_token_12__Znwm
_ZN12_GLOBAL__N_11fEPA3_KcRA2_A4_iDv4_fCd
_ZN4core3fmt5Write9write_str17h0123456789abcdefE
_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$GT$3bar17h930b740aa94f1d3aE
_RNvNtCs1234_7mycrate3foo3bar
_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y
_RINbNbCskIICzLVDPPb_5alloc5alloc8box_freeDINbNiB4_5boxed5FnBoxuEp6OutputuEL_ECs1iopQbuBiw2_3std
_RNCINkXs25_NgCsbmNqQUJIY6D_4core5sliceINyB9_4IterhENuNgNoBb_4iter8iterator8Iterator9rpositionNCNgNpB9_6memchr7memrchrs_0E0Bb_
_RIC1aFG_UKCRL0_hEuE
_RIC1aDG_INtC1t1TL0_hEEL_E
_RMC0INtC8arrayvec8ArrayVechKj7b_E
""".split()


def run(data: bytes) -> None:
    """Demangle the name in both styles, and as a type's; an answer has a limited length."""
    name = data.decode("utf-8", "surrogateescape")
    for simplified in (False, True):
        _check(demangle(name, simplified=simplified))
    for simplified in (False, True):
        found = demangle_cplusplus(name, simplified=simplified)
        if found != read_cplusplus(name, simplified=simplified):
            raise ContractError(f"C reads it as {found}")
    _check(demangle_type(name.lstrip("_Z")) or "")


def _check(text: str) -> None:
    if len(text) > _MAX_OUTPUT_LENGTH:
        raise ContractError(f"{len(text)} characters")


def _seeds() -> Sequence[bytes]:
    return _SEEDS


def _beginning(data: bytearray, random: Random) -> None:
    """Write a prefix that is parsed."""
    data[: random.randrange(4)] = random.choice((b"_Z", b"__Z", b"_ZN", b"_ZZ", b"_R", b"__R"))


_PARTS = b"""
S_ S0_ S1_ SZ_ St Ss Sa T_ T0_ TL0__ IiE IS_S_E JicE Dp DpT_ P R O K M A3_ A_ AT__ FvvE DoFvvE DTT_E
XT_E Li1E LPc0E LZ1fvE L_Z1fvE Ul UlvE_ UlT_E0_ Ut_ B1x C1 D0 cv cvT_ li1x v31x nw cl plT_T_ gtT_T_
quT_T_T_ scT_T_ sZT_ sPT_E fp_ fL0p_ flplT_ fRplT_T_ tlT_E ilE dtT_1a srT_1a onpl dnT_ rqXT_E
rQi_XT_E Q1C TyE Tpn DB8_ DU8_ DF16_ Dv4_f U8objcproto Ua9enable_ifI W1M TV TT TC Th0_ Tv0_n8_ GV GR
NtC1a1b NvC1a1b IC1aE B_ B0_ MC1ah XC1ahC1b YhC1b Kj1_ Kc61_ Ke61_ KRe_ G_ L0_ DE s_ u3a_b
17h0123456789abcdefE _block_invoke .cold.1 .llvm.1 E EE EEE
""".split()
_MUTATIONS: tuple[Mutation, ...] = (
    *(letter, letter, part, part, gap, _beginning),
    *(insert_token(_PARTS), insert_token(_PARTS), insert_token(_PARTS)),
)

TARGET = Target("demangle", run, _seeds, _MUTATIONS)
