//! A question of a guest's to the resolver.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| berth_egress::fuzzing::dns(bytes));
