//! libFuzzer's entry point for [`overlane_fuzz::coalesce`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overlane_fuzz::coalesce(data));
