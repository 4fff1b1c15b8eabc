//! Bytes of a model.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Onnx);
