// The bindings as one translation unit: a compiler takes ten seconds for torch's headers, which all of them need.
#include "bind/checks.cpp"
#include "bind/client.cpp"
#include "bind/module.cpp"
#include "bind/norms.cpp"
#include "bind/program.cpp"
#include "bind/random.cpp"
#include "bind/server.cpp"
