// The clock of asynchronous rounds.
#include "engine/events.h"
#include "bind/arrays.h"
#include "bind/module.h"

namespace fastfed {

namespace {

// fastfed/plan/event_state.py: State, field by field. Ids within arrays are trusted: events.py has checked them.
class StateReader {
 public:
  explicit StateReader(const py::tuple& fields) : fields_(fields) {}

  template <class T> T* array_of(const char* name, std::int64_t numel) { return data<T>(next(name), name, numel); }
  // None of them, or so many.
  template <class T> T* array_or_null(const char* name, std::int64_t numel) {
    const py::handle field = next(name);
    return array(field, name).numel == 0 ? nullptr : data<T>(field, name, numel);
  }
  template <class T> T number(const char* name) { return next(name).cast<T>(); }
  std::int64_t size_of(py::ssize_t index, const char* name) const {
    FF_REQUIRE(index < py::ssize_t(fields_.size()), name, "there");
    return array(fields_[std::size_t(index)], name).numel;
  }

 private:
  py::handle next(const char* name) {
    FF_REQUIRE(at_ < fields_.size(), name, "there");
    return PyTuple_GET_ITEM(fields_.ptr(), py::ssize_t(at_++));
  }

  const py::tuple& fields_;
  std::size_t at_ = 0;
};

constexpr py::ssize_t kSecondsField = 0, kDrawsField = 15, kTreeField = 18;

EventState state_of(const py::tuple& fields) {
  StateReader read(fields);
  EventState q{};
  q.clients = read.size_of(kSecondsField, "seconds");
  q.nodes = read.size_of(kTreeField, "tree");
  q.starts = read.size_of(kDrawsField, "draws") / 4;
  FF_REQUIRE(q.clients > 0 && q.starts > 0, "seconds", "of a client at least");
  FF_REQUIRE(q.nodes == (q.clients + kEventGroup - 1) / kEventGroup + 1, "tree", "a node per group, and one");
  q.seconds = read.array_of<const double>("seconds", q.clients);
  q.further = read.array_or_null<const double>("further", q.clients);
  q.most_epochs = read.number<std::int64_t>("most_epochs");
  q.begin = read.array_or_null<const double>("begin", q.clients);
  q.order = read.array_or_null<const std::int32_t>("order", q.clients);
  FF_REQUIRE(!q.begin == !q.order, "order", "there where windows are");
  q.length = read.number<double>("length");
  q.period = read.number<double>("period");
  q.concurrency = read.number<std::int64_t>("concurrency");
  q.buffer = read.number<std::int64_t>("buffer");
  q.max_age = read.number<std::int64_t>("max_age");
  q.waves = read.number<bool>("waves");
  q.dropout = read.number<double>("dropout");
  FF_REQUIRE(!q.waves || q.starts >= q.concurrency, "draws", "as many as a wave starts");
  q.now = read.array_of<double>("now", 1);
  q.counts = read.array_of<std::int64_t>("counts", kEventCounts);
  q.status = read.array_of<std::uint8_t>("status", q.clients);
  q.draws = read.array_of<const float>("draws", 4 * q.starts);
  q.epoch_draws = read.array_or_null<const float>("epoch_draws", q.starts);
  q.epochs = read.array_or_null<std::int64_t>("epochs", q.clients);
  FF_REQUIRE(!q.further == !q.epochs && !q.further == !q.epoch_draws, "epochs", "there where they are drawn");
  q.tree = read.array_of<std::int32_t>("tree", q.nodes);
  q.due = read.array_of<double>("due", q.concurrency);
  q.client = read.array_of<std::int64_t>("client", q.concurrency);
  q.started = read.array_of<std::int64_t>("started", q.concurrency);
  q.arrived = read.array_of<std::int64_t>("arrived", q.buffer);
  q.arrived_version = read.array_of<std::int64_t>("arrived_version", q.buffer);
  return q;
}

int bind_run(const py::tuple& state, double until, std::int64_t budget) {
  const EventState q = state_of(state);
  py::gil_scoped_release release;
  return run_events(q, until, budget);
}

}  // namespace

void bind_events(py::module_& module) {
  module.def("run_events", bind_run);
  module.def("commit_events", [](const py::tuple& state) { commit_events(state_of(state)); });
  module.def("settle_events", [](const py::tuple& state) { settle_events(state_of(state)); });
}

}  // namespace fastfed
