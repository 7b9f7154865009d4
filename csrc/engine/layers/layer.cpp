// The table of layers.
#include "engine/layers/layer.h"

namespace fastfed {
namespace {

#define FF_NAME(name, Number) #name,
constexpr const char* kNames[] = {FF_OPS(FF_NAME)};
#undef FF_NAME

LayerTable all_layers() {
  LayerTable table;
  enter_dense_layers(table);
  enter_convolution_layers(table);
  enter_pooling_layers(table);
  enter_elementwise_layers(table);
  enter_norm_layers(table);
  enter_sequence_layers(table);
  enter_sparse_layers(table);
  return table;
}

}  // namespace

Op op_of(const std::string& name) {
  for (int op = 0; op < int(Op::kCount); ++op)
    if (name == kNames[op]) return Op(op);
  throw std::invalid_argument("program: has no layer '" + name + "'");
}

const char* name_of(Op op) { return kNames[int(op)]; }

std::unique_ptr<Layer> make_layer(Spec spec) {
  static const LayerTable table = all_layers();
  const LayerMaker maker = table[spec.op];
  if (!maker) throw std::logic_error(std::string("program: nobody has entered the layer '") + name_of(spec.op) + "'");
  return maker(std::move(spec));
}

}  // namespace fastfed
