//! The beginning of a TLS connection, from a guest.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| berth_egress::fuzzing::sni(bytes));
