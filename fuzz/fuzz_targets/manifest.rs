//! The manifest of a plan directory.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Manifest);
