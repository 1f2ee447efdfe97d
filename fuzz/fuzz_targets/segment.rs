//! libFuzzer's entry point for [`overlane_fuzz::segment`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overlane_fuzz::segment(data));
