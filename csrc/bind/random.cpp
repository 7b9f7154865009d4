// Random numbers, and what is made of them.
#include "kernels/random.h"
#include "bind/arrays.h"
#include "bind/module.h"
#include "kernels/images.h"

namespace fastfed {

namespace {

Word word(py::handle object, const char* name) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(object.ptr());
  if (value == ~0ull && PyErr_Occurred()) throw py::error_already_set();
  FF_REQUIRE(value <= 0xFFFFFFFFull, name, "a word of 32 bits");
  return Word(value);
}

// kernels/streams.py: StreamWords
Stream stream_of(const py::tuple& words) {
  FF_REQUIRE(words.size() == 4, "stream", "StreamWords");
  const auto item = [&](py::ssize_t index) { return word(PyTuple_GET_ITEM(words.ptr(), index), "stream"); };
  return {item(0), item(1), item(2), item(3)};
}

// The numbers of one client into out (n,), or of a tensor of clients into (clients, n).
template <class T, class Draw> void draw_rows(py::handle out, const py::tuple& words, py::handle clients, Draw draw) {
  const Array t = array(out, "out");
  FF_REQUIRE(t.dtype == kDtype<T>, "out", "of another dtype");
  const RowCount rows = rows_of(t, "out");
  const bool alone = PyLong_Check(clients.ptr());
  FF_REQUIRE(alone == (t.dim == 1), "clients", "one id for (n,), a tensor of ids for (clients, n)");
  const std::int64_t id = alone ? word(clients, "clients") : 0;
  const std::int64_t* ids = alone ? &id : data<const std::int64_t>(clients, "clients", rows.clients);
  T* numbers = elements<T>(t, "out");
  const Stream stream = stream_of(words);
  const int team = threads();
  py::gil_scoped_release release;
  draw(rows.clients, rows.d, stream, ids, numbers, team);
}

void bind_uniform(py::handle out, const py::tuple& stream, py::handle clients) {
  draw_rows<float>(out, stream, clients, uniform);
}
void bind_normal(py::handle out, const py::tuple& stream, py::handle clients) {
  draw_rows<float>(out, stream, clients, normal);
}
void bind_permutation(py::handle out, const py::tuple& stream, py::handle clients) {
  draw_rows<std::int64_t>(out, stream, clients, permutation);
}

void bind_shuffles(py::handle out, const py::tuple& words, py::handle clients, py::handle steps, py::handle counts) {
  const Array t = array(out, "out");
  FF_REQUIRE(t.dtype == Dtype::kLong && t.dim == 2, "out", "(rows, width) int64");
  const RowCount rows = rows_of(t, "out");
  const Shuffles of = {data<const std::int64_t>(clients, "clients", rows.clients),
                       data<const std::int64_t>(steps, "steps", rows.clients),
                       data<const std::int64_t>(counts, "counts", rows.clients)};
  for (std::int64_t row = 0; row < rows.clients; ++row)
    FF_REQUIRE(of.counts[row] >= 0 && of.counts[row] <= rows.d, "counts", "at most the width");
  std::int64_t* orders = elements<std::int64_t>(t, "out");
  const Stream stream = stream_of(words);
  const int team = threads();
  py::gil_scoped_release release;
  shuffles(rows.clients, rows.d, stream, of, orders, team);
}

// Every number of (n,) is at least 0 and below `end`.
void require_below(const std::int64_t* numbers, std::int64_t n, std::int64_t end, const char* name) {
  for (std::int64_t i = 0; i < n; ++i)
    FF_REQUIRE(numbers[i] >= 0 && numbers[i] < end, name, "below " + std::to_string(end));
}

void bind_make_images(py::handle out, const py::tuple& words, py::handle patterns, py::handle contrasts,
                      py::handle shades, py::handle labels, py::handle owners, py::handle ids) {
  const Array t = array(out, "out"), p = array(patterns, "patterns"), c = array(contrasts, "contrasts");
  FF_REQUIRE(t.dim == 2 && p.dim == 2 && p.last == t.last && c.dim == 1, "out", "(images, pixels), as patterns are");
  const std::int64_t n = t.first, pixels = t.last;
  const MadeImages of = {pixels,
                         elements<const std::uint8_t>(p, "patterns"),
                         elements<const std::uint8_t>(c, "contrasts"),
                         data<const std::uint8_t>(shades, "shades", c.numel * pixels),
                         data<const std::int64_t>(labels, "labels", n),
                         data<const std::int64_t>(owners, "owners", n),
                         data<const std::int64_t>(ids, "ids", n)};
  require_below(of.labels, n, p.first, "labels");
  require_below(of.owners, n, c.numel, "owners");
  require_below(of.ids, n, std::int64_t(1) << 32, "ids");
  std::uint8_t* images = elements<std::uint8_t>(t, "out");
  const Stream stream = stream_of(words);
  const int team = threads();
  py::gil_scoped_release release;
  make_images(n, of, stream, images, team);
}

void bind_choose_rows(py::handle out, py::handle cumulative, py::handle rows, py::handle numbers) {
  const Array t = array(out, "out"), c = array(cumulative, "cumulative");
  FF_REQUIRE(c.dim == 2 && c.last > 0, "cumulative", "(rows, kinds)");
  const double *sums = elements<const double>(c, "cumulative"),
               *drawn = data<const double>(numbers, "numbers", t.numel);
  const std::int64_t* which = data<const std::int64_t>(rows, "rows", t.numel);
  require_below(which, t.numel, c.first, "rows");
  std::int64_t* picked = elements<std::int64_t>(t, "out");
  const int team = threads();
  py::gil_scoped_release release;
  choose_rows(t.numel, c.last, sums, which, drawn, picked, team);
}

}  // namespace

void bind_random(py::module_& module) {
  module.def("choose_rows", bind_choose_rows);
  module.def("make_images", bind_make_images);
  module.def("uniform", bind_uniform);
  module.def("normal", bind_normal);
  module.def("permutation", bind_permutation);
  module.def("shuffles", bind_shuffles);
}

}  // namespace fastfed
