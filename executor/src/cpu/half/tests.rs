//! Products of 16-bit floats: see the parent module.
