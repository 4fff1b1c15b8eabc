//! Data in an archive.
#![no_main]

shardc_fuzz::fuzz!(shardc_fuzz::attack::Target::Npz);
