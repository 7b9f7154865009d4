// The table of layers.
#include "engine/layers/layer.h"

namespace fastfed {
namespace {

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

std::unique_ptr<Layer> make_layer(Spec spec) {
  static const LayerTable table = all_layers();
  const auto found = table.find(spec.op);
  if (found == table.end()) throw std::invalid_argument("program: has no layer '" + spec.op + "'");
  return found->second(std::move(spec));
}

}  // namespace fastfed
