//! libFuzzer's entry point for kernel and daemon answers that `overlane doctor` reads.

#![no_main]

#[path = "../src/doctor.rs"]
#[allow(dead_code, reason = "each target calls one")]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::answer(data));
