//! libFuzzer's entry point for [`datapath::vtep::fuzz::config`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| datapath::vtep::fuzz::config(data));
