//! The text of a graph.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Shir);
