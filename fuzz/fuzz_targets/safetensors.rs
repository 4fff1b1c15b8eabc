//! Data or weights in the safetensors format.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Safetensors);
