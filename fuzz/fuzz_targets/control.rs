//! libFuzzer's entry point for the control connection of `measure serve`.

#![no_main]

#[path = "../src/control.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::control(data));
