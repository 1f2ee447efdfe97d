//! libFuzzer's entry point for [`datapath::vtep::fuzz::neighbours`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| datapath::vtep::fuzz::neighbours(data));
