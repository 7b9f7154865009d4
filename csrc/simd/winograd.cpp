// Which of Winograd's transforms run: those of the SIMD level in use.
#include "simd/winograd.h"

#include "simd/simd.h"

namespace fastfed {

FF_BY_LEVEL(WinogradTiles, winograd_tiles)

const WinogradTiles& winograd_tiles() { return winograd_tiles_in_use(); }

}  // namespace fastfed
