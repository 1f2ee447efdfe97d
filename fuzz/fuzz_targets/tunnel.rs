//! libFuzzer's entry point for [`overlane_fuzz::tunnel`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overlane_fuzz::tunnel(data));
