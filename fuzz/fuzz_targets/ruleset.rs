//! libFuzzer's entry point for reading and evaluating nftables rules.

#![no_main]

#[path = "../src/ruleset.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::rules(data));
