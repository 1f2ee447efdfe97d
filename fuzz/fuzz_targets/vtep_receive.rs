//! libFuzzer's entry point for [`datapath::vtep::fuzz::receive`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| datapath::vtep::fuzz::receive(data));
