// The bindings as one translation unit: all of them need pybind11's templates, of which a compiler makes each once.
#include "bind/arrays.cpp"
#include "bind/checks.cpp"
#include "bind/client.cpp"
#include "bind/module.cpp"
#include "bind/norms.cpp"
#include "bind/program.cpp"
#include "bind/random.cpp"
#include "bind/server.cpp"
