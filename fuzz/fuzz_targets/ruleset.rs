//! libFuzzer's way to what reads rules of nftables and evaluates them.

#![no_main]

#[path = "../src/ruleset.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::rules(data));
