//! What the lanes of a warp and the warps of a block do together, and what is counted of it.
