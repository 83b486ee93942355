"""C++ names mangled by the rules of the Itanium C++ ABI."""
