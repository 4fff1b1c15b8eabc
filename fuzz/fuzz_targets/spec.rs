//! The text of a spec.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Spec);
