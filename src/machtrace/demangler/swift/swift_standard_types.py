"""Types of the standard library that have a letter of their own (Mangling.rst, "Substitutions").

``S`` and a letter, ``Sc`` and a letter for those of concurrency; the mangling of Swift 3 and
earlier had fewer. The letters are those of the Swift project's ``StandardTypesMangling.def``.
"""

from __future__ import annotations

from machtrace.demangler.swift.nodes import Kind, Node

STANDARD_LIBRARY = "Swift"
OBJECTIVE_C = "__C"
"""The module of what the Clang importer finds."""
CLANG_IMPORTER = "__C_Synthesized"
"""The module of what the Clang importer makes."""


def standard_type(kind: Kind, name: str) -> Node:
    """A declared type of the standard library, not wrapped."""
    module = Node(Kind.MODULE, text=STANDARD_LIBRARY)
    return Node(kind, [module, Node(Kind.IDENTIFIER, text=name)])


def _types(kind: Kind, names: str) -> dict[str, Node]:
    pairs = (pair.split(":") for pair in names.split())
    return {letter: Node(Kind.TYPE, [standard_type(kind, name)]) for letter, name in pairs}


STANDARD_TYPES: dict[str, Node] = {
    **_types(
        Kind.STRUCTURE,
        """A:AutoreleasingUnsafeMutablePointer a:Array b:Bool D:Dictionary d:Double f:Float h:Set
        I:DefaultIndices i:Int J:Character N:ClosedRange n:Range O:ObjectIdentifier
        P:UnsafePointer p:UnsafeMutablePointer R:UnsafeBufferPointer r:UnsafeMutableBufferPointer
        S:String s:Substring u:UInt V:UnsafeRawPointer v:UnsafeMutableRawPointer
        W:UnsafeRawBufferPointer w:UnsafeMutableRawBufferPointer""",
    ),
    **_types(Kind.ENUM, "q:Optional"),
    **_types(
        Kind.PROTOCOL,
        """B:BinaryFloatingPoint E:Encodable e:Decodable F:FloatingPoint G:RandomNumberGenerator
        H:Hashable j:Numeric K:BidirectionalCollection k:RandomAccessCollection L:Comparable
        l:Collection M:MutableCollection m:RangeReplaceableCollection Q:Equatable T:Sequence
        t:IteratorProtocol U:UnsignedInteger X:RangeExpression x:Strideable Y:RawRepresentable
        y:StringProtocol Z:SignedInteger z:BinaryInteger""",
    ),
}
"""By the letter after ``S``."""

CONCURRENCY_TYPES: dict[str, Node] = {
    **_types(
        Kind.STRUCTURE,
        """C:CheckedContinuation c:UnsafeContinuation E:CancellationError e:UnownedSerialExecutor
        G:TaskGroup g:ThrowingTaskGroup J:UnownedJob P:TaskPriority S:AsyncStream
        s:AsyncThrowingStream T:Task t:UnsafeCurrentTask""",
    ),
    **_types(Kind.CLASS, "M:MainActor"),
    **_types(
        Kind.PROTOCOL,
        """A:Actor F:Executor f:SerialExecutor h:TaskExecutor I:AsyncIteratorProtocol
        i:AsyncSequence""",
    ),
}
"""By the letter after ``Sc``."""

OLD_STANDARD_TYPES: dict[str, Node] = {
    letter: one.children[0]
    for letter, one in {
        **{letter: STANDARD_TYPES[letter] for letter in "abdfiVvPpqRrSu"},
        **_types(Kind.STRUCTURE, "c:UnicodeScalar"),
        **_types(Kind.ENUM, "Q:ImplicitlyUnwrappedOptional"),
    }.items()
}
"""By the letter after ``S`` in names of Swift 3 and earlier; not wrapped."""
