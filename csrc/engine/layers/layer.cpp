// The layers by their ops.
#include "engine/layers/layer.h"

namespace fastfed {
namespace {

#define FF_NAME(name, Number) #name,
constexpr const char* kNames[] = {FF_OPS(FF_NAME)};
#undef FF_NAME

LayerMakers all_layers() {
  LayerMakers layers;
  enter_dense_layers(layers);
  enter_convolution_layers(layers);
  enter_pooling_layers(layers);
  enter_elementwise_layers(layers);
  enter_norm_layers(layers);
  enter_sequence_layers(layers);
  enter_sparse_layers(layers);
  enter_attention_layers(layers);
  enter_token_layers(layers);
  return layers;
}

}  // namespace

Op op_of(const std::string& name) {
  for (int op = 0; op < int(Op::kCount); ++op)
    if (name == kNames[op]) return Op(op);
  throw std::invalid_argument("program: has no layer '" + name + "'");
}

const char* name_of(Op op) { return kNames[int(op)]; }

std::unique_ptr<Layer> make_layer(Spec spec) {
  static const LayerMakers layers = all_layers();
  const LayerMaker maker = layers[spec.op];
  if (!maker) throw std::logic_error(std::string("program: nobody has entered the layer '") + name_of(spec.op) + "'");
  return maker(std::move(spec));
}

}  // namespace fastfed
