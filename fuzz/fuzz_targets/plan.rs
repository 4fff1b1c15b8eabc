//! A plan file, or what stands behind its header.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Plan);
